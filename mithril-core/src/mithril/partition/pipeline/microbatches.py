"""Micro-batches as an axis of time: how values are cut into them, and put together again.

A value split over that axis is another one in every run; a partial sum over it grows from run to
run. So how a batch spreads through a graph is found as for any mesh axis, on a mesh of time alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from mithril.cost import Target
from mithril.ir import Builder, Cause, Graph, Node, Phase, Tensor, Value
from mithril.ir.rewrite import map_bodies
from mithril.mesh import MICRO, Axis, Mesh, Sharding, carry
from mithril.ops.collective import AllGather
from mithril.ops.constrain import Constrain
from mithril.partition.padding import trim
from mithril.partition.pipeline.placement import Placement
from mithril.partition.search import solve
from mithril.plan import Port, Program
from mithril.sharding import Choice, Layout


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The axis of micro-batches among the axes of devices.

    Args:
        count: how many micro-batches there are.
        split: mesh axes over which the batch is split besides.
        is_major: whether a micro-batch is the same samples for all replicas: time cuts the batch
            first. Otherwise every replica cuts what it has.
        dims: how values are cut in time, where they are.
    """

    count: int
    split: tuple[str, ...] = ()
    is_major: bool = False
    dims: Mapping[Value, tuple[tuple[str, ...], ...]] = field(default_factory=dict)

    def add_to(self, mesh: Mesh) -> Mesh:
        """Return the axes of some devices and that of time, as one mesh."""
        if self.count == 1:
            return mesh
        time, order = (Axis(MICRO, self.count),), mesh.order or mesh.names
        if self.is_major:
            return Mesh.of_axes((*time, *mesh.axes), (), (MICRO, *order))
        return Mesh.of_axes((*mesh.axes, *time), (), (*order, MICRO))

    def order(self, axes: tuple[str, ...], time: tuple[str, ...]) -> tuple[str, ...]:
        """Return the axes that split a dimension, those of devices and that of time."""
        return (*time, *axes) if self.is_major else (*axes, *time)

    def replicas(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the axes that the batch is split over on some devices."""
        return tuple(axis for axis in self.split if mesh.sizes.get(axis, 1) > 1)

    def batch(self, mesh: Mesh, rank: int) -> Sharding:
        """Return how the batch is cut on some devices."""
        return Sharding(mesh, (self.order(self.replicas(mesh), (MICRO,)), *((),) * (rank - 1)))


def cut_batch(
    graph: Graph, placement: Placement, target: Target, *, is_major: bool
) -> tuple[Graph, TimeAxis]:
    """Return how values are cut into micro-batches; the graph is expanded where that is needed.

    Args:
        graph: the joint graph.
        placement: names the batch, and into how many micro-batches it is cut.
        target: whose kernels run it.
        is_major: whether time cuts the batch before its replicas do.
    """
    time = TimeAxis(placement.microbatches, placement.split, is_major)
    if time.count == 1:
        return graph, time
    name = placement.batch
    rank = next(value.type.rank for value in graph.values() if value.name == name)
    mesh = Mesh.of_axes([Axis(MICRO, time.count)])
    cut = Sharding(mesh, ((MICRO,), *((),) * (rank - 1)))
    is_input = any(value.name == name for value in graph.inputs)
    layout = Layout(computed=cut) if is_input else Layout(home=cut)
    solution = solve(graph, mesh, {name: layout}, target, pads=True)
    dims = {value: home.dims for value, home in solution.homes().items()}
    return _constrain_in_time(solution.graph, time, solution.choice), replace(time, dims=dims)


def _constrain_in_time(graph: Graph, time: TimeAxis, choice: Choice) -> Graph:
    """Return the graph in which the user's word for where values lie is said of micro-batches."""

    def cut(node: Node) -> Node:
        node = map_bodies(node, lambda body: _constrain_in_time(body, time, choice))
        home = choice.home(node.outputs[0])
        if not isinstance(node.op, Constrain) or home is None:
            return node
        spec = node.op.spec
        entries = (time.order(spec.axes(d), axes) for d, axes in enumerate(home.dims))
        return replace(node, op=replace(node.op, entries=tuple(entries)))

    return Graph(graph.inputs, tuple(cut(node) for node in graph.nodes), graph.outputs)


def timeless(sharding: Sharding, mesh: Mesh) -> Sharding:
    """Return a sharding without the axis of micro-batches, on the devices of a mesh."""
    axes = [axis for axis in sharding.mesh.axes if axis.name != MICRO]
    on = Mesh.of_axes(axes, mesh.devices, sharding.mesh.order)
    dims = tuple(tuple(axis for axis in axes if axis != MICRO) for axes in sharding.dims)
    return Sharding(on, dims, tuple(pair for pair in sharding.partial if pair[0] != MICRO))


def timeless_port(port: Port, mesh: Mesh) -> Port:
    """Return a port as it is for one micro-batch."""
    found = timeless(port.sharding, mesh)
    if found.dims == port.sharding.dims:
        return replace(port, sharding=found)
    local = port.sharding.local_shape(port.type.shape)
    shape = [
        local[d] * found.shards_along(d) if MICRO in axes else port.type.shape[d]
        for d, axes in enumerate(port.sharding.dims)
    ]
    return Port(port.name, port.type.with_shape(tuple(shape)), found)


def gather_batches(program: Program, crossing: Collection[str]) -> Program:
    """Return the program whose own outputs are whole batches, put together at its end.

    Args:
        program: of a part, on a mesh with the axis of time.
        crossing: outputs that go on to other parts, one micro-batch at a time.
    """
    if MICRO not in program.mesh.names:
        return program
    builder = Builder.extending(program.graph)
    outputs, ports = dict(program.graph.outputs), []
    for port in program.outputs:
        cut = [d for d, axes in enumerate(port.sharding.dims) if MICRO in axes]
        if port.name in crossing or not cut:
            ports.append(port)
            continue
        (dimension,) = cut
        whole, x = _gather(port, dimension, outputs[port.name], program, builder)
        outputs[port.name] = x.value
        ports.append(whole)
    graph = Graph(program.graph.inputs, builder.build({}).nodes, outputs)
    return replace(program, graph=graph, outputs=tuple(ports))


def _gather(
    port: Port, dimension: int, value: Value, program: Program, builder: Builder
) -> tuple[Port, Tensor]:
    """Append what puts a batch together; return how it then leaves, and the batch."""
    dims = port.sharding.dims
    # Where time is the major axis, the samples of a replica are not next to each other; the program
    # may know its axes cut further.
    is_major = dims[dimension][0] == MICRO
    over = carry(port.sharding, program.mesh).dims[dimension] if is_major else (MICRO,)
    kept = () if is_major else tuple(axis for axis in dims[dimension] if axis != MICRO)
    lies = Sharding(port.sharding.mesh, (*dims[:dimension], kept, *dims[dimension + 1 :]))
    cause = Cause(port.name, port.sharding.describe(), lies.describe(), f"output '{port.name}'")
    node = program.graph.producers().get(value)
    scope, phase = (node.scope, node.phase) if node else ("", Phase.forward)
    sizes = [program.mesh.sizes[axis] for axis in over]
    with builder.at(scope=scope, phase=phase, cause=cause):
        op = AllGather(over, dimension, math.prod(sizes))
        (x,) = builder.apply(op, Tensor(builder, value))
    size = lies.local_shape(port.type.shape)[dimension]
    return replace(port, sharding=lies), trim(x, dimension, size, sizes)
