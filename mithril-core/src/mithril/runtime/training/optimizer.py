"""The optimiser's part of a step as graphs: what it keeps at first, and what it makes of gradients.

An optimiser is any object with `init(params)` and `apply(gradients, state, params)`, written as
functions of tensors; those of `mithril.optim` are. They are traced on trees of the model's
trainable parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mithril.errors import GraphError, OptionError, ShapeError, kind_of
from mithril.ir import Graph, Node, Tensor, Value
from mithril.ir.running import tracing
from mithril.models.trace_context import SEED
from mithril.ops import advance_seed, cast, isfinite
from mithril.optim import find_learning_rates, global_norm, match_parameters
from mithril.plan.names import GRADIENT, gradient_of, next_of
from mithril.runtime.array import ArrayBackend
from mithril.runtime.functional.tracing import FunctionBuilder, lift
from mithril.runtime.parameters import Parameters
from mithril.runtime.training.loss_scale import SCALE, TYPES, LossScale, choose, unscale
from mithril.trees import Structure, flatten, names, rebuild
from mithril.types import DType, TensorType

OPTIMIZER = "optimizer"
STEP, LEARNING_RATE, GRADIENT_NORM = "train.step", "learning_rate", "gradient_norm"
METRIC = "metric."

Types = Mapping[str, TensorType]


class Optimizer(Protocol):
    """What a train step needs of an optimiser."""

    def init(self, params: Any) -> Any:
        """Return what it keeps at first."""

    def apply(self, gradients: Any, state: Any, params: Any) -> tuple[Any, Any]:
        """Return the parameters after a step, and what it keeps next."""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerState:
    """What an optimiser keeps.

    Args:
        graph: from the trainable parameters to what it keeps at first.
        structure: of the tree that it is.
        types: of the arrays in it, by name.
    """

    graph: Graph
    structure: Structure
    types: Types

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """Return the tree with other leaves."""
        return rebuild(self.structure, leaves)


def check_optimizer(optimizer: object) -> Optimizer:
    """Return an optimiser.

    Raises:
        OptionError: it is none.
    """
    if not all(callable(getattr(optimizer, name, None)) for name in ("init", "apply")):
        raise OptionError(
            f"train_step() takes an optimiser, not {kind_of(optimizer)}; give one of ml.optim, "
            f"such as ml.optim.adamw(1e-3)"
        )
    return optimizer  # type: ignore[return-value]


def trace_state(backend: ArrayBackend, optimizer: Optimizer, parameters: Types) -> OptimizerState:
    """Return what an optimiser keeps of parameters of some types.

    Args:
        backend: where it will run.
        optimizer: the optimiser.
        parameters: the trainable ones, by name.
    """
    builder = FunctionBuilder(backend, "the optimiser's init")
    with tracing(builder), builder.at(scope=OPTIMIZER):
        params = _as_params({n: builder.input(t, n) for n, t in parameters.items()})
        leaves: list[Any] = []
        structure = flatten(optimizer.init(params), leaves)
        called = list(names(structure, OPTIMIZER))
        tensors = [lift(builder, x, f"'{n}'") for n, x in zip(called, leaves, strict=True)]
    graph = builder.build(dict(zip(called, tensors, strict=True)))
    builder.is_done = True
    _check_captured(builder)
    return OptimizerState(
        graph, structure, {n: x.type for n, x in zip(called, tensors, strict=True)}
    )


def trace_update(
    backend: ArrayBackend,
    optimizer: Optimizer,
    parameters: Types,
    state: OptimizerState,
    metrics: Sequence[str],
    uses_seed: bool,
    statistics: Mapping[str, tuple[str, TensorType]],
    loss_scale: LossScale | None = None,
    gradients: DType | None = None,
    *,
    counts_skipped: bool = False,
) -> Graph:
    """Return the update of a step as a graph.

    Its inputs are named as parameters, gradients and what is kept are; its outputs are what is kept
    next, behind `NEXT`, and metrics, behind `METRIC`.

    Args:
        backend: where it will run.
        optimizer: the optimiser.
        parameters: the trainable ones, by name.
        state: what the optimiser keeps.
        metrics: which of `gradient_norm` and `learning_rate` are told.
        uses_seed: whether the model draws random numbers.
        statistics: by output of the model, the input that it is next, and its type.
        loss_scale: how the loss is scaled, if it is.
        gradients: their dtype; None for that of each parameter.
        counts_skipped: whether a step counts whose gradients are not finite, as it does where each
            part of an axis skips its own.

    Raises:
        GraphError: the optimiser returns trees of another form.
        ShapeError: it returns arrays of other shapes.
    """
    builder = FunctionBuilder(backend, "the optimiser")
    with tracing(builder), builder.at(scope=OPTIMIZER):
        given = {n: builder.input(t, n) for n, t in parameters.items()}
        slopes = {
            n: builder.input(TensorType(t.shape, gradients or t.dtype), gradient_of(n))
            for n, t in parameters.items()
        }
        kept = {n: builder.input(t, n) for n, t in state.types.items()}
        step = builder.input(TensorType((), DType.int32), STEP)
        scaling = {n: builder.input(t, n) for n, t in TYPES.items()} if loss_scale else {}
        if scaling:
            slopes = unscale(slopes, scaling[SCALE])
        is_asked = bool(slopes) and (scaling or GRADIENT_NORM in metrics)
        norm = global_norm(slopes) if is_asked else None
        returned = optimizer.apply(
            _as_params(slopes), state.rebuild(list(kept.values())), _as_params(given)
        )
        new, after = _check_returned(builder, returned, parameters, state)
        given |= {port: builder.input(type, port) for port, type in statistics.values()}
        learnt = {port: builder.input(type, out) for out, (port, type) in statistics.items()}
        made = {**new, **after, **learnt, STEP: step + 1}
        if loss_scale is not None and norm is not None:
            is_finite = isfinite(norm)
            before = {**given, **kept} | ({} if counts_skipped else {STEP: step})
            made |= {n: choose(is_finite, made[n], x) for n, x in before.items()}
            made |= loss_scale.advance(scaling, is_finite)
        if uses_seed:
            made[SEED] = advance_seed(builder.input(TensorType((), DType.uint32), SEED))
        outputs = {next_of(n): x for n, x in made.items()}
        outputs |= _make_metrics(metrics, norm, find_learning_rates(after, dict(parameters)))
    graph = builder.build(outputs)
    builder.is_done = True
    _check_captured(builder)
    return _give_scopes(graph, {**parameters}, state.types)


def _as_params(tensors: Any) -> Parameters:
    """Return traced tensors in the tree that the parameters of a model are."""
    return Parameters(tensors)


def _check_returned(
    builder: FunctionBuilder, returned: object, parameters: Types, state: OptimizerState
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise GraphError(
            f"optimiser returned {kind_of(returned)} from apply(); return the parameters and the "
            f"state after the step"
        )
    trees: list[dict[str, Tensor]] = []
    for what, tree, types in zip(
        ("parameters", "state"), returned, (parameters, state.types), strict=True
    ):
        leaves: list[Any] = []
        structure = flatten(tree, leaves)
        called = list(names(structure, "" if what == "parameters" else OPTIMIZER))
        if called != list(types):
            raise GraphError(
                f"optimiser returned {what} of another form from apply() than it was given: "
                f"{_first_other(called, list(types))}; return a tree of the same form"
            )
        found = {n: lift(builder, x, f"'{n}'") for n, x in zip(called, leaves, strict=True)}
        for name, x in found.items():
            if x.type.shape != types[name].shape:
                raise ShapeError(
                    f"optimiser returned '{name}' as {x.type}, and it was {types[name]}; what is "
                    f"kept keeps its shape"
                )
            found[name] = x if x.type == types[name] else cast(x, types[name].dtype)
        trees.append(found)
    return trees[0], trees[1]


def _first_other(found: Sequence[str], wanted: Sequence[str]) -> str:
    missing = [name for name in wanted if name not in found]
    more = [name for name in found if name not in wanted]
    if missing:
        return f"'{missing[0]}' is missing"
    return f"'{more[0]}' is new" if more else "the order differs"


def _make_metrics(
    wanted: Sequence[str], norm: Tensor | None, rates: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return what a step tells; of several parts of an optimiser the rate of the first."""
    found: dict[str, Tensor] = {}
    if GRADIENT_NORM in wanted and norm is not None:
        found[f"{METRIC}{GRADIENT_NORM}"] = norm
    if LEARNING_RATE in wanted and rates:
        found[f"{METRIC}{LEARNING_RATE}"] = next(iter(rates.values()))
    return found


def _check_captured(builder: FunctionBuilder) -> None:
    if builder.captured_arrays:
        name = builder.captured_arrays[0].name
        raise GraphError(
            f"optimiser uses an array from around it ('{name}'), which a step does not keep; make "
            f"it in init(), as a part of the state, or use numbers"
        )


def _give_scopes(graph: Graph, parameters: Types, state: Types) -> Graph:
    """Return the update with nodes of one parameter stamped with the path of its layer."""
    scopes: dict[Value, str] = {}  # of what depends on parameters
    owners_of = match_parameters(dict(state), dict(parameters))
    owners_of |= {name: name for name in parameters}
    for value in graph.inputs:
        owner = owners_of.get(value.name.removeprefix(GRADIENT))
        if owner is not None:
            scopes[value] = owner.rpartition(".")[0] or OPTIMIZER
    nodes: list[Node] = []
    for node in graph.nodes:
        layers = {scopes[value] for value in node.inputs if value in scopes}
        scope = next(iter(layers)) if len(layers) == 1 else OPTIMIZER
        nodes.append(replace(node, scope=scope))
        if layers:
            scopes.update(dict.fromkeys(node.outputs, scope))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)
