"""train_step: forward, backward, and the optimiser's update as one plan.

The update is appended to the joint graph before anything is laid out, so that it is partitioned,
priced and explained like the rest, and a step is one program on every device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from mithril.compiler import Request
from mithril.compiler.options import COMPILE_LATER, refuse_later, refuse_of_other
from mithril.cost import PlanMemory
from mithril.errors import (
    BackendError,
    GraphError,
    OptionError,
    ShapeError,
    kind_of,
    listing,
    nearest,
)
from mithril.keywords import checked_keywords, list_argument_names, refuse_unknown
from mithril.mesh import Sharding, onto
from mithril.models import Layer, Model
from mithril.models.trace_context import SEED
from mithril.optim import check_learning_rates
from mithril.options import check_choice
from mithril.plan import Plan, Port
from mithril.plan.names import next_of
from mithril.report import explain
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend
from mithril.runtime.call import Bindings, Bound, Interface, bind
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.compiling import compile
from mithril.runtime.offload_options import read_state_arena
from mithril.runtime.parameters import Parameters, initial_array
from mithril.runtime.sampling import read_seed
from mithril.runtime.specification import TensorSpec
from mithril.runtime.submesh import move_to
from mithril.runtime.training.loss_scale import TYPES, LossScale, read_loss_scale
from mithril.runtime.training.optimizer import (
    OPTIMIZER,
    STEP,
    Optimizer,
    check_optimizer,
)
from mithril.runtime.training.planner import METRICS, StepPlanner, StepSource
from mithril.runtime.training.state import Metrics, TrainState
from mithril.runtime.unplaced import settle
from mithril.runtime.zero import read_zero
from mithril.sharding import Layout
from mithril.trees import flatten, names
from mithril.types import TensorType, as_dtype

OF_MODELS_ALONE = dict.fromkeys(
    ("inference", "donate", "differentiable", "outputs", "out_shardings"), "leave it out"
)
"""Options of compile that make no sense for a step."""

KEPT = 64
"""How many plans a step keeps."""


@checked_keywords()
def train_step(
    model: Model | Layer,
    backend: Backend,
    optimizer: Optimizer,
    *,
    loss: str = "loss",
    shapes: Mapping[str, object],
    zero: int | None = None,
    zero_axis: str | Sequence[str] | None = None,
    loss_scale: float | str | None = None,
    metrics: Collection[str] = METRICS,
    offload_optimizer: bool = False,
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
            (ZeRO): 0 nothing, 1 the optimiser's state, 2 gradients, too, which are then split in
            each micro-batch, not when they are summed over all, 3 parameters, too. By default what
            `fsdp_config` of the backend says, or 0.
        zero_axis: that mesh axis, or several of them; `data` by default.
        loss_scale: a number that the loss is multiplied with for the backward, so that gradients of
            float16 do not vanish, or `dynamic`: a step whose gradients overflow is left out and
            counted, and the scale is halved; it is doubled after 2000 others.
        metrics: which of `gradient_norm` and `learning_rate` a step tells besides the scalars of
            the model; a norm reads all gradients once more.
        offload_optimizer: keep the optimiser's state in the host arena between steps (where that
            lies says `host_arena`); each part of it is on the device while it is updated.
        options: those of `compile`; `inference` and `donate` are not among them.

    Raises:
        OptionError: an option is unknown, or the optimiser is none.
        GraphError: there is no such output, or it is no scalar of floats.
        MeshError: the mesh has no axis `zero_axis`.
        PlanError: devices have too little memory, or there is nothing to offload.

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
    _refuse_options(options)
    if not isinstance(backend, Backend):
        raise BackendError(
            f"train_step() takes a backend, not {backend!r}; open one, such as ml.NumpyBackend()"
        )
    zero = backend.parallelism.zero if zero is None else zero
    stage, scale = read_zero(zero, zero_axis, backend.mesh), read_loss_scale(loss_scale)
    if isinstance(shapes, Mapping):  # batches of the host go where the plan was made for them
        specs = {n: x.sharding for n, x in shapes.items() if isinstance(x, TensorSpec)}
        said = {name: spec for name, spec in specs.items() if spec is not None}
        options.setdefault("in_shardings", said)
    arena = read_state_arena(offload_optimizer, options, backend)
    compiled = compile(model, backend, zero=0, **options)
    plan_options = compiled.settings.plan
    compiled = compiled.keeping_all()  # a memory budget is that of the step
    kinds = compiled.read_kinds(shapes)
    asked = compiled.ask((), kinds)
    if stage.stage or asked.cuts_loops:
        # How parameters are computed with, or on which stages, is chosen for the model alone.
        compiled.plan_for(shapes, gradients=True)
    if stage.stage == 3:  # the model knows it, too: a state's parameters are evaluated as they lie
        compiled = compiled.resting(stage, kinds)
        if asked.has_stages:  # on which of them each rests
            compiled.plan_for(shapes, gradients=True)
    given = dict(zip(compiled.inputs, kinds, strict=True))
    planner = StepPlanner(
        compiled, check_optimizer(optimizer), loss, given, stage, scale, plan_options, arena,
        _read_metrics(metrics),
    )  # fmt: skip
    return TrainStep(compiled, planner, scale)


def _read_metrics(metrics: Collection[str]) -> tuple[str, ...]:
    if not isinstance(metrics, Collection):
        raise OptionError(f"metrics={metrics!r} names none; give some of {listing(METRICS)}, or ()")
    given = [metrics] if isinstance(metrics, str) else list(metrics)
    for name in given:
        check_choice("metrics", name, METRICS)
    return tuple(name for name in METRICS if name in given)


def _refuse_options(options: Mapping[str, object]) -> None:
    refuse_later("train_step()", options, COMPILE_LATER)
    refuse_of_other("train_step()", options, OF_MODELS_ALONE)
    own = [name for name in list_argument_names(train_step) if name != "options"]
    handed_on = [
        name for name in list_argument_names(compile) if name not in {*own, *OF_MODELS_ALONE}
    ]
    refuse_unknown("train_step()", options, own + handed_on)


class TrainStep:
    """A step of training; made by `train_step`."""

    def __init__(
        self,
        compiled: CompiledModel,
        planner: StepPlanner,
        loss_scale: LossScale | None,
    ) -> None:
        self.compiled = compiled
        self.backend: Backend = compiled.backend
        self.inputs = planner.inputs
        self._planner, self._scale = planner, loss_scale
        self._bindings: Bindings[None, StepSource] = Bindings(KEPT)
        self._latest = planner.bind(planner.first)
        self._bindings.keep(None, [kind.said for kind in planner.first], self._latest)

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
            OptionError: the optimiser starts with a learning rate that is NaN or negative.
        """
        seed, bound = read_seed(seed), self._latest
        arrays = self._make_parameters(seed, params, bound)
        optimizer = self._make_state(arrays, bound)
        check_learning_rates(optimizer)
        step = self._place_number(np.asarray(0, np.int32))
        starts = self._planner.statistics.values()
        statistics = {port: self._fill(bound.ports[port], start) for port, start in starts}
        key = self._place_number(np.asarray(seed, np.uint32))
        start = self._scale.make_start() if self._scale else {}
        scale = {
            name: self._place_number(np.asarray(number, TYPES[name].dtype.numpy))
            for name, number in start.items()
        }
        return TrainState(arrays, optimizer, statistics, step, key, scale)

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
        inputs = self.compiled.convert_inputs(batch, self.inputs)
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

    def _fill(self, port: Port, start: float) -> Array:
        """Return what running statistics begin with."""
        values = np.full(port.type.shape, start, port.type.dtype.numpy)
        return self.backend.place(port.type, port.sharding, lambda box: values[box])

    def _make_parameters(
        self, seed: int, given: Mapping[str, object] | None, bound: Bound[StepSource]
    ) -> Parameters:
        initializers = bound.interface.source.traced.initializers
        wanted = self.compiled.parameters
        if given is not None:
            arrays = self.compiled.convert_parameters(given)
            _check_types("params", wanted, arrays, bound)
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
        state, mesh = bound.interface.source.state, self.backend.mesh
        used = [value.name for value in state.graph.inputs]
        # What a stage has is made on all devices: which of them it is for matters to plans alone.
        lies = {n: onto(bound.ports[n].sharding, mesh) for n in (*used, *state.types)}
        layouts = {name: Layout(lies[name]) for name in used}
        layouts |= {name: Layout(leaves=lies[name]) for name in state.types}
        interface = Interface("init()", self.backend, None, tuple(used), tuple(state.types))
        request = Request(layouts, on_host=self._planner.list_on_host(state))
        options = self._planner.plan_options
        made = bind(self.compiled.engine, state.graph, request, interface, options)
        arrays = made.run([move_to(params[name], lies[name]) for name in used])
        wanted = (bound.ports[name].sharding for name in state.types)
        return state.rebuild(_separate(list(map(move_to, arrays, wanted))))

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
        found |= {**state.statistics, **state.loss_scale, STEP: state.step, SEED: state.seed}
        wanted = (*source.kept, *source.passed)
        missing = [name for name in wanted if name not in found]
        unknown = [name for name in found if name not in wanted and name != SEED]
        if missing or unknown:
            what = f"lacks '{missing[0]}', which" if missing else f"has '{unknown[0]}', which"
            near = nearest(missing[0], unknown) if missing else ""
            raise GraphError(
                f"state {what} this step {'keeps' if missing else 'does not keep'}{near}; it is "
                f"the state of another model or optimiser; make one with step.init()"
            )
        arrays = [self.backend.own(found[name], f"'{name}' of the state") for name in wanted]
        _check_types("state", wanted, arrays, bound)
        # A state that was loaded, or placed by hand, is brought to where the plan has it.
        lies = (bound.ports[name].sharding for name in wanted)
        return [
            x if x.sharding == s else self.backend.lay_out(x, s)
            for x, s in zip(arrays, lies, strict=True)
        ]

    def _next(
        self, before: TrainState, made: Mapping[str, Array], source: StepSource
    ) -> TrainState:
        params = Parameters((name, made.get(next_of(name), x)) for name, x in before.params.items())
        leaves = [made[next_of(name)] for name in source.state.types]
        return TrainState(
            params,
            source.state.rebuild(leaves),
            {port: made[next_of(port)] for port in before.statistics},
            made[next_of(STEP)],
            made.get(next_of(SEED), before.seed),
            {name: made[next_of(name)] for name in before.loss_scale},
        )

    def _find(self, inputs: Sequence[Array]) -> Bound[StepSource]:
        """Return the step for a batch, planned if need be."""
        known = self._bindings.of_last_said(None, inputs)
        if known is None:
            kinds = [x.kind.said for x in inputs]
            known = self._bindings.find(None, kinds)
            if known is None:
                known = self._planner.bind([x.kind for x in inputs])
                self._bindings.keep(None, kinds, known)
            self._bindings.remember(None, inputs, known)
            self._latest = known
        return known


def _check_types(
    what: str, names: Sequence[str], arrays: Sequence[Array], bound: Bound[StepSource]
) -> None:
    for name, x in zip(names, arrays, strict=True):
        expected = bound.ports[name].type
        if x.type != expected:
            raise ShapeError(
                f"{what} has '{name}' as {x.type}; with these inputs the step needs {expected}; "
                f"pass inputs of the size that the state was made for, or make another step"
            )


def _separate(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays no two of which are one in memory: each is given up for itself."""
    seen: set[int] = set()
    found = []
    for x in arrays:
        found.append(deepcopy(x) if id(x.shards) in seen else x)
        seen.add(id(x.shards))
    return found


__all__ = ["TrainStep", "train_step"]
