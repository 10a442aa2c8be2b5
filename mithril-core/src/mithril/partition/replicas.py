"""Plans that run on each part of a mesh axis by itself, with values of its own.

Nothing of such a plan is split over the axis, so that all devices along it would compute the
same. Here what goes in and comes out gets a first dimension with one entry for each part, split
over the axis: each part has parameters of its own, and what they become. A batch is cut instead,
along the dimension that it has. No collective crosses the axis before or after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mithril.errors import PlanError
from mithril.ir import Builder, Tensor
from mithril.ir.rewrite import all_nodes, inline
from mithril.mesh import Mesh, Sharding
from mithril.ops.collective import Collective
from mithril.ops.shape import reshape
from mithril.plan import Plan, Port, Program
from mithril.types import TensorType


@dataclass(frozen=True, slots=True)
class Replicas:
    """Parts of a mesh axis that compute by themselves.

    Args:
        axis: the mesh axis.
        batches: inputs that are cut over it along their first dimension.
        shared: inputs and outputs that are the same on all parts.
    """

    axis: str
    batches: frozenset[str]
    shared: frozenset[str]


def split_replicas(plan: Plan, replicas: Replicas) -> Plan:
    """Return a plan that each part of an axis runs on values of its own.

    Args:
        plan: one that does not use the axis.
        replicas: the axis, and what is not a value of each part.

    Raises:
        PlanError: something in the plan is split, or communicates, over the axis, or it has stages.
    """
    stage = plan.only_stage
    if stage is None:
        raise PlanError(
            f"model has {len(plan.stages)} stages, and parts of mesh axis '{replicas.axis}' that "
            f"train by themselves run one program; leave the stages out"
        )
    _check_unused(stage.program, replicas.axis)
    program = _split_program(stage.program, replicas)
    made = Plan.of_program(plan.mesh, program)
    return replace(plan, stages=made.stages, timetable=made.timetable, whole=None)


def _split_program(program: Program, replicas: Replicas) -> Program:
    inputs, outputs = (
        tuple(_lift(port, program.mesh, replicas) for port in ports)
        for ports in (program.inputs, program.outputs)
    )
    builder = Builder()
    operands = [
        _view(builder, builder.input(_local_type(port), value.name), value.type)
        for value, port in zip(program.graph.inputs, inputs, strict=True)
    ]
    made = inline(program.graph, builder, operands)
    leaving = {
        name: _view(builder, x, _local_type(port))
        for (name, x), port in zip(made.items(), outputs, strict=True)
    }
    return replace(program, graph=builder.build(leaving), inputs=inputs, outputs=outputs)


def _lift(port: Port, mesh: Mesh, replicas: Replicas) -> Port:
    """Return what a port is for all parts together."""
    if port.name in replicas.shared:
        return port
    count, shape = mesh.sizes[replicas.axis], port.type.shape
    dims, axes = list(port.sharding.dims), (replicas.axis,) if count > 1 else ()
    if port.name in replicas.batches:
        shape = (count * shape[0], *shape[1:])
        dims[0] = (*axes, *dims[0])
    else:
        shape = (count, *shape)
        dims.insert(0, axes)
    sharding = Sharding(port.sharding.mesh, tuple(dims))
    return Port(port.name, port.type.with_shape(shape), sharding)


def _local_type(port: Port) -> TensorType:
    return port.type.with_shape(port.sharding.local_shape(port.type.shape))


def _view(builder: Builder, x: Tensor, type: TensorType) -> Tensor:
    """Return a tensor in a shape that has the same elements."""
    if x.shape == type.shape:
        return x
    with builder.at():
        return reshape(x, type.shape)


def _check_unused(program: Program, axis: str) -> None:
    for what in _list_users(program, axis):
        raise PlanError(
            f"{what} uses mesh axis '{axis}', whose parts train by themselves; split it over "
            f"another axis"
        )


def _list_users(program: Program, axis: str) -> Iterator[str]:
    for port in (*program.inputs, *program.outputs):
        if axis in port.sharding.split_axes:
            yield f"tensor '{port.name}'"
    for node in all_nodes(program.graph):
        if isinstance(node.op, Collective) and axis in node.op.axes:
            yield f"{node.op.name} at {node.where()}"


__all__ = ["Replicas", "split_replicas"]
