"""train_step: forward, backward, and the optimiser's update as one plan.

The update is appended to the joint graph before anything is laid out, so that it is partitioned,
priced and explained like the rest, and a step is one program on every device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mithril.compiler import Request
from mithril.cost import PlanMemory
from mithril.errors import GraphError, ShapeError, kind_of
from mithril.keywords import checked_keywords
from mithril.mesh import Box, Sharding, onto
from mithril.optim import check_learning_rates
from mithril.plan import Plan, Port
from mithril.plan.names import FACTOR
from mithril.report import explain
from mithril.runtime.array import Array, Kind
from mithril.runtime.backend import Backend
from mithril.runtime.bindings import Bindings
from mithril.runtime.call import Bound, Interface, bind
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.interrupts import hold_interrupts
from mithril.runtime.lru import LRUCache
from mithril.runtime.parameters import Parameters, initial_array
from mithril.runtime.sampling import Key, read_seed
from mithril.runtime.submesh import move_to
from mithril.runtime.training.loss_scale import TYPES, LossScale
from mithril.runtime.training.planner import StepPlanner, StepSource
from mithril.runtime.training.state import Metrics, TrainState
from mithril.runtime.training.state_form import StateForm, learn_form
from mithril.runtime.training.step_count import Warmup
from mithril.runtime.unplaced import HostArray, settle
from mithril.sharding import Layout
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
        self._keep_first(planner.bind(planner.first))
        self._forms: LRUCache[Bound[StepSource], StateForm] = LRUCache(KEPT)
        self._warmup = Warmup(planner.warmups)

    def _keep_first(self, bound: Bound[StepSource]) -> None:
        """Have a step for the batches that were said at first."""
        self._latest = bound
        self._bindings.keep(None, self._say(self._planner.first), bound)

    def _say(self, kinds: Sequence[Kind]) -> list[Kind]:
        """Return what is said of inputs; those that lie where all others would are unplaced."""
        said = [kind.said for kind in kinds]
        return self.compiled.input_shardings.unplace_defaults(self.inputs, said)

    def add_note(self, note: str) -> None:
        """Have readers of the plans told something more, before the first step."""
        self._planner, plan = self._planner.with_note(note), self._latest.plan
        plan = replace(plan, notes=(*plan.notes, note))
        self._keep_first(replace(self._latest, plan=plan))

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
            params: parameters to begin with, by name, which are copied where steps change them; by
                default they are drawn.

        Raises:
            GraphError: a parameter is missing, or unknown.
            ShapeError: a parameter has another type than the step takes.
            OptionError: the seed is none, or the optimiser starts with a learning rate that is NaN,
                infinite or negative.
        """
        seed, bound = read_seed(seed), self._latest
        arrays = self._make_parameters(seed, params, bound)
        optimizer = self._make_state(arrays, bound)
        check_learning_rates(optimizer, arrays)
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
            ShapeError: an id or a target in host memory is out of range; the state is not given up.
            BackendError: the state was given to a step before.
        """
        inputs = self.compiled.convert_inputs(batch, self.inputs)
        step = _check_state(state).step
        warmup = self._warmup.find(step)
        bound = self._find(inputs, warmup)
        self._planner.check_indices(bound.interface.source, batch)
        form, arrays = self._take(state, bound, is_warmup=warmup is not None)
        kept, held = form.take(arrays), bound.interface.source.captured.held
        # Batches and captured arrays may lie anywhere; a state lies as it is taken.
        others = [*range(len(inputs)), *range(len(inputs) + len(kept), len(bound.settled))]
        given = bound.settle([*inputs, *kept, *held], others)
        return hold_interrupts(True, self._run, bound, given, form, arrays, step)

    def _run(
        self,
        bound: Bound[StepSource],
        given: list[Array],
        form: StateForm,
        arrays: list[Array],
        step: Array,
    ) -> tuple[TrainState, Metrics]:
        made = bound.run(given)
        if bound.plan.only_stage is None:  # stages return one value once, whatever its name
            made = _separate(made)
        following, metrics = form.make_next(made, arrays)
        self._warmup.count(step, following.step)
        return following, metrics

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
            drawn = Key(seed, name).normal(bound.ports[name].type.shape[-3:], box[-3:])
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
            return self._own_parameters(given, bound)
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

    def _own_parameters(self, given: Mapping[str, object], bound: Bound[StepSource]) -> Parameters:
        """Return parameters that are given, as copies where steps will give them up.

        Putting values of the host on devices makes copies already, but for numbers: one array may
        stand for all that are equal.
        """
        wanted, given_up = self.compiled.parameters, bound.interface.source.kept
        arrays = self.compiled.convert_parameters(given)
        for name, x in zip(wanted, arrays, strict=True):
            _check_type("params", name, x, bound)
        copied = {
            name
            for name, x in zip(wanted, arrays, strict=True)
            if name in given_up and not (isinstance(x, HostArray) and x.ndim)
        }
        settled = settle(arrays, [bound.ports[name].sharding for name in wanted])
        found = zip(wanted, settled, strict=True)
        return Parameters((name, _copy(x) if name in copied else x) for name, x in found)

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

    def _take(
        self, state: TrainState, bound: Bound[StepSource], *, is_warmup: bool
    ) -> tuple[StateForm, list[Array]]:
        """Return the form of a state, and its arrays as the plan takes them.

        Raises:
            GraphError: it is none of this step.
        """
        form = self._forms.get(bound)
        arrays = None if form is None else form.collect(state)
        if form is None or arrays is None:
            source, results, own = bound.interface.source, bound.interface.results, self.backend.own
            form, arrays = learn_form(state, source, results, own, is_warmup=is_warmup)
            for name, place in form.places.items():
                x = arrays[place]
                _check_type("state", name, x, bound)
                # A state that was loaded, or placed by hand, is brought to where the plan has it.
                lies = bound.ports[name].sharding
                arrays[place] = x if x.sharding == lies else self.backend.lay_out(x, lies)
            # What the plan does not take, such as a seed that nobody draws with, may be anything.
            form.kinds[:] = [getattr(x, "kind", None) for x in arrays]
            self._forms.put(bound, form)
        return form, arrays

    def _find(self, inputs: Sequence[Array], warmup: int | None) -> Bound[StepSource]:
        """Return the step for a batch, planned if need be."""
        _, known, _ = self._bindings.of_last_said(warmup, inputs, lambda _: list(inputs))
        if known is None:
            kinds = self._say([x.kind for x in inputs])
            known = self._bindings.find(warmup, kinds)
            if known is None:
                placed = self.compiled.input_shardings.place(self.inputs, [x.kind for x in inputs])
                known = self._planner.bind(placed, warmup)
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


def _check_type(what: str, name: str, x: Array, bound: Bound[StepSource]) -> None:
    expected = bound.ports[name].type
    if x.type != expected:
        raise ShapeError(
            f"{what} has '{name}' as {x.type}; with these inputs the step needs {expected}; "
            f"pass inputs of the size that the state was made for, or make another step"
        )


def _copy(x: Array) -> Array:
    """Return a copy; what lies in other processes alone has no memory here."""
    return x if x.shards is None else deepcopy(x)


def _separate(arrays: Sequence[Array]) -> list[Array]:
    """Return arrays no two of which are one in memory: each is given up for itself.

    Those of other processes' stages have no memory here.
    """
    seen: set[int] = set()
    found = []
    for x in arrays:
        is_shared = id(x.shards) in seen
        found.append(_copy(x) if is_shared else x)
        seen.add(id(x.shards))
    return found


__all__ = ["TrainStep"]
