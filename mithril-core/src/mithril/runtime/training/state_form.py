"""StateForm: how the state of a step becomes arguments of its plan, and results the next state.

Names are looked up once. A loop calls with what the step before returned: that is recognised by its
structure and by the kinds of its arrays, without a look at each name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mithril.errors import GraphError, nearest
from mithril.models.trace_context import SEED
from mithril.plan.names import next_of
from mithril.runtime.array import Array
from mithril.runtime.bindings import are_of_kinds
from mithril.runtime.call import Pick, pick
from mithril.runtime.parameters import Parameters
from mithril.runtime.training.optimizer import OPTIMIZER, STEP
from mithril.runtime.training.planner import StepSource
from mithril.runtime.training.state import Metrics, TrainState
from mithril.trees import Structure, collect_leaves, flatten, names, rebuild


@dataclass(frozen=True, slots=True, eq=False)
class StateForm:
    """What a step knows of the states that it is given.

    Args:
        structure: of such a state.
        kinds: of its arrays, as the plan takes them; those of the last state are kept.
        places: of what the plan takes of the arrays, by name, in the order of its arguments.
        take: picks that from the arrays.
        following: the structure of the next state.
        give: picks its arrays from the results, and from the arrays.
        metrics: names of what the step tells, and the places of the results that they are.
    """

    structure: Structure
    kinds: list[Any]
    places: Mapping[str, int]
    take: Pick
    following: Structure
    give: Pick
    metrics: Mapping[str, int]

    def collect(self, state: object) -> list[Any] | None:
        """Return the arrays of a state, None if it is not of this form."""
        arrays: list[Any] = []
        is_known = collect_leaves(state, self.structure, arrays)
        return arrays if is_known and are_of_kinds(arrays, self.kinds) else None

    def make_next(
        self, made: Sequence[Array], arrays: Sequence[Array]
    ) -> tuple[TrainState, Metrics]:
        """Return the next state, and metrics.

        Args:
            made: the results.
            arrays: of the state before.
        """
        state: TrainState = rebuild(self.following, self.give((*made, *arrays)))
        return state, Metrics({name: made[place] for name, place in self.metrics.items()})


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Stands for an array of a state.

    Args:
        index: of results, and of the arrays of a state after them.
    """

    index: int


def learn_form(
    state: TrainState,
    source: StepSource,
    results: Sequence[str],
    own: Callable[[object, str], Array],
    *,
    is_warmup: bool,
) -> tuple[StateForm, list[Any]]:
    """Return the form of a state, whose kinds are not known yet, and its arrays.

    Args:
        state: what is passed as one.
        source: of the step.
        results: names of what the step returns.
        own: refuses what is no array of the backend.
        is_warmup: whether some gradients are not compressed yet.

    Raises:
        GraphError: it is the state of another model or optimiser.
        BackendError: what it has under a name is no array of the backend.
    """
    state = _with_dicts(state)
    wanted = (*source.kept, *source.passed)
    found = _name_arrays(state, source, is_warmup=is_warmup)
    _check_names(wanted, found)
    for name in wanted:
        own(found[name], f"'{name}' of the state")
    arrays: list[Any] = []
    structure = flatten(state, arrays)
    # A state of places says where each of its arrays goes to, and where the next ones come from.
    count = len(results)
    before: TrainState = rebuild(structure, map(_Place, range(count, count + len(arrays))))
    named = _name_arrays(before, source, is_warmup=is_warmup)
    made = {name: _Place(index) for index, name in enumerate(results)}
    given: list[_Place] = []
    following = flatten(_follow(before, made, source), given)
    places = {name: named[name].index - count for name in wanted}
    form = StateForm(
        structure,
        [],
        places,
        pick([*places.values()]),
        following,
        pick([place.index for place in given]),
        {name: made[output].index for name, output in source.metrics.items()},
    )
    return form, arrays


def _with_dicts(state: TrainState) -> TrainState:
    """Return a state whose mappings are dicts, which trees go into."""
    return state._replace(
        params=Parameters(state.params),
        statistics=dict(state.statistics),
        loss_scale=dict(state.loss_scale),
        compression=dict(state.compression),
    )


def _name_arrays(state: TrainState, source: StepSource, *, is_warmup: bool) -> dict[str, Any]:
    """Return what a state holds by the names of a plan's arguments."""
    leaves: list[Any] = []
    structure = flatten(state.optimizer, leaves)
    kept: Mapping[str, Any] = state.compression
    if is_warmup:
        kept = {name: kept[name] for name in source.compression if name in kept}
    return {
        **state.params,
        **dict(zip(names(structure, OPTIMIZER), leaves, strict=True)),
        **state.statistics,
        **state.loss_scale,
        STEP: state.step,
        SEED: state.seed,
        **kept,
    }


def _check_names(wanted: Sequence[str], found: Mapping[str, Any]) -> None:
    known = {*wanted, SEED}
    missing = [name for name in wanted if name not in found]
    unknown = [name for name in found if name not in known]
    if missing or unknown:
        what = f"lacks '{missing[0]}', which" if missing else f"has '{unknown[0]}', which"
        near = nearest(missing[0], unknown) if missing else ""
        raise GraphError(
            f"state {what} this step {'keeps' if missing else 'does not keep'}{near}; it is "
            f"the state of another model or optimiser; make one with step.init()"
        )


def _follow(before: TrainState, made: Mapping[str, Any], source: StepSource) -> TrainState:
    """Return the state after a step that was given one, and made results by name."""
    params = Parameters((name, made.get(next_of(name), x)) for name, x in before.params.items())
    leaves = [made[next_of(name)] for name in source.state.types]
    return TrainState(
        params,
        source.state.rebuild(leaves),
        {port: made[next_of(port)] for port in before.statistics},
        made[next_of(STEP)],
        made.get(next_of(SEED), before.seed),
        {name: made[next_of(name)] for name in before.loss_scale},
        {name: made.get(next_of(name), x) for name, x in before.compression.items()},
    )


__all__ = ["StateForm", "learn_form"]
