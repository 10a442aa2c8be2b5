"""Parameters that lie split between programs are gathered in 16 bits.

What forward and backward fetch of a parameter is cast before its parts are gathered, and cast back
to be computed with. The parameter itself keeps all of its digits: the update of a train step reads,
and changes, what rests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from mithril.cost import Hardware
from mithril.cost.pairs import price_cause
from mithril.ir import Builder, Cause, Graph, Node, Phase, Tensor, Value
from mithril.ir.op import Tensors
from mithril.ir.rewrite import rewrite
from mithril.mesh import MICRO, Mesh
from mithril.ops.collective import AllGather, TakeShard
from mithril.ops.control import After
from mithril.ops.elementwise import Cast, cast
from mithril.ops.shape import Movement
from mithril.plan import Program
from mithril.types import DType

CARRIED = "parameters as "
"""Before the dtype, in what is said of such a collective."""
MOVES = (AllGather, TakeShard, Cast, Movement)
"""Ops behind which there is still the parameter."""


def narrow_gathers(
    program: Program, names: Collection[str], dtype: DType | None, hardware: Hardware
) -> Program:
    """Return the program in which parameters that lie split are gathered in another dtype.

    Args:
        program: a local program.
        names: of these parameters.
        dtype: of 16 bits; None for that of each parameter.
        hardware: the profile that prices collectives.
    """
    if dtype is None:
        return program
    found = {
        node
        for value in program.graph.inputs
        if value.name in names
        for node in _find_gathers(value, program.graph)
        if node.inputs[0].type.dtype.is_float and node.inputs[0].type.dtype.itemsize > 2
    }
    if not found:
        return program

    casts: dict[Value, Tensor] = {}

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if node not in found:
            return None
        (x,) = operands
        if x.value not in casts:  # one for all phases: a part takes less memory than time
            with builder.at():
                casts[x.value] = cast(x, dtype)
        whole = _gather(builder, node, x, casts[x.value], program.mesh, hardware)
        with builder.at():
            return [cast(whole, x.dtype)]

    return replace(program, graph=rewrite(program.graph, visit))


def _gather(
    builder: Builder, node: Node, x: Tensor, small: Tensor, mesh: Mesh, hardware: Hardware
) -> Tensor:
    """Return the parts of all devices in fewer bits.

    Args:
        builder: of the program, or of a body in it.
        node: what gathers them in all of their bits.
        x: the part of this device.
        small: the same in fewer bits.
        mesh: the devices.
        hardware: the profile that prices collectives.
    """
    op = node.op
    assert isinstance(op, AllGather), "others are not looked for"
    cause = node.cause and replace(
        price_cause(node.cause, op, op.count_bytes([small.type]), mesh, hardware),
        compressed=f"{CARRIED}{small.dtype}",
        plain_bytes=op.traffic(op.count_bytes([x.type]), mesh.product(op.axes)).bytes,
    )
    with builder.at(cause=cause):
        return builder.apply(op, small)[0]


def is_of_parameters(cause: Cause) -> bool:
    """Return whether a collective carries parameters in 16 bits."""
    return cause.compressed.startswith(CARRIED)


def _find_gathers(value: Value, graph: Graph) -> Iterator[Node]:
    """Yield what gathers a parameter for forward and backward, in loops, too."""
    for node, position in graph.uses().get(value, ()):
        for body in node.op.bodies:
            yield from _find_gathers(body.inputs[position], body)
        stays = isinstance(node.op, MOVES) or (isinstance(node.op, After) and not position)
        if node.phase == Phase.update or not stays:
            continue
        if isinstance(node.op, AllGather) and MICRO not in node.op.axes:
            yield node
        yield from _find_gathers(node.outputs[0], graph)


__all__ = ["CARRIED", "is_of_parameters", "narrow_gathers"]
