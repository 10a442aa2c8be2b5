"""Plans of models whose layers are placed on devices, or run as the stages of a pipeline.

    joint graph -> how values are cut into micro-batches -> where nodes run -> a graph for each part
    -> each partitioned over its own devices -> pieces that run without a break -> a timetable

Every part is planned like a model of its own: what comes from other parts arrives as it is needed.
Micro-batches are an axis of time in that: a value split over it is another one in every run, a
partial sum over it grows from run to run.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace

from mithril.compiler.partitioning import choose_shardings, local_program, reports_of
from mithril.compiler.request import Request
from mithril.cost import Hardware, hardware_within
from mithril.errors import PlanError, ShardingError
from mithril.ir import (
    Builder,
    Cause,
    Graph,
    Node,
    Phase,
    Plan,
    Program,
    Tensor,
    TensorReport,
    Value,
)
from mithril.mesh import MICRO, Axis, Mesh, Sharding, onto
from mithril.ops.collective import AllGather
from mithril.partition.buckets import bucket_gradients
from mithril.partition.padding import trim
from mithril.partition.placement import (
    Assembly,
    Cutter,
    Local,
    Part,
    Parted,
    Placement,
    assign,
    check_joints,
    classify,
    cut,
)
from mithril.partition.placement.loops import sums_behind_loops
from mithril.partition.placement.pieces import Piece, timeless
from mithril.partition.proof import prove_order
from mithril.sharding import Choice, Constraints
from mithril.transform import expand_local, gradient_of, seed_of


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
        PlanError: a layer needs all micro-batches at once, stages wait for each other, or a layer
            that is split over the whole mesh stands inside a pipeline.
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


class _Parts:
    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        request: Request,
        placement: Placement,
        kernels: Container[str],
        hardware: Hardware,
        *,
        time_first: bool = False,
    ) -> None:
        self._time_first = time_first
        self._mesh = mesh
        self._request = request
        self._placement = placement
        self._kernels = kernels
        self._hardware = hardware
        self._in_time: Mapping[Value, Sharding] = {}
        self._reports: dict[str, TensorReport] = {}
        time = (_EXCHANGED,) if time_first else ()
        self._notes: dict[str, None] = dict.fromkeys((*request.notes, *placement.notes, *time))
        self._lies: dict[str, Sharding] = {}
        self._graph = self._cut_in_time(graph) if placement.microbatches > 1 else graph

    def plan(self) -> Plan:
        """Return the plan."""
        placement = self._placement
        where = assign(self._graph, placement)
        parted = cut(self._graph, where, placement.rest)
        locals = [self._local(number, graph, parted) for number, graph in parted.graphs.items()]
        schedule = placement.schedule
        split = schedule is not None and any(a.work in ("I", "W") for a in schedule.actions)
        cutters = {
            item.local.part: Cutter(
                item, placement.parts[item.local.part].mesh, placement.microbatches
            )
            for item in classify(locals, split)
        }
        pieces = [
            replace(piece, program=bucket_gradients(piece.program, self._hardware_of(piece)))
            for cutter in cutters.values()
            for piece in cutter.pieces()
        ]
        pieces.sort(key=lambda piece: piece.of)
        assembly = Assembly(
            placement, self._graph, parted, cutters, pieces,
            self._request.arriving(), self._leaving(cutters), self._hardware,
        )  # fmt: skip
        stages, timetable = assembly.timetable()
        plan = Plan(self._mesh, stages, self._reports, tuple(self._notes), None, timetable)
        prove_order(plan)
        return plan

    # -------------------------------------------------------------- micro-batches

    def _cut_in_time(self, graph: Graph) -> Graph:
        """Find how values are cut into micro-batches; return the graph, expanded where needed."""
        time = Mesh.of_axes([Axis(MICRO, self._placement.microbatches)])
        batch = self._placement.batch
        first = Sharding.replicated(time, self._rank(graph, batch))
        split = Sharding(time, ((MICRO,), *first.dims[1:]))
        inputs = {v.name for v in graph.inputs}
        request = Request(
            inputs={batch: split} if batch in inputs else {},
            compute=frozenset({batch}),
            homes={} if batch in inputs else {batch: split},
        )
        graph, _, choice = choose_shardings(graph, time, request, self._kernels, self._hardware)
        self._in_time = {
            value: home for value in graph.values() if (home := choice.home(value)) is not None
        }
        return graph

    @staticmethod
    def _rank(graph: Graph, name: str) -> int:
        return next(value.type.rank for value in graph.values() if value.name == name)

    # -------------------------------------------------------------- one part

    def _local(self, number: int, graph: Graph, parted: Parted) -> Local:
        """Return the local program of a part."""
        part = self._placement.parts[number]
        mesh = self._planning_mesh(part)
        request = self._request_of(graph, mesh, parted)
        hardware = hardware_within(self._hardware, part.mesh.flat)
        graph, given, choice = choose_shardings(graph, mesh, request, self._kernels, hardware)
        program = sums_behind_loops(local_program(graph, given, choice, hardware))
        check_joints(program)
        program = replace(program, graph=expand_local(program.graph, self._kernels))
        crossing = frozenset(parted.crossing)
        program = self._gathered_in_time(program, crossing)
        for port in (*program.inputs, *program.outputs):
            self._lies[port.name] = port.sharding
        self._report(graph, choice, given, request, part)
        return Local(number, program, crossing)

    def _hardware_of(self, piece: Piece) -> Hardware:
        return hardware_within(self._hardware, piece.program.mesh.flat)

    def _planning_mesh(self, part: Part) -> Mesh:
        time = [Axis(MICRO, self._placement.microbatches)]
        if self._placement.microbatches == 1:
            return Mesh.of_axes(part.mesh.axes)
        axes = part.mesh.axes
        return Mesh.of_axes([*time, *axes] if self._time_first else [*axes, *time])

    def _in_order(self, axes: tuple[str, ...], time: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes that split a dimension, those of devices and that of time."""
        return (*time, *axes) if self._time_first else (*axes, *time)

    def _request_of(self, graph: Graph, mesh: Mesh, parted: Parted) -> Request:
        """Return what is asked of a part."""
        whole = self._request
        names = {value.name for value in graph.inputs}
        made = set(graph.outputs)
        crossing = set(parted.crossing)

        def on(shardings: Mapping[str, Sharding], known: set[str]) -> dict[str, Sharding]:
            return {n: onto(s, mesh) for n, s in shardings.items() if n in known}

        asked = (whole.compute - whole.placed) | (set(whole.at_rest) - whole.placed)
        for name in sorted(asked & names):
            _check_axes(name, {**whole.inputs, **whole.at_rest}[name], mesh)
        seeds = whole.output_gradients
        mine = {n: onto(s, mesh) for n, s in (seeds or {}).items() if seed_of(n) in names}
        handed_on = self._handed_on(mesh, parted)
        homes = on(whole.homes, {value.name for value in graph.values()})
        homes |= {n: s for n, s in handed_on.items() if n in names}
        batch = self._placement.batch
        if self._placement.microbatches > 1 and batch not in names:
            homes |= {v.name: self._batch(v, mesh) for v in graph.values() if v.name == batch}
        along = self._along(graph, mesh, parted)
        return replace(
            whole,
            inputs=on(whole.inputs, names),
            outputs={n: s for n, s in handed_on.items() if n in made},
            placed=whole.placed & names,
            compute=(whole.compute & names) | ({batch} & set(along)),
            output_gradients=None if seeds is None else mine,
            differentiated=tuple(
                n for n in whole.differentiated if n in names and gradient_of(n) in made
            ),
            homes=homes,
            free=(whole.free & names) | (crossing & names),
            at_rest=on(whole.at_rest, names),
            along=along,
        )

    def _handed_on(self, mesh: Mesh, parted: Parted) -> dict[str, Sharding]:
        """Return how stages hand on what differs from micro-batch to micro-batch.

        Both sides have to agree which samples a micro-batch has, and on which replica.
        """
        found = {}
        for name, value in parted.crossing.items():
            home = self._in_time.get(value)
            if home is not None and any(home.dims):
                split = self._batch_axes(mesh)
                dims = (self._in_order(split, axes) if axes else () for axes in home.dims)
                found[name] = Sharding(mesh, tuple(dims))
        return found

    def _batch(self, value: Value, mesh: Mesh) -> Sharding:
        rest = ((),) * (value.type.rank - 1)
        return Sharding(mesh, (self._in_order(self._batch_axes(mesh), (MICRO,)), *rest))

    def _along(self, graph: Graph, mesh: Mesh, parted: Parted) -> dict[str, Sharding]:
        """Return how what arrives is computed with: cut in time, and split as where it was made."""
        found = {}
        for value in graph.inputs:
            name = value.name
            is_crossing = name in parted.crossing
            in_time = self._in_time.get(parted.crossing.get(name, value))
            lies = (self._lies if is_crossing else self._request.inputs).get(name)
            whole = Sharding.replicated(mesh, value.type.rank)
            sharding = whole if lies is None else onto(lies, mesh)
            dims = [tuple(a for a in axes if a != MICRO) for axes in sharding.dims]
            if name == self._placement.batch and self._placement.microbatches > 1:
                dims[0] = tuple(dict.fromkeys((*dims[0], *self._batch_axes(mesh))))
            if in_time is not None:
                dims = [self._in_order(d, t) for d, t in zip(dims, in_time.dims, strict=True)]
            if is_crossing or tuple(dims) != sharding.dims:
                found[name] = Sharding(sharding.mesh, tuple(dims))
        return found

    def _batch_axes(self, mesh: Mesh) -> tuple[str, ...]:
        return tuple(axis for axis in self._placement.split if mesh.sizes.get(axis, 1) > 1)

    def _gathered_in_time(self, program: Program, crossing: frozenset[str]) -> Program:
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

    def _leaving(self, cutters: Mapping[int, Cutter]) -> dict[str, Sharding]:
        """Return how outputs leave: as was asked for, gradients as what they are gradients of."""
        found: dict[str, Sharding] = dict(self._request.outputs)
        arriving = self._request.arriving()
        for name in self._request.differentiated:
            gradient = gradient_of(name)
            if gradient not in self._graph.outputs:
                continue
            if name in arriving:
                found[gradient] = arriving[name]
                continue
            for cutter in cutters.values():
                own = next((v for v in cutter.graph.inputs if v.name == name), None)
                if own is not None:
                    found[gradient] = cutter.arriving_port(own).sharding
                    break
        return found

    def _report(
        self, graph: Graph, choice: Choice, given: Constraints, request: Request, part: Part
    ) -> None:
        for name, report in reports_of(graph, choice, given, request).items():
            sharding = timeless(report.sharding, part.mesh)
            self._reports.setdefault(name, replace(report, sharding=sharding))


def _check_axes(name: str, sharding: Sharding, mesh: Mesh) -> None:
    """Raise if a parameter shall be split over an axis of which its devices have but one index.

    Raises:
        ShardingError: it shall.
    """
    sizes = {axis.origin: axis.size for axis in mesh.axes}
    whole = {axis.name: axis.origin for axis in sharding.mesh.axes}
    lost = [whole[axis] for axis in sharding.split_axes if sizes[whole[axis]] == 1]
    if lost:
        raise ShardingError(
            f"parameter '{name}' cannot be split over mesh axis '{lost[0]}'; its layer runs on a "
            f"part of the mesh that has one device there; leave the axis out"
        )
