"""Along which mesh axes the values of a program differ from device to device.

Where devices have the same value, they are to have the same bits of it. So a sum may be taken in an
order that depends on the device only where the devices have different sums anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mithril.ir import Graph, Node, Value
from mithril.mesh import carry
from mithril.ops.collective import AllGather, AllReduce, AxisIndex, collective_of
from mithril.plan import Program

Axes = frozenset[str]
Varying = Mapping[Value, Axes]


def find_varying(program: Program) -> Varying:
    """Return the axes along which each value of a program differs, those of bodies included.

    Args:
        program: a local one, without algorithms of collectives, which make equal values of what
            differs by permutes.
    """
    found: dict[Value, Axes] = {}
    given = [
        frozenset(axis for axes in carry(port.sharding, program.mesh).dims for axis in axes)
        | frozenset(axis for axis, _ in port.sharding.partial)
        for port in program.inputs
    ]
    _follow(program.graph, given, found)
    return found


def _follow(graph: Graph, given: Sequence[Axes], found: dict[Value, Axes]) -> None:
    found |= zip(graph.inputs, given, strict=True)
    for node in graph.nodes:
        op = collective_of(node.op)
        if node.op.bodies:
            _follow_loop(node, found)
        elif isinstance(node.op, AxisIndex):
            found[node.outputs[0]] = frozenset(node.op.axes)
        elif op is not None:
            own, is_same = frozenset(op.axes), isinstance(op, AllGather | AllReduce)
            for value, x in zip(node.outputs, node.inputs, strict=True):
                found[value] = found[x] - own if is_same else found[x] | own
        else:
            axes = frozenset[str]().union(*(found[value] for value in node.inputs))
            found |= dict.fromkeys(node.outputs, axes)


def _follow_loop(node: Node, found: dict[Value, Axes]) -> None:
    """Follow bodies until what they carry differs along no more axes than before."""
    carried = len(node.op.carries)
    given = [found[value] for value in node.inputs]
    made: list[Axes] = []
    for body in node.op.bodies:
        while True:
            _follow(body, given, found)
            made = [found[value] for value in body.outputs.values()]
            grown = [own | more for own, more in zip(given, made[:carried], strict=False)]
            if grown == given[:carried]:
                break
            given = [*grown, *given[carried:]]
    found |= zip(node.outputs, made, strict=True)


__all__ = ["Varying", "find_varying"]
