"""Parameters at rest are gathered in 16 bits.

What forward and backward fetch of a parameter is cast before its parts are gathered, and cast back
to be computed with. The parameter itself keeps all of its digits: the update of a train step reads,
and changes, what rests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from mithril.cost import Hardware, collective_seconds, describe_emulation
from mithril.ir import Builder, Cause, Graph, Node, Phase, Tensor, Value
from mithril.ir.op import Tensors
from mithril.ir.rewrite import rewrite
from mithril.mesh import MICRO
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
    program: Program, resting: Collection[str], dtype: DType | None, hardware: Hardware
) -> Program:
    """Return the program in which parameters at rest are gathered in another dtype.

    Args:
        program: a local program.
        resting: names of the parameters at rest.
        dtype: of 16 bits; None for that of each parameter.
        hardware: the profile that prices collectives.
    """
    if dtype is None:
        return program
    found = {
        node
        for value in program.graph.inputs
        if value.name in resting
        for node in _find_gathers(value, program.graph)
        if node.inputs[0].type.dtype.is_float and node.inputs[0].type.dtype.itemsize > 2
    }
    if not found:
        return program

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return [_gather(builder, node, operands[0])] if node in found else None

    def _gather(builder: Builder, node: Node, x: Tensor) -> Tensor:
        op = node.op
        assert isinstance(op, AllGather), "others are not looked for"
        with builder.at():
            small = cast(x, dtype)
        group = program.mesh.product(op.axes)
        plain = op.traffic(op.count_bytes([x.type]), group).bytes
        issued = op.name, op.count_bytes([small.type]), op.axes, program.mesh
        cause = node.cause and replace(
            node.cause,
            seconds=collective_seconds(*issued, hardware),
            emulated=describe_emulation(*issued, hardware),
            compressed=f"{CARRIED}{dtype}",
            plain_bytes=plain,
        )
        with builder.at(cause=cause):
            (whole,) = builder.apply(op, small)
        with builder.at():
            return cast(whole, x.dtype)

    return replace(program, graph=rewrite(program.graph, visit))


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
