"""Steps of DiLoCo: local steps of each part of a mesh axis, and an outer step now and then.

A local step is the step of the inner optimiser, planned as if the axis were not there and then
given values of each part (`mithril.partition.replicas`): parameters, moments and statistics have a
first dimension over the axis. The outer step is a function of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from mithril import ops
from mithril.cost import PlanMemory
from mithril.errors import OptionError, PlanError
from mithril.keywords import checked_keywords
from mithril.mesh import PartitionSpec
from mithril.models.trace_context import SEED
from mithril.ops import split_seed
from mithril.optim.diloco import Diloco
from mithril.plan import Plan
from mithril.runtime.array import Array
from mithril.runtime.functional.function import jit
from mithril.runtime.functional.placing import constrain
from mithril.runtime.interrupts import hold_interrupts
from mithril.runtime.parameters import Parameters
from mithril.runtime.training.state import MeanMetrics, Metrics, TrainState
from mithril.runtime.training.step import TrainStep
from mithril.runtime.training.step_count import StepCounter
from mithril.trees import flatten, rebuild

PART_SALT = zlib.crc32(b"part that trains by itself")
"""Salt of the seeds of parts."""


class DilocoState(NamedTuple):
    """What DiLoCo keeps of optimisers.

    Args:
        inner: of the inner optimiser, with a first dimension over the parts.
        anchor: the parameters after the last outer step, as `evaluate` takes them.
        outer: of the outer optimiser.
    """

    inner: Any
    anchor: Parameters
    outer: Any


class DilocoStep:
    """A step of training by DiLoCo; made by `train_step`.

    Args:
        local: the step of all parts.
        start: the same of one part alone, whose state all begin with.
        rule: the optimisers.
    """

    def __init__(self, local: TrainStep, start: TrainStep, rule: Diloco) -> None:
        self.backend, self.inputs = local.backend, local.inputs
        self._local, self._start, self._rule = local, start, rule
        self._count = local.backend.mesh.sizes[rule.axis]
        self._specs = {n: lies.spec for n, lies in start.shardings.items()}
        self._meet = jit(self._make_outer_step, backend=local.backend, donate=(0, 1, 2))
        self._outer_plan: Plan | None = None
        self._kept = 0  # bytes on a device
        self._counter = StepCounter()

    # ------------------------------------------------------------------ what the plans tell

    @property
    def plan(self) -> Plan:
        """The plan of a local step."""
        return self._local.plan

    @property
    def outer_plan(self) -> Plan:
        """The plan of an outer step.

        Raises:
            PlanError: there is no state yet.
        """
        if self._outer_plan is None:
            raise PlanError("outer step has no plan before there is a state; call init() first")
        return self._outer_plan

    def explain(self, tensor: str | None = None) -> str:
        """Return why each collective of a local step is there; see `CompiledModel.explain`."""
        return self._local.explain(tensor)

    def memory(self) -> PlanMemory:
        """Return what each device holds while a local step runs.

        Once there is a state, that is with its `anchor` and the outer optimiser's state, which lie
        on the devices meanwhile.
        """
        return self._local.memory().keeping("anchor and outer state", self._kept)

    # ------------------------------------------------------------------ running

    @checked_keywords()
    def init(self, seed: int = 0, params: Mapping[str, object] | None = None) -> TrainState:
        """Return the state before the first step; see `TrainStep.init`.

        Parameters, moments and statistics have a first dimension with an entry for each part of the
        axis; all parts begin alike, but draw other random numbers.

        Args:
            seed: decides the initial parameters and the random numbers of all steps.
            params: parameters to begin with, by name, as without DiLoCo; by default they are drawn.

        Raises:
            GraphError: a parameter is missing, or unknown.
            ShapeError: a parameter has another type than the step takes.
            OptionError: what is trained has 16 bits, or see `TrainStep.init`.
        """
        state = self._start.init(seed=seed, params=params)
        trained = self._list_trained(state.params)
        anchor = Parameters({name: state.params[name] for name in trained})
        copies = self._spread([anchor, state.optimizer, state.statistics, state.loss_scale])
        trained, inner, statistics, loss_scale = copies
        outer = self._rule.outer.init(anchor)
        self._plan_outer(trained, anchor, outer)
        return TrainState(
            Parameters({name: trained.get(name, x) for name, x in state.params.items()}),
            DilocoState(inner, anchor, outer),
            statistics,
            state.step,
            self._make_seeds(state.seed),
            loss_scale,
            state.compression,
        )

    def __call__(
        self, state: TrainState, batch: Mapping[str, object]
    ) -> tuple[TrainState, Metrics]:
        """Make one local step on all parts, and an outer one if it is due.

        Args:
            state: of `init`, or of the step before; it cannot be used afterwards.
            batch: one array per input of the model, for all parts.

        Returns:
            The next state, and metrics: the mean of those of all parts, taken when they are read.

        Raises:
            OptionError: the state is of another optimiser.
            GraphError: it is of another model, or an input is missing.
            ShapeError: an id or a target in host memory is out of range; the state is not given up.
            BackendError: the state was given to a step before.
        """
        kept = state.optimizer
        if not isinstance(kept, DilocoState):
            raise OptionError(
                "step of diloco() is called with the state of another optimiser; give what "
                "step.init() or the step before returned"
            )
        return hold_interrupts(True, self._advance, state, kept, batch)

    def _advance(
        self, state: TrainState, kept: DilocoState, batch: Mapping[str, object]
    ) -> tuple[TrainState, Metrics]:
        """Make the local step, and the outer one, of a state and what its optimiser keeps."""
        number = self._counter.read(state.step) + 1
        state, metrics = self._local(state._replace(optimizer=kept.inner), batch)
        self._counter.remember(state.step, number)
        kept = kept._replace(inner=state.optimizer)
        if number % self._rule.every == 0:
            trained = {name: state.params[name] for name in kept.anchor}
            if self._outer_plan is None:
                self._plan_outer(trained, kept.anchor, kept.outer)
            params, anchor, outer = self._meet(trained, kept.anchor, kept.outer)
            merged = {name: params.get(name, x) for name, x in state.params.items()}
            state = state._replace(params=Parameters(merged))
            kept = DilocoState(kept.inner, Parameters(anchor), outer)
        return state._replace(optimizer=kept), MeanMetrics(metrics)

    # ------------------------------------------------------------------ the outer step

    def _make_outer_step(
        self, params: Any, anchor: Any, outer: Any
    ) -> tuple[dict[str, Any], dict[str, Any], Any]:
        """Trace what becomes of what the parts have come to."""
        slopes = {n: x - ops.mean(params[n], 0) for n, x in anchor.items()}
        new, outer = self._rule.outer.apply(slopes, outer, anchor)
        new = {n: constrain(x, self._specs[n]) for n, x in new.items()}
        return {n: self._give_to_all(x, self._specs[n]) for n, x in new.items()}, new, outer

    def _give_to_all(self, x: Any, spec: PartitionSpec) -> Any:
        copies = ops.broadcast_to(ops.reshape(x, (1, *x.shape)), (self._count, *x.shape))
        return constrain(copies, PartitionSpec(self._rule.axis, *spec.entries))

    def _plan_outer(self, params: Any, anchor: Any, outer: Any) -> None:
        kept: list[Any] = []
        flatten([anchor, outer], kept)
        types = (x.type.with_shape(x.sharding.local_shape(x.type.shape)) for x in kept)
        self._kept = sum(type.nbytes for type in types)
        self._outer_plan = self._meet.plan(dict(params), dict(anchor), outer)

    # ------------------------------------------------------------------ state

    def _list_trained(self, params: Parameters) -> list[str]:
        """Return the parameters that local steps change.

        Raises:
            OptionError: one of them has 16 bits.
        """
        found = [name for name in params if self._local.shardings[name].rank > params[name].ndim]
        for name in found:
            if params[name].type.dtype.itemsize < 4:
                raise OptionError(
                    f"diloco() trains '{name}', which is {params[name].type}: what an outer step "
                    f"adds would be rounded away; keep parameters in float32, and compute with "
                    f"compute_dtype="
                )
        return found

    def _spread(self, tree: Any) -> Any:
        """Return a tree of arrays with a copy for each part."""
        leaves: list[Any] = []
        structure = flatten(tree, leaves)
        specs = [x.sharding.spec for x in leaves]

        def give(given: list[Any]) -> list[Any]:
            return [self._give_to_all(x, s) for x, s in zip(given, specs, strict=True)]

        return rebuild(structure, jit(give, backend=self.backend)(leaves))

    def _make_seeds(self, seed: Array) -> Array:
        """Return a seed for each part, where random numbers are drawn at all."""
        if SEED not in self._local.shardings:
            return seed

        def split(seed: Any) -> Any:
            return constrain(
                split_seed(seed, self._count, PART_SALT), PartitionSpec(self._rule.axis)
            )

        made: Array = jit(split, backend=self.backend)(seed)
        return made


__all__ = ["DilocoState", "DilocoStep"]
