"""Plans a train step: the model's own request, its update, and how what is kept lies."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from mithril.compiler import PlanOptions
from mithril.errors import GraphError, PlanError, listing, nearest
from mithril.ir import Graph
from mithril.mesh import Sharding
from mithril.models.trace import Traced
from mithril.models.trace_context import SEED
from mithril.optim import match_parameters
from mithril.partition.replicas import Replicas
from mithril.plan.names import NEXT, is_of_compression, next_of
from mithril.runtime.array import Kind
from mithril.runtime.asked import Asked
from mithril.runtime.call import Bound, Interface, bind
from mithril.runtime.capture import Captured
from mithril.runtime.compiled import CompiledModel
from mithril.runtime.host_indices import IndexUse, check_host_indices
from mithril.runtime.training.loss_scale import SCALE, TYPES, LossScale
from mithril.runtime.training.optimizer import (
    GRADIENT_NORM,
    LEARNING_RATE,
    METRIC,
    STEP,
    Optimizer,
    OptimizerState,
    trace_state,
    trace_update,
)
from mithril.runtime.training.replicas import cut_kind
from mithril.runtime.zero import Zero
from mithril.runtime.zero_experts import count_whole_dimensions
from mithril.sharding import FREE, UNSAID, Layout
from mithril.transform import Update, cotangent_name, gradient_of
from mithril.types import TensorType

METRICS = (GRADIENT_NORM, LEARNING_RATE)


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
        index_uses: where the model chooses by integers that come from inputs.
        compression: names of what of `kept` the compression of gradients keeps.
    """

    traced: Traced
    captured: Captured
    state: OptimizerState
    kept: tuple[str, ...]
    passed: tuple[str, ...]
    metrics: Mapping[str, str]
    index_uses: tuple[IndexUse, ...]
    compression: tuple[str, ...] = ()


class StepPlanner:
    """Makes the plans of one step.

    Args:
        compiled: the model.
        optimizer: what becomes of its gradients.
        loss: the output that is minimised, a scalar of floats.
        kinds: of the model's inputs, by name.
        zero: what is split further than it is computed.
        loss_scale: how the loss is scaled, if it is.
        options: of planning.
        arena: where the optimiser's state lies on the host between steps; None for on the devices.
        metrics: which of `METRICS` are told.
    """

    def __init__(
        self,
        compiled: CompiledModel,
        optimizer: Optimizer,
        loss: str,
        kinds: Mapping[str, Kind],
        zero: Zero,
        loss_scale: LossScale | None,
        options: PlanOptions,
        arena: str | None = None,
        metrics: Sequence[str] = METRICS,
    ) -> None:
        self._arena, self._metrics = arena, metrics
        self._replicas: Replicas | None = None
        self._notes: tuple[str, ...] = ()
        self._compiled = compiled
        self._options = options
        self._backend = compiled.backend
        self._optimizer = optimizer
        self._loss = loss
        self._kinds = kinds
        self._zero, self._scale = zero, loss_scale
        traced = compiled.ask((self._loss,), list(kinds.values())).traced
        self.statistics = traced.statistics
        kept = {port for port, _ in self.statistics.values()}
        self.inputs = tuple(name for name in compiled.inputs if name not in kept)
        self.first = [kinds[name] for name in self.inputs]

    def split(self, replicas: Replicas, whole: Mapping[str, Kind]) -> StepPlanner:
        """Return a planner of the steps that all parts of a mesh axis make by themselves.

        Args:
            replicas: the mesh axis, and what is cut over it; the kinds of this planner are those of
                one part.
            whole: kinds of the inputs of all parts together, by name.
        """
        made = copy(self)
        made._replicas = replicas
        made.first = [whole[name] for name in self.inputs]
        return made

    def with_note(self, note: str) -> StepPlanner:
        """Return a planner of the same steps, whose readers are told something more."""
        made = copy(self)
        made._notes = (*self._notes, note)
        return made

    def bind(self, kinds: Sequence[Kind], steps: int | None = None) -> Bound[StepSource]:
        """Return the step for batches of some kinds, planned.

        Args:
            kinds: of `inputs`, in order.
            steps: after how many others it is made, as far as compression waits for some; by
                default for none any more.
        """
        if self._replicas is not None:
            kinds = [self._cut(*item) for item in zip(self.inputs, kinds, strict=True)]
        given = {**self._kinds, **dict(zip(self.inputs, kinds, strict=True))}
        asked = self._compiled.ask((self._loss,), list(given.values()))
        traced, request = asked.traced, asked.request
        types = {name: traced.graph.input(name).type for name in request.differentiated}
        gradients = self._compiled.settings.plan.gradients
        state = trace_state(self._backend, self._optimizer, types)
        statistics = {
            output: (port, traced.graph.input(port).type)
            for output, (port, _) in self.statistics.items()
        }
        update = trace_update(
            self._backend, self._optimizer, types, state, self._metrics, traced.uses_seed,
            statistics, self._scale, gradients, counts_skipped=self._replicas is not None,
        )  # fmt: skip
        told = _list_scalars(traced, self._loss)
        source, interface = self._connect(asked, update, state, told)
        scale = SCALE if self._scale is not None else ""
        request = replace(
            request,
            layouts=self._lay_out(asked, types, state, update),
            optimizer=tuple(state.types),
            update=Update(update, self._loss, told, scale),
            donated=frozenset(source.kept),
            on_host=self.list_on_host(state),
            stacked=traced.stacked,
            notes=(*request.notes, *self._notes, *self._note_zero(state)),
        )
        options = self.plan_options
        if steps is not None:
            options = replace(options, compression=options.compression.after(steps))
        if self._replicas is not None:
            replicas = replace(self._replicas, shared=self._list_shared(source))
            options = replace(options, replicas=replicas)
        bound = bind(self._compiled.engine, traced.graph, request, interface, options)
        return _keep_compression(bound)

    def check_indices(self, source: StepSource, batch: Mapping[str, object]) -> None:
        """Raise unless what a batch has in host memory can be what the model chooses by.

        Args:
            source: of the step.
            batch: as it is passed.

        Raises:
            ShapeError: an id is no row, or a target no class.
        """
        if source.index_uses:
            for part in self._list_parts([batch[name] for name in self.inputs]):
                check_host_indices(source.index_uses, self.inputs, part)

    def _list_parts(self, given: Sequence[object]) -> Iterable[Sequence[object]]:
        """Return what each part of a mesh axis has of inputs; without one there is one part."""
        if self._replicas is None:
            return [given]
        count = self._backend.mesh.sizes[self._replicas.axis]
        cut = (
            np.split(x, count) if name in self._replicas.batches and isinstance(x, np.ndarray)
            else [x] * count
            for name, x in zip(self.inputs, given, strict=True)
        )  # fmt: skip
        return zip(*cut, strict=True)

    @property
    def warmups(self) -> tuple[int, ...]:
        """After how many steps more gradients are compressed, in order."""
        return self._options.compression.warmups

    def _cut(self, name: str, kind: Kind) -> Kind:
        """Return what one part has of an input."""
        assert self._replicas is not None, "only then something is cut"
        if name not in self._replicas.batches:
            return kind
        return cut_kind(name, kind, self._replicas.axis, self._backend.mesh)

    def _list_shared(self, source: StepSource) -> frozenset[str]:
        """Return what all parts have alike: what a step only reads, and its number."""
        assert self._replicas is not None, "only then there are parts"
        whole = set(self.inputs) - self._replicas.batches
        hidden = (item.name for item in source.traced.captured)
        return frozenset({*whole, *source.passed, *hidden, STEP, next_of(STEP)})

    def _note_zero(self, state: OptimizerState) -> tuple[str, ...]:
        """Return a note where ZeRO has no state to split."""
        stage = self._zero.stage
        if stage not in (1, 2) or any(type.rank for type in state.types.values()):
            return ()
        return (f"zero={stage} splits no state: the optimiser keeps no moments",)

    @property
    def plan_options(self) -> PlanOptions:
        """How a step is planned."""
        options = self._options
        if self._arena is None:
            return options
        return replace(options, offload=replace(options.offload, arena=self._arena))

    def list_on_host(self, state: OptimizerState) -> tuple[str, ...]:
        """Return what of an optimiser's state lies on the host between steps: all but numbers.

        Raises:
            PlanError: that is asked for, and there is nothing.
        """
        if self._arena is None:
            return ()
        found = tuple(name for name, type in state.types.items() if type.rank)
        if not found:
            raise PlanError(
                "offload_optimizer=True finds nothing to offload: the optimiser's state has "
                f"{len(state.types)} numbers and no moments; leave it out"
            )
        return found

    def _connect(
        self, asked: Asked, update: Graph, state: OptimizerState, told: Sequence[str]
    ) -> tuple[StepSource, Interface[StepSource]]:
        """Return what a step is made from, and what goes in and comes out."""
        traced = asked.traced
        kept = [name.removeprefix(NEXT) for name in update.outputs if name.startswith(NEXT)]
        passed = tuple(name for name in self._compiled.parameters if name not in kept)
        _check_names([STEP, *state.types], {*self.inputs, *self._compiled.parameters})
        metrics = {name: name for name in told}
        measured = [name for name in update.outputs if name.startswith(METRIC)]
        metrics = {name.removeprefix(METRIC): name for name in measured} | metrics
        metrics = {name: metrics[name] for name in dict.fromkeys((*told, *metrics))}
        source = StepSource(
            traced, Captured(traced.captured), state, tuple(kept), passed, metrics,
            asked.interface.source.index_uses,
        )  # fmt: skip
        hidden = (item.name for item in traced.captured)
        results = (*(next_of(name) for name in kept), *metrics.values())
        made = Interface(
            "step()", self._backend, source, (*self.inputs, *kept, *passed, *hidden), results,
            is_placed=asked.interface.is_placed or self._replicas is not None,
        )  # fmt: skip
        return source, made.donating(kept)

    def _lay_out(
        self,
        asked: Asked,
        parameters: Mapping[str, TensorType],
        state: OptimizerState,
        update: Graph,
    ) -> dict[str, Layout]:
        """Return how everything lies: what is kept leaves as it arrives."""
        mesh, traced = self._backend.mesh, asked.traced
        seed = cotangent_name(self._loss)
        found = {n: layout for n, layout in asked.request.layouts.items() if n != seed}
        homes: dict[str, Sharding] = {}
        is_split = bool(self._zero.stage) and mesh.size > 1
        whole_dims = count_whole_dimensions(traced) if is_split else {}
        for name, type in parameters.items():
            layout = found.get(name, UNSAID)
            if is_split:
                found[name], homes[name] = self._split(name, layout, type, whole_dims.get(name, 0))
            elif not layout.is_free and self._options.search is None:
                homes[name] = layout.arrival(mesh, type.rank)
            if name in homes and (self._zero.stage > 1 or layout.resting):
                # Of a stack each slice is split where a loop makes it, and any gradient in each
                # micro-batch: no device adds up more than its own part.
                found[gradient_of(name)] = Layout(rests=homes[name])
            if name in homes and asked.is_cut(name):
                said = found.get(gradient_of(name), UNSAID)
                found[gradient_of(name)] = replace(said, leaves=homes[name])
        owners = match_parameters(dict(state.types), dict(parameters))
        for name, type in state.types.items():
            owner = owners.get(name)
            whole = Sharding.replicated(mesh, type.rank)
            home = homes.get(owner) if owner is not None else whole
            found[name] = Layout(FREE if home is None else home, decided_by="the optimiser's state")
        numbers = (STEP, *(TYPES if self._scale else ()), *((SEED,) if traced.uses_seed else ()))
        found |= {name: Layout(Sharding.replicated(mesh, 0)) for name in numbers}
        for port, _ in self.statistics.values():
            found[port] = Layout(Sharding.replicated(mesh, self._kinds[port].type.rank))
        kept = (name for name in update.outputs if name.startswith(NEXT))
        return found | {name: Layout(follows=name.removeprefix(NEXT)) for name in kept}

    def _split(
        self, name: str, layout: Layout, type: TensorType, whole: int
    ) -> tuple[Layout, Sharding]:
        """Return the layout of a parameter under ZeRO, and how what belongs to it lies."""
        if layout.resting is not None:
            return layout, layout.resting
        computed, home = self._zero.find_home(layout, type, self._backend.mesh, whole)
        if not self._options.pads:
            home.check_even(type.shape, f"parameter '{name}'")
        return replace(layout, arrives=home, computed=computed), home


def _keep_compression(bound: Bound[StepSource]) -> Bound[StepSource]:
    """Return a step that keeps what the compression in its plan does."""
    interface, source = bound.interface, bound.interface.source
    found = tuple(port.name for port in bound.plan.inputs if is_of_compression(port.name))
    if not found:
        return bound
    source = replace(source, kept=(*source.kept, *found), compression=found)
    first = len(interface.arguments) - len(source.passed) - len(source.captured.held)
    arguments = (*interface.arguments[:first], *found, *interface.arguments[first:])
    results = (*interface.results, *map(next_of, found))
    interface = replace(interface, source=source, arguments=arguments, results=results)
    return replace(bound, interface=interface.donating(source.kept))


def _check_names(kept: Sequence[str], of_model: Collection[str]) -> None:
    for name in kept:
        if name in of_model:
            raise GraphError(
                f"train_step() keeps '{name}', which is the name of an input or parameter of the "
                f"model, too; rename that, or the entry of the optimiser's state"
            )


def _list_scalars(traced: Traced, loss: str) -> tuple[str, ...]:
    """Return the scalars among the outputs of the model, the loss first."""
    scalars = (name for name, value in traced.graph.outputs.items() if not value.type.shape)
    return tuple(dict.fromkeys((loss, *scalars)))


def check_loss(loss: object, compiled: CompiledModel, traced: Traced) -> str:
    """Return the name of the output that is minimised.

    Args:
        loss: as it is given.
        compiled: the model.
        traced: the same for the inputs of the step.

    Raises:
        GraphError: there is no such output, or it is no scalar of floats.
    """
    if loss not in compiled.outputs:
        raise GraphError(
            f"train_step() minimises output {loss!r}, which the model does not have"
            f"{nearest(str(loss), compiled.outputs)}; outputs: {listing(compiled.outputs)}; say "
            f"which by loss="
        )
    name = str(loss)
    type = traced.graph.outputs[name].type
    if type.shape or not type.dtype.is_float:
        raise GraphError(
            f"train_step() minimises '{name}', which is {type}; give a scalar of floats, such as "
            f"what a loss returns"
        )
    return name


__all__ = ["StepPlanner", "StepSource", "check_loss"]
