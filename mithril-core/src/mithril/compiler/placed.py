"""Plans of models whose layers are placed on devices, or run as the stages of a pipeline.

    joint graph -> how values are cut into micro-batches -> where nodes run -> a graph for each part
    -> each partitioned over its own devices -> stage programs -> a timetable

Every part is planned like a model of its own: what comes from other parts arrives as it is needed.
Micro-batches are an axis of time in that: a value split over it is another one in every run, a
partial sum over it grows from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace

from mithril.compiler.partitioning import choose_shardings, local_program, reports_of
from mithril.compiler.request import Request
from mithril.cost import Hardware, hardware_within
from mithril.errors import PlanError, ShardingError
from mithril.ir import Builder, Cause, Graph, Node, Phase, Tensor, Value
from mithril.mesh import MICRO, Axis, Mesh, Sharding, onto
from mithril.ops.collective import AllGather
from mithril.partition.buckets import bucket_gradients
from mithril.partition.padding import trim
from mithril.partition.pipeline import (
    Local,
    Part,
    Placement,
    StageBuilder,
    StageGraphs,
    TimetableBuilder,
    assign_stages,
    check_microbatch_reductions,
    hoist,
    split_by_stage,
)
from mithril.partition.pipeline.hoist_reductions import hoist_reductions
from mithril.partition.pipeline.stage_programs import StageProgram, timeless
from mithril.plan import Plan, Program, TensorReport
from mithril.plan.proof import prove_order
from mithril.sharding import FREE, UNSAID, Choice, Constraints, Layout
from mithril.transform import expand_local


def make_placed_plan(
    graph: Graph,
    mesh: Mesh,
    request: Request,
    placement: Placement,
    kernels: Container[str],
    hardware: Hardware,
) -> Plan:
    """Return the plan of a joint graph, part by part.

    Args:
        graph: forward, and backward where gradients are wanted.
        mesh: the mesh of the backend.
        request: shardings given and gradients wanted, on that mesh.
        placement: what runs where.
        kernels: names of the ops the engine runs itself.
        hardware: the profile that prices the choices.

    Raises:
        PlanError: a layer needs all micro-batches at once, or stages wait for each other.
        ShardingError: a parameter shall be split over an axis along which its layer has one device.
    """
    given = (graph, mesh, request, placement, kernels, hardware)
    try:
        return _Parts(*given).plan()
    except PlanError as error:
        # What a replica has is cut by itself, which nobody notices unless samples are exchanged
        # between replicas inside a stage. Then a micro-batch is the same samples for all of them.
        if not placement.split:
            raise
        try:
            return _Parts(*given, time_first=True).plan()
        except PlanError:
            raise error from None


_EXCHANGED = (
    "a micro-batch is the same samples for all replicas, because they exchange samples inside a "
    "stage; the batch is gathered for that at the start"
)


@dataclass(eq=False)
class _Parts:
    """Plans part by part; the fields are the arguments of `make_placed_plan`.

    `time_first` makes time the major axis of a batch that is split over replicas, too.
    """

    graph: Graph
    mesh: Mesh
    request: Request
    placement: Placement
    kernels: Container[str]
    hardware: Hardware
    time_first: bool = False
    in_time: Mapping[Value, Sharding] = field(default_factory=dict)
    reports: dict[str, TensorReport] = field(default_factory=dict)
    lies: dict[str, Sharding] = field(default_factory=dict)

    def plan(self) -> Plan:
        """Return the plan."""
        placement = self.placement
        if placement.microbatches > 1:
            self._cut_in_time()
        where = assign_stages(self.graph, placement)
        stage_graphs = split_by_stage(self.graph, where, placement.rest)
        locals = [
            self._local(number, graph, stage_graphs)
            for number, graph in stage_graphs.graphs.items()
        ]
        schedule = placement.schedule
        split = schedule is not None and any(a.work in ("I", "W") for a in schedule.actions)
        stage_builders = {
            item.local.part: StageBuilder(
                item, placement.parts[item.local.part].mesh, placement.microbatches
            )
            for item in hoist(locals, split)
        }
        stage_programs = [
            replace(
                stage_program,
                program=bucket_gradients(stage_program.program, self._hardware_of(stage_program)),
            )
            for stage_builder in stage_builders.values()
            for stage_program in stage_builder.stage_programs()
        ]
        stage_programs.sort(key=lambda stage_program: stage_program.of)
        timetable_builder = TimetableBuilder(
            placement, self.graph, stage_graphs, stage_builders, stage_programs,
            self.request.existing(), self._leaving(stage_builders), self.hardware,
        )  # fmt: skip
        stages, timetable = timetable_builder.timetable()
        notes = (*self.request.notes, *((_EXCHANGED,) if self.time_first else ()))
        plan = Plan(self.mesh, stages, timetable, self.reports, notes)
        prove_order(plan)
        return plan

    # -------------------------------------------------------------- micro-batches

    def _cut_in_time(self) -> None:
        """Find how values are cut into micro-batches; expand the graph where that is needed."""
        graph = self.graph
        time = Mesh.of_axes([Axis(MICRO, self.placement.microbatches)])
        batch = self.placement.batch
        rank = next(value.type.rank for value in graph.values() if value.name == batch)
        split = Sharding(time, ((MICRO,), *((),) * (rank - 1)))
        inputs = {v.name for v in graph.inputs}
        layout = Layout(computed=split) if batch in inputs else Layout(home=split)
        request = Request({batch: layout})
        graph, _, choice = choose_shardings(graph, time, request, self.kernels, self.hardware)
        homes = ((value, choice.home(value)) for value in graph.values())
        self.graph, self.in_time = graph, {v: home for v, home in homes if home is not None}

    # -------------------------------------------------------------- one part

    def _local(self, number: int, graph: Graph, stage_graphs: StageGraphs) -> Local:
        """Return the local program of a part."""
        part = self.placement.parts[number]
        mesh = self._planning_mesh(part)
        request = self._request_of(graph, part, mesh, stage_graphs)
        hardware = hardware_within(self.hardware, part.mesh.flat)
        graph, given, choice = choose_shardings(graph, mesh, request, self.kernels, hardware)
        program = hoist_reductions(local_program(graph, given, choice, hardware))
        check_microbatch_reductions(program)
        program = replace(program, graph=expand_local(program.graph, self.kernels))
        crossing = frozenset(stage_graphs.crossing)
        program = self._gather_in_time(program, crossing)
        for port in (*program.inputs, *program.outputs):
            self.lies[port.name] = port.sharding
        self._report(graph, choice, given, request, part, crossing)
        return Local(number, program, crossing)

    def _hardware_of(self, stage_program: StageProgram) -> Hardware:
        return hardware_within(self.hardware, stage_program.program.mesh.flat)

    def _planning_mesh(self, part: Part) -> Mesh:
        time = [Axis(MICRO, self.placement.microbatches)]
        if self.placement.microbatches == 1:
            return Mesh.of_axes(part.mesh.axes)
        axes = part.mesh.axes
        return Mesh.of_axes([*time, *axes] if self.time_first else [*axes, *time])

    def _in_order(self, axes: tuple[str, ...], time: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes that split a dimension, those of devices and that of time."""
        return (*time, *axes) if self.time_first else (*axes, *time)

    def _request_of(
        self, graph: Graph, part: Part, mesh: Mesh, stage_graphs: StageGraphs
    ) -> Request:
        """Return what is asked of a part."""
        names = {value.name for value in graph.inputs}
        handed_on = self._hand_on(mesh, stage_graphs)
        computed = self._computed_as(graph, mesh, stage_graphs)
        layouts: dict[str, Layout] = {}
        for value in graph.inputs:
            layout = self._arriving(value, part, mesh, stage_graphs)
            if value.name in computed:
                layout = self._compute_as(computed[value.name], layout, value)
            layouts[value.name] = layout
        for value in graph.values():
            if (home := self._home(value, mesh, names, handed_on)) is not None:
                layouts[value.name] = replace(layouts.get(value.name, UNSAID), home=home)
        for name in graph.outputs:
            source = self.request.of(name).follows
            if name in handed_on:
                layouts[name] = replace(layouts.get(name, UNSAID), leaves=handed_on[name])
            if source is not None and source in names:
                layouts[name] = replace(layouts.get(name, UNSAID), follows=source)
        return replace(self.request, layouts=layouts)

    def _arriving(self, value: Value, part: Part, mesh: Mesh, stage_graphs: StageGraphs) -> Layout:
        """Return what is asked of an input of a part, said on the part's devices."""
        layout = self.request.of(value.name)
        if layout.existing is None:
            asked = layout.rests or (layout.computed if layout.binds else None)
            if asked is not None:
                _check_axes(value.name, asked, part.name, mesh)
        layout = layout.map(lambda sharding: onto(sharding, mesh))
        if value.name in stage_graphs.crossing:
            layout = replace(layout, arrives=FREE)
        return replace(layout, home=None, leaves=None, follows=None)

    def _compute_as(self, computed: Sharding, layout: Layout, value: Value) -> Layout:
        """Return the layout of an input that is computed with in another sharding."""
        if not layout.is_free:
            layout = replace(layout, arrives=layout.arrival(computed.mesh, value.type.rank))
        binds = value.name == self.placement.batch or (layout.computed is not None and layout.binds)
        return replace(layout, computed=computed, binds=binds)

    def _home(
        self, value: Value, mesh: Mesh, names: set[str], handed_on: Mapping[str, Sharding]
    ) -> Sharding | None:
        """Return where a value of a part has to lie, if anything says so."""
        name = value.name
        if name == self.placement.batch and self.placement.microbatches > 1 and name not in names:
            return self._batch(value, mesh)
        if name in handed_on and name in names:
            return handed_on[name]
        home = self.request.of(name).home
        return None if home is None else onto(home, mesh)

    def _hand_on(self, mesh: Mesh, stage_graphs: StageGraphs) -> dict[str, Sharding]:
        """Return how stages hand on what differs from micro-batch to micro-batch.

        Both sides have to agree which samples a micro-batch has, and on which replica.
        """
        found = {}
        for name, value in stage_graphs.crossing.items():
            home = self.in_time.get(value)
            if home is not None and any(home.dims):
                split = self._batch_axes(mesh)
                dims = (self._in_order(split, axes) if axes else () for axes in home.dims)
                found[name] = Sharding(mesh, tuple(dims))
        return found

    def _batch(self, value: Value, mesh: Mesh) -> Sharding:
        rest = ((),) * (value.type.rank - 1)
        return Sharding(mesh, (self._in_order(self._batch_axes(mesh), (MICRO,)), *rest))

    def _computed_as(
        self, graph: Graph, mesh: Mesh, stage_graphs: StageGraphs
    ) -> dict[str, Sharding]:
        """Return how what arrives is computed with: cut in time, and split as where it was made."""
        found = {}
        for value in graph.inputs:
            name = value.name
            is_crossing = name in stage_graphs.crossing
            in_time = self.in_time.get(stage_graphs.crossing.get(name, value))
            lies = self.lies.get(name) if is_crossing else self._lies(name)
            whole = Sharding.replicated(mesh, value.type.rank)
            sharding = whole if lies is None else onto(lies, mesh)
            dims = [tuple(a for a in axes if a != MICRO) for axes in sharding.dims]
            if name == self.placement.batch and self.placement.microbatches > 1:
                dims[0] = tuple(dict.fromkeys((*dims[0], *self._batch_axes(mesh))))
            if in_time is not None:
                dims = [self._in_order(d, t) for d, t in zip(dims, in_time.dims, strict=True)]
            if is_crossing or tuple(dims) != sharding.dims:
                found[name] = Sharding(sharding.mesh, tuple(dims))
        return found

    def _lies(self, name: str) -> Sharding | None:
        """Return how an input lies before it is cut in time, if anything says so."""
        layout = self.request.of(name)
        return layout.computed or (None if layout.rests else layout.existing)

    def _batch_axes(self, mesh: Mesh) -> tuple[str, ...]:
        return tuple(axis for axis in self.placement.split if mesh.sizes.get(axis, 1) > 1)

    def _gather_in_time(self, program: Program, crossing: frozenset[str]) -> Program:
        """Return the program whose own outputs are whole batches, put together at its end."""
        builder = Builder.extending(program.graph)
        outputs, ports = dict(program.graph.outputs), []
        producers = program.graph.producers()
        for port in program.outputs:
            dims = port.sharding.dims
            cut_in_time = [d for d, axes in enumerate(dims) if MICRO in axes]
            if port.name in crossing or not cut_in_time:
                ports.append(port)
                continue
            (d,) = cut_in_time
            # Where time is the major axis, the samples of a replica are not next to each other.
            over = dims[d] if dims[d][0] == MICRO else (MICRO,)
            kept = tuple(axis for axis in dims[d] if axis not in over)
            whole = replace(
                port,
                sharding=Sharding(port.sharding.mesh, (*dims[:d], kept, *dims[d + 1 :])),
            )
            node: Node | None = producers.get(outputs[port.name])
            cause = Cause(
                port.name,
                port.sharding.describe(),
                whole.sharding.describe(),
                f"output '{port.name}'",
            )
            sizes = [program.mesh.sizes[axis] for axis in over]
            with builder.at(
                scope=node.scope if node else "",
                phase=node.phase if node else Phase.forward,
                cause=cause,
            ):
                op = AllGather(over, d, math.prod(sizes))
                (x,) = builder.apply(op, Tensor(builder, outputs[port.name]))
            size = whole.sharding.local_shape(port.type.shape)[d]
            outputs[port.name] = trim(x, d, size, sizes).value
            ports.append(whole)
        nodes = builder.build({}).nodes
        return replace(
            program, graph=Graph(program.graph.inputs, nodes, outputs), outputs=tuple(ports)
        )

    # -------------------------------------------------------------- ends of the plan

    def _leaving(self, stage_builders: Mapping[int, StageBuilder]) -> dict[str, Sharding]:
        """Return how outputs leave: as was asked for, gradients as what they are gradients of."""
        found: dict[str, Sharding] = {}
        for name in self.graph.outputs:
            layout = self.request.of(name)
            source = layout.follows
            if layout.leaves is not None:
                found[name] = layout.leaves
            if source is None:
                continue
            existing = self.request.of(source).existing
            if existing is not None:
                found[name] = existing
                continue
            for stage_builder in stage_builders.values():
                own = next((v for v in stage_builder.graph.inputs if v.name == source), None)
                if own is not None:
                    found[name] = stage_builder.arriving_port(own).sharding
                    break
        return found

    def _report(
        self,
        graph: Graph,
        choice: Choice,
        given: Constraints,
        request: Request,
        part: Part,
        crossing: frozenset[str],
    ) -> None:
        """Note how tensors are computed, each where it is made."""
        arrives = crossing & {value.name for value in graph.inputs}
        for name, report in reports_of(graph, choice, given, request).items():
            if name in arrives:
                continue
            who = report.decided_by
            if name == self.placement.batch and self.request.of(name).home is None:
                who = "the pipeline, which cuts it into micro-batches"
            sharding = timeless(report.sharding, part.mesh)
            found = replace(report, sharding=sharding, decided_by=who)
            self.reports.setdefault(name, found)


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
