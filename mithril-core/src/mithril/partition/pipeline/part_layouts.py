"""What is said of the tensors of one part: what is said of the whole, on the part's devices.

What comes from other parts arrives as it is needed, in micro-batches that both sides cut alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mithril.errors import ShardingError
from mithril.ir import Graph, Value
from mithril.mesh import MICRO, Mesh, Sharding, onto
from mithril.partition.pipeline.microbatches import TimeAxis
from mithril.partition.pipeline.placement import Part, Placement
from mithril.partition.pipeline.split import StageGraphs
from mithril.plan.names import GRADIENT
from mithril.sharding import FREE, UNSAID, Layout


@dataclass(frozen=True, slots=True, eq=False)
class PartLayouts:
    """Says of the tensors of a part what is said of them in the whole.

    Args:
        layouts: what is said of the whole, by name.
        placement: what runs where.
        stage_graphs: the graphs of the parts, and what goes from part to part.
        time: how values are cut into micro-batches.
        lies: how what other parts have made lies there.
    """

    layouts: Mapping[str, Layout]
    placement: Placement
    stage_graphs: StageGraphs
    time: TimeAxis
    lies: Mapping[str, Sharding] = field(default_factory=dict)

    def of_part(self, graph: Graph, part: Part, mesh: Mesh) -> Mapping[str, Layout]:
        """Return what is said of the tensors of a part, by name.

        Args:
            graph: of the part.
            part: where it runs.
            mesh: the part's axes, and that of time.

        Raises:
            ShardingError: a parameter shall be split over an axis along which the part has one
                device.
        """
        if self.placement.is_whole:
            return self.layouts
        layouts = {value.name: self._arrive(value, part, mesh) for value in graph.inputs}
        passed_on = self._pass_on(mesh)
        for name, home in self._homes(graph, mesh, passed_on).items():
            layouts[name] = replace(layouts.get(name, UNSAID), home=home)
        entering = {value.name for value in graph.inputs}
        layouts |= self._leave_gradients(graph, mesh)
        for name in graph.outputs:
            source = self._of(name).follows
            if name in passed_on:
                layouts[name] = replace(layouts.get(name, UNSAID), leaves=passed_on[name])
            if source in entering:
                layouts[name] = replace(layouts.get(name, UNSAID), follows=source)
        return layouts

    def _leave_gradients(self, graph: Graph, mesh: Mesh) -> dict[str, Layout]:
        """Return how gradients that a part makes leave, and live at rest."""
        made = {value.name for node in graph.nodes for value in node.outputs} | {*graph.outputs}
        found = {}
        for name in (name for name in made if name.startswith(GRADIENT)):
            said = self._of(name).map(lambda sharding: onto(sharding, mesh))
            leaves = said.leaves if name in graph.outputs else None
            found[name] = Layout(leaves=leaves, rests=said.rests)
        return found

    def _of(self, name: str) -> Layout:
        return self.layouts.get(name, UNSAID)

    # -------------------------------------------------------------- inputs of a part

    def _arrive(self, value: Value, part: Part, mesh: Mesh) -> Layout:
        """Return what is said of an input of a part."""
        whole = self._of(value.name)
        wanted = whole.rests or (whole.computed if whole.binds else None)
        if whole.existing is None and wanted is not None:
            _check_axes(value.name, wanted, part.name, mesh)
        layout = whole.map(lambda sharding: onto(sharding, mesh))
        layout = replace(layout, home=None, leaves=None, follows=None)
        if value.name in self.stage_graphs.crossing:
            layout = replace(layout, arrives=FREE, rests=None)
        computed = self._find_compute_sharding(value, mesh)
        if computed is None:
            return layout
        if value.name not in self.stage_graphs.crossing:
            arrives = layout.arrival(mesh, value.type.rank)
            if layout.is_free:  # a whole batch arrives, split as its micro-batches are
                arrives = _drop_time(computed)
            layout = replace(layout, arrives=arrives)
        is_bound = layout.computed is not None and layout.binds
        binds = is_bound or value.name == self.placement.batch
        return replace(layout, computed=computed, binds=binds)

    def _find_compute_sharding(self, value: Value, mesh: Mesh) -> Sharding | None:
        """Return what an input is computed with, where that is not how it arrives.

        It is cut in time, and what another part has made is split as it was there.
        """
        name, crossing = value.name, self.stage_graphs.crossing
        lies = self.lies.get(name) if name in crossing else self._lies(name)
        whole = Sharding.replicated(mesh, value.type.rank)
        sharding = whole if lies is None else onto(lies, mesh)
        dims = [tuple(a for a in axes if a != MICRO) for axes in sharding.dims]
        if name == self.placement.batch and self.time.count > 1:
            dims[0] = tuple(dict.fromkeys((*dims[0], *self.time.replicas(mesh))))
        in_time = self.time.dims.get(crossing.get(name, value))
        if in_time is not None:
            dims = [self.time.order(d, t) for d, t in zip(dims, in_time, strict=True)]
        if name not in crossing and tuple(dims) == sharding.dims:
            return None
        return Sharding(sharding.mesh, tuple(dims))

    def _lies(self, name: str) -> Sharding | None:
        """Return what an input of the whole is split like, before it is cut in time."""
        layout = self._of(name)
        return layout.computed or (None if layout.rests else layout.existing)

    # -------------------------------------------------------------- between parts

    def _pass_on(self, mesh: Mesh) -> dict[str, Sharding]:
        """Return how parts pass on what differs from micro-batch to micro-batch.

        Both sides have to agree which samples a micro-batch has, and on which replica. Otherwise a
        value is whole, unless something is said of it; a gradient is split as its value is.
        """
        found = {}
        for name, value in self.stage_graphs.crossing.items():
            in_time = self.time.dims.get(value, ())
            if any(in_time):
                found[name] = self._pass_on_as(self._find_home(name), in_time, mesh)
        return found

    def _find_home(self, name: str) -> Sharding | None:
        """Return what is said of a value, or of all that a gradient may be of if that agrees."""
        names = (name, *self.stage_graphs.returning.get(name, ()))
        said = {self._of(n).home for n in names} - {None}
        return said.pop() if len(said) == 1 else None

    def _pass_on_as(
        self, home: Sharding | None, in_time: tuple[tuple[str, ...], ...], mesh: Mesh
    ) -> Sharding:
        """Return how a value is passed on: samples as both sides cut them, the rest as is said."""
        split = self.time.replicas(mesh)
        lies = Sharding.replicated(mesh, len(in_time)) if home is None else onto(home, mesh)
        dims = (
            self.time.order(split, time) if time else tuple(a for a in axes if a not in split)
            for axes, time in zip(lies.dims, in_time, strict=True)
        )
        return Sharding(lies.mesh, tuple(dims))

    def _homes(
        self, graph: Graph, mesh: Mesh, passed_on: Mapping[str, Sharding]
    ) -> dict[str, Sharding]:
        """Return where values of a part have to lie, by name."""
        entering = {value.name for value in graph.inputs}
        said = ((value.name, self._of(value.name).home) for value in graph.values())
        homes = {name: onto(home, mesh) for name, home in said if home is not None}
        homes |= {name: lies for name, lies in passed_on.items() if name in entering}
        batch = self.placement.batch
        if self.time.count > 1 and batch not in entering:
            for value in graph.values():
                if value.name == batch:
                    homes[batch] = self.time.batch(mesh, value.type.rank)
        return homes


def _drop_time(sharding: Sharding) -> Sharding:
    """Return how a batch lies of which each device has what it needs of all micro-batches."""
    dims = (axes[: axes.index(MICRO)] if MICRO in axes else axes for axes in sharding.dims)
    return Sharding(sharding.mesh, tuple(dims))


def _check_axes(name: str, sharding: Sharding, where: str, mesh: Mesh) -> None:
    """Raise if a parameter shall be split over an axis of which its devices have but one index.

    Raises:
        ShardingError: it shall.
    """
    sizes = {axis.origin: axis.size for axis in mesh.axes}
    whole = {axis.name: axis.origin for axis in sharding.mesh.axes}
    lost = [whole[axis] for axis in sharding.split_axes if sizes[whole[axis]] == 1]
    if lost:
        raise ShardingError(
            f"parameter '{name}' cannot be split over mesh axis '{lost[0]}'; its layer runs on "
            f"{where}, which is one place along it; leave out the axis, or what puts it there"
        )
