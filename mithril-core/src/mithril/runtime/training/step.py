"""train_step: forward, backward, and the optimiser's update as one plan.

The update is appended to the joint graph before anything is laid out, so that it is partitioned,
priced and explained like the rest, and a step is one program on every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mithril.compiler import Request
from mithril.cost import PlanMemory
from mithril.errors import GraphError, MeshError, OptionError, kind_of, listing, nearest
from mithril.keywords import checked_keywords
from mithril.mesh import Mesh, Sharding
from mithril.models import Layer, Model
from mithril.models.trace import Traced
from mithril.plan import Plan
from mithril.report import explain
from mithril.runtime.array import Array, Kind
from mithril.runtime.backend import Backend
from mithril.runtime.call import Bindings, Bound, Interface, bind
from mithril.runtime.capture import Captured
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.compiling import compile
from mithril.runtime.functional.tree import flatten, names
from mithril.runtime.parameters import Parameters, initial_array
from mithril.runtime.planner import Asked
from mithril.runtime.sampling import read_seed
from mithril.runtime.specification import TensorSpec
from mithril.runtime.training.optimizer import (
    GRADIENT_NORM,
    LEARNING_RATE,
    METRIC,
    NEXT,
    OPTIMIZER,
    SEED,
    STEP,
    Optimizer,
    OptimizerState,
    check_optimizer,
    find_parameter,
    trace_state,
    trace_update,
)
from mithril.runtime.training.state import Metrics, TrainState
from mithril.runtime.training.zero import split_further
from mithril.runtime.unplaced import settle
from mithril.sharding import FREE, UNSAID, Layout
from mithril.transform import Update, cotangent_name
from mithril.types import TensorType, as_dtype, to_python

KEPT = 64
"""How many plans a step keeps."""
STAGES = (0, 1, 2, 3)
AXIS = "data"


@dataclass(frozen=True, slots=True, eq=False)
class StepSource:
    """What a step was made from.

    Args:
        traced: the model.
        captured: arrays that its layers use from around them.
        state: what the optimiser keeps.
        kept: names of what the step keeps and gives up, in the order of its arguments.
        passed: names of parameters that it takes and does not change.
        metrics: names of what it tells, and the outputs that they are.
    """

    traced: Traced
    captured: Captured
    state: OptimizerState
    kept: tuple[str, ...]
    passed: tuple[str, ...]
    metrics: Mapping[str, str]


@checked_keywords()
def train_step(
    model: Model | Layer,
    backend: Backend,
    optimizer: Optimizer,
    *,
    loss: str = "loss",
    shapes: Mapping[str, object],
    zero: int = 0,
    zero_axis: str | Sequence[str] = AXIS,
    accumulate: int = 1,
    **options: Any,
) -> TrainStep:
    """Return a step of training: a function from state and batch to the next state and metrics.

    Forward, backward and update are one plan, which is partitioned and priced as a whole. The state
    is given up by each call: its memory is that of the next one.

    Args:
        model: a Model, or a single layer, with a scalar output of floats.
        backend: where it runs.
        optimizer: one of `ml.optim`, or any object with `init(params)` and
            `apply(gradients, state, params)`.
        loss: the output that is minimised; its gradient is one.
        shapes: for each input a shape, an array, or a `TensorSpec`, as `compile` takes them.
        zero: what is split over the axis that splits the batch, besides what the model says
            (ZeRO): 0 nothing, 1 the optimiser's state, 2 gradients, too, which leave the backward
            split in either case, 3 parameters, too.
        zero_axis: that mesh axis, or several of them.
        accumulate: into how many micro-batches a batch is cut, one after another; gradients are
            summed, and are those of the whole batch. Devices exchange them once.
        options: those of `compile`; `inference` and `donate` are not among them.

    Raises:
        OptionError: an option is unknown, or the optimiser is none.
        GraphError: there is no such output, or it is no scalar of floats.
        MeshError: the mesh has no axis `zero_axis`.

    >>> import mithril as ml
    >>> model = ml.Model()
    >>> model |= ml.Linear(1, name="line")(input="x", output="y")
    >>> model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    >>> step = ml.train_step(
    ...     model, ml.NumpyBackend(), ml.optim.sgd(0.1), shapes={"x": (4, 2), "t": (4, 1)}
    ... )
    >>> state = step.init(seed=0)
    >>> batch = {"x": np.ones((4, 2), np.float32), "t": np.ones((4, 1), np.float32)}
    >>> state, metrics = step(state, batch)
    >>> list(metrics), state.step.item()
    (['loss', 'gradient_norm', 'learning_rate'], 1)
    """
    for name in ("inference", "donate", "differentiable", "outputs"):
        if name in options:
            raise OptionError(f"option '{name}' makes no sense for train_step(); leave it out")
    if zero not in STAGES or isinstance(zero, bool):
        raise OptionError(f"zero={zero!r} is no stage of ZeRO; give 0, 1, 2 or 3")
    if isinstance(shapes, Mapping):  # batches of the host go where the plan was made for them
        specs = {n: x.sharding for n, x in shapes.items() if isinstance(x, TensorSpec)}
        said = {name: spec for name, spec in specs.items() if spec is not None}
        options.setdefault("in_shardings", said)
    # How parameters are computed with is chosen for the model alone; ZeRO splits them further.
    compiled = compile(model, backend, **options)
    compiled = compiled.accumulating(_check_accumulate(accumulate, compiled))
    if zero:
        compiled.plan_for(shapes, gradients=True)
    axes = (zero_axis,) if isinstance(zero_axis, str) else tuple(zero_axis)
    for axis in axes if zero else ():
        _check_axis(axis, backend.mesh)
    return TrainStep(compiled, check_optimizer(optimizer), loss, shapes, zero, axes)


class TrainStep:
    """A step of training; made by `train_step`."""

    def __init__(
        self,
        compiled: CompiledModel,
        optimizer: Optimizer,
        loss: str,
        shapes: Mapping[str, object],
        zero: int,
        axes: tuple[str, ...],
    ) -> None:
        self.compiled = compiled
        self.backend: Backend = compiled.backend
        self._optimizer = optimizer
        self._loss = _check_loss(loss, compiled)
        self._zero, self._axes = zero, axes
        self._bindings: Bindings[None, StepSource] = Bindings(KEPT)
        self._latest = self._bind(compiled.read_kinds(shapes))

    # ------------------------------------------------------------------ what the plan tells

    @property
    def plan(self) -> Plan:
        """The plan of the batches that came last."""
        return self._latest.plan

    def explain(self, tensor: str | None = None) -> str:
        """Return why each collective is there; see `CompiledModel.explain`."""
        return explain(self.plan, tensor)

    def memory(self) -> PlanMemory:
        """Return what each device holds while a step runs."""
        interface = self._latest.interface
        memory: PlanMemory = self.plan.memory(
            donated=[interface.arguments[i] for i in interface.donated]
        )
        return memory

    @property
    def shardings(self) -> dict[str, Sharding]:
        """How each array of the state lies, by name."""
        source = self._latest.interface.source
        return {n: self._latest.ports[n].sharding for n in (*source.kept, *source.passed)}

    # ------------------------------------------------------------------ running

    @checked_keywords()
    def init(self, seed: int = 0, params: Mapping[str, object] | None = None) -> TrainState:
        """Return the state before the first step.

        Args:
            seed: decides the initial parameters and the random numbers of all steps.
            params: parameters to begin with, by name; by default they are drawn.

        Raises:
            GraphError: a parameter is missing, or unknown.
        """
        seed, bound = read_seed(seed), self._latest
        arrays = self._make_parameters(seed, params, bound)
        optimizer = self._make_state(arrays, bound)
        step = self._place_number(np.asarray(0, np.int32))
        return TrainState(
            arrays, optimizer, {}, step, self._place_number(np.asarray(seed, np.uint32))
        )

    def __call__(
        self, state: TrainState, batch: Mapping[str, object]
    ) -> tuple[TrainState, Metrics]:
        """Make one step.

        Args:
            state: of `init`, or of the step before; it cannot be used afterwards.
            batch: one array per input of the model.

        Returns:
            The next state, and metrics: scalars by name, fetched when they are read.

        Raises:
            GraphError: the state is of another model or optimiser, or an input is missing.
            BackendError: the state was given to a step before.
        """
        inputs = self.compiled.convert_inputs(batch)
        bound = self._find(inputs)
        source = bound.interface.source
        arrays = [*inputs, *self._flatten(state, bound), *source.captured.held]
        made = bound.run(bound.settle(arrays))
        after = dict(zip(bound.interface.results, made, strict=True))
        return self._next(state, after, source), Metrics(
            {name: after[output] for name, output in source.metrics.items()}
        )

    # ------------------------------------------------------------------ state

    def _place_number(self, number: np.ndarray) -> Array:
        """Return a number of NumPy as an array that every device has."""
        type = TensorType((), as_dtype(number.dtype))
        return self.backend.place(type, Sharding.replicated(self.backend.mesh, 0), lambda _: number)

    def _make_parameters(
        self, seed: int, given: Mapping[str, object] | None, bound: Bound[StepSource]
    ) -> Parameters:
        initializers = bound.interface.source.traced.initializers
        wanted = self.compiled.parameters
        if given is not None:
            arrays = self.compiled.convert_parameters(given)
            kept = [bound.ports[name].sharding for name in wanted]
            return Parameters(zip(wanted, settle(arrays, kept), strict=True))
        return Parameters(
            (
                name,
                initial_array(
                    self.backend, name, (port := bound.ports[name]).type, initializers[name],
                    port.sharding, seed, is_placed=bound.interface.is_placed,
                ),
            )
            for name in wanted
        )  # fmt: skip

    def _make_state(self, params: Parameters, bound: Bound[StepSource]) -> Any:
        """Return what the optimiser keeps at first, made where it lies."""
        state = bound.interface.source.state
        used = [value.name for value in state.graph.inputs]
        layouts = {name: Layout(bound.ports[name].sharding) for name in used}
        layouts |= {name: Layout(leaves=bound.ports[name].sharding) for name in state.types}
        interface = Interface("init()", self.backend, None, tuple(used), tuple(state.types))
        made = bind(self.compiled.engine, state.graph, Request(layouts), interface)
        return state.rebuild(made.run(made.settle([params[name] for name in used])))

    def _flatten(self, state: TrainState, bound: Bound[StepSource]) -> list[Array]:
        """Return the arrays of a state in the order of the arguments.

        Raises:
            GraphError: it is none of this step.
        """
        source = bound.interface.source
        if not isinstance(state, TrainState):
            raise GraphError(
                f"step is called with {kind_of(state)} as its state; give what step.init() or the "
                f"step before returned"
            )
        found: dict[str, Array] = dict(state.params)
        leaves: list[Any] = []
        structure = flatten(state.optimizer, leaves)
        found |= dict(zip(names(structure, OPTIMIZER), leaves, strict=True))
        found |= {STEP: state.step, SEED: state.seed}
        wanted = (*source.kept, *source.passed)
        missing = [name for name in wanted if name not in found]
        unknown = [name for name in found if name not in wanted and name != SEED]
        if missing or unknown:
            name = (missing or unknown)[0]
            lacks = "lacks" if missing else "has"
            raise GraphError(
                f"state {lacks} '{name}'{nearest(name, unknown if missing else wanted)}, and this "
                f"step {'keeps' if missing else 'does not keep'} it; it is the state of another "
                f"model or optimiser; make one with step.init()"
            )
        return [found[name] for name in wanted]

    def _next(
        self, before: TrainState, made: Mapping[str, Array], source: StepSource
    ) -> TrainState:
        params = Parameters(
            (name, made.get(f"{NEXT}{name}", x)) for name, x in before.params.items()
        )
        leaves = [made[f"{NEXT}{name}"] for name in source.state.types]
        return TrainState(
            params,
            source.state.rebuild(leaves),
            {},
            made[f"{NEXT}{STEP}"],
            made.get(f"{NEXT}{SEED}", before.seed),
        )

    # ------------------------------------------------------------------ planning

    def _find(self, inputs: Sequence[Array]) -> Bound[StepSource]:
        known = self._bindings.of_last_said(None, inputs)
        if known is None:
            kinds = [x.kind.said for x in inputs]
            known = self._bindings.find(None, kinds) or self._bind([x.kind for x in inputs])
            self._bindings.remember(None, inputs, known)
        return known

    def _bind(self, kinds: Sequence[Kind]) -> Bound[StepSource]:
        """Return the step for batches of some kinds, planned."""
        said = [kind.said for kind in kinds]
        asked = self.compiled.ask((self._loss,), kinds)
        traced = asked.traced
        trainable = _list_types(traced, asked.request.differentiated)
        _check_scalar(self._loss, traced)
        state = trace_state(self.backend, self._optimizer, trainable)
        wanted = (GRADIENT_NORM, LEARNING_RATE)
        update = trace_update(
            self.backend, self._optimizer, trainable, state, wanted, traced.uses_seed
        )
        source, interface = self._interface(asked, update, state)
        request = replace(
            asked.request,
            layouts=self._lay_out(asked.request.layouts, trainable, state, update),
            update=Update(update, self._loss),
            donated=frozenset(source.kept),
        )
        bound = bind(
            self.compiled.engine, traced.graph, request, interface, self.compiled.settings.plan
        )
        self._bindings.keep(None, said, bound)
        self._latest = bound
        return bound

    def _interface(
        self, asked: Asked, update: Any, state: OptimizerState
    ) -> tuple[StepSource, Interface[StepSource]]:
        traced = asked.traced
        kept = [name.removeprefix(NEXT) for name in update.outputs if name.startswith(NEXT)]
        passed = tuple(name for name in self.compiled.parameters if name not in kept)
        metrics = {
            name: name for name, value in traced.graph.outputs.items() if not value.type.shape
        }
        metrics = {self._loss: self._loss, **metrics}
        told = [name for name in update.outputs if name.startswith(METRIC)]
        metrics |= {name.removeprefix(METRIC): name for name in told}
        source = StepSource(traced, Captured(traced.captured), state, tuple(kept), passed, metrics)
        arguments = (*self.compiled.inputs, *kept, *passed)
        hidden = tuple(item.name for item in traced.captured)
        results = (*(f"{NEXT}{name}" for name in kept), *metrics.values())
        made = Interface(
            "step()", self.backend, source, (*arguments, *hidden), tuple(dict.fromkeys(results)),
            is_placed=asked.interface.is_placed,
        )  # fmt: skip
        return source, made.donating(kept)

    def _lay_out(
        self,
        said: Mapping[str, Layout],
        parameters: Mapping[str, TensorType],
        state: OptimizerState,
        update: Any,
    ) -> dict[str, Layout]:
        """Return how everything lies: what is kept leaves as it arrives."""
        mesh = self.backend.mesh
        found = {
            name: layout for name, layout in said.items() if name != cotangent_name(self._loss)
        }
        homes: dict[str, Sharding] = {}
        for name, type in parameters.items():
            layout = found.get(name, UNSAID)
            if self._zero and mesh.size > 1:
                found[name], homes[name] = self._split(layout, type, mesh)
            elif not layout.is_free or layout.rests or layout.computed:
                homes[name] = layout.arrival(mesh, len(type.shape))
        for name, type in state.types.items():
            owner = find_parameter(name, type, parameters)
            whole = Sharding.replicated(mesh, len(type.shape))
            home = homes.get(owner) if owner is not None else whole
            found[name] = Layout(FREE if home is None else home, decided_by="the optimiser's state")
        for name in (STEP, SEED):
            found[name] = Layout(Sharding.replicated(mesh, 0))
        kept = (name for name in update.outputs if name.startswith(NEXT))
        return found | {name: Layout(follows=name.removeprefix(NEXT)) for name in kept}

    def _split(self, layout: Layout, type: TensorType, mesh: Mesh) -> tuple[Layout, Sharding]:
        """Return the layout of a parameter under ZeRO, and how what belongs to it lies."""
        rank = len(type.shape)
        computed = layout.computed or layout.existing or Sharding.replicated(mesh, rank)
        home = layout.rests or split_further(computed, self._axes, type.shape)
        if self._zero < 3 or home == computed:
            return replace(layout, arrives=layout.existing or computed), home
        who = layout.decided_by or f"zero={self._zero}"
        return replace(layout, arrives=None, computed=computed, rests=home, decided_by=who), home


def _check_accumulate(count: object, compiled: CompiledModel) -> int:
    number = to_python(count)
    if type(number) is not int or number < 1:
        raise OptionError(f"accumulate={count!r} is no number of micro-batches; give 1 or more")
    if number > 1 and compiled.is_staged:
        raise OptionError(
            f"accumulate={number} is given for a model with stages or placed layers; a pipeline "
            f"accumulates over its micro-batches: say PipelineOptions(microbatch_size=…)"
        )
    return number


def _check_axis(axis: object, mesh: Mesh) -> None:
    if axis not in mesh.names:
        raise MeshError(f"zero_axis: {mesh.lacking(str(axis))}")


def _list_types(traced: Traced, wanted: Sequence[str]) -> dict[str, TensorType]:
    return {name: traced.graph.input(name).type for name in wanted}


def _check_loss(loss: object, compiled: CompiledModel) -> str:
    if loss not in compiled.outputs:
        raise GraphError(
            f"train_step() minimises output {loss!r}, which the model does not have"
            f"{nearest(str(loss), compiled.outputs)}; outputs: {listing(compiled.outputs)}; "
            f"say which by loss="
        )
    return str(loss)


def _check_scalar(loss: str, traced: Traced) -> None:
    type = traced.graph.outputs[loss].type
    if type.shape or not type.dtype.is_float:
        raise GraphError(
            f"train_step() minimises '{loss}', which is {type}; give a scalar of floats, such as "
            f"what a loss returns"
        )


__all__ = ["TrainStep", "train_step"]
