"""train_step: forward, backward, and the optimiser's update as one plan.

The update is appended to the joint graph before anything is laid out, so that it is partitioned,
priced and explained like the rest, and a step is one program on every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np

from mithril.compiler import Request
from mithril.cost import PlanMemory
from mithril.errors import (
    GraphError,
    ShapeError,
    kind_of,
    nearest,
)
from mithril.keywords import checked_keywords
from mithril.mesh import Box, Sharding, onto
from mithril.models.trace_context import SEED
from mithril.optim import check_learning_rates
from mithril.plan import Plan, Port
from mithril.plan.names import FACTOR, next_of
from mithril.report import explain
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend
from mithril.runtime.call import Bindings, Bound, Interface, bind
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.parameters import Parameters, initial_array
from mithril.runtime.sampling import Key, read_seed
from mithril.runtime.submesh import move_to
from mithril.runtime.training.loss_scale import TYPES, LossScale
from mithril.runtime.training.optimizer import (
    OPTIMIZER,
    STEP,
)
from mithril.runtime.training.planner import StepPlanner, StepSource
from mithril.runtime.training.state import Metrics, TrainState
from mithril.runtime.training.step_count import Warmup
from mithril.runtime.unplaced import settle
from mithril.sharding import Layout
from mithril.trees import flatten, names
from mithril.types import TensorType, as_dtype

KEPT = 64
"""How many plans a step keeps."""


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
        self._bindings: Bindings[int | None, StepSource] = Bindings(KEPT)
        self._latest = planner.bind(planner.first)
        self._bindings.keep(None, [kind.said for kind in planner.first], self._latest)
        self._warmup = Warmup(planner.warmups)

    # ------------------------------------------------------------------ what the plan tells

    @property
    def plan(self) -> Plan:
        """The plan of the batches that came last, after warm-up."""
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
        kept = self._make_compression(seed, bound)
        return TrainState(arrays, optimizer, statistics, step, key, scale, kept)

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
        step = _check_state(state).step
        warmup = self._warmup.find(step)
        bound = self._find(inputs, warmup)
        source = bound.interface.source
        arrays = [*inputs, *self._flatten(state, bound, warmup), *source.captured.held]
        made = bound.run(bound.settle(arrays))
        after = dict(zip(bound.interface.results, made, strict=True))
        following = self._next(state, after, source)
        self._warmup.count(step, following.step)
        return following, Metrics({name: after[output] for name, output in source.metrics.items()})

    # ------------------------------------------------------------------ state

    def _place_number(self, number: np.ndarray) -> Array:
        """Return a number of NumPy as an array that every device has."""
        type = TensorType((), as_dtype(number.dtype))
        return self.backend.place(type, Sharding.replicated(self.backend.mesh, 0), lambda _: number)

    def _fill(self, port: Port, start: float) -> Array:
        """Return what running statistics begin with."""
        values = np.full(port.type.shape, start, port.type.dtype.numpy)
        return self.backend.place(port.type, port.sharding, lambda box: values[box])

    def _make_compression(self, seed: int, bound: Bound[StepSource]) -> dict[str, Array]:
        """Return what compression keeps at first: nothing is lost yet, factors are drawn."""

        def make(name: str, box: Box) -> np.ndarray:
            sizes = tuple(part.stop - part.start for part in box)
            if not name.startswith(FACTOR):
                return np.zeros(sizes, np.float32)
            drawn = Key(seed, name).normal(bound.ports[name].type.shape[1:], box[1:])
            return np.broadcast_to(drawn, sizes)  # the same for all devices

        ports = (bound.ports[name] for name in bound.interface.source.compression)
        return {
            port.name: self.backend.place(port.type, port.sharding, partial(make, port.name))
            for port in ports
        }

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

    def _flatten(
        self, state: TrainState, bound: Bound[StepSource], warmup: int | None
    ) -> list[Array]:
        """Return the arrays of a state in the order of the arguments.

        Raises:
            GraphError: it is none of this step.
        """
        source = bound.interface.source
        found: dict[str, Array] = dict(state.params)
        leaves: list[Any] = []
        structure = flatten(state.optimizer, leaves)
        found |= dict(zip(names(structure, OPTIMIZER), leaves, strict=True))
        found |= {**state.statistics, **state.loss_scale, STEP: state.step, SEED: state.seed}
        wanted = (*source.kept, *source.passed)
        kept = state.compression
        found |= kept if warmup is None else {n: kept[n] for n in source.compression if n in kept}
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
            {name: made.get(next_of(name), x) for name, x in before.compression.items()},
        )

    def _find(self, inputs: Sequence[Array], warmup: int | None) -> Bound[StepSource]:
        """Return the step for a batch, planned if need be."""
        _, known, _ = self._bindings.of_last_said(warmup, inputs, lambda _: list(inputs))
        if known is None:
            kinds = [x.kind.said for x in inputs]
            known = self._bindings.find(warmup, kinds)
            if known is None:
                known = self._planner.bind([x.kind for x in inputs], warmup)
                self._bindings.keep(warmup, kinds, known)
            self._bindings.remember(warmup, inputs, known)
            if warmup is None:
                self._latest = known
        return known


def _check_state(state: object) -> TrainState:
    if not isinstance(state, TrainState):
        raise GraphError(
            f"step is called with {kind_of(state)} as its state; give what step.init() or the "
            f"step before returned"
        )
    return state


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
    """Return arrays no two of which are one in memory: each is given up for itself.

    Those of other processes' stages have no memory here.
    """
    seen: set[int] = set()
    found = []
    for x in arrays:
        is_shared = x.shards is not None and id(x.shards) in seen
        found.append(deepcopy(x) if is_shared else x)
        seen.add(id(x.shards))
    return found


__all__ = ["TrainStep"]
