"""Which results can be made in the memory of operands that nobody reads afterwards.

An engine that takes memory for every result may write over what is used for the last time instead,
if that memory was taken for it alone, and whoever read it before has kept nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from mithril.ir import Graph, Node, Value
from mithril.ops.shape import Reshape


def find_reused_operands(
    graph: Graph, operands: Callable[[Node], Sequence[int]], is_anew: Callable[[Node], bool]
) -> dict[Node, int]:
    """Return the nodes whose first result is made in the memory of an operand, with that operand.

    Args:
        graph: a local one; the bodies of its loops are not looked into.
        operands: returns which operands of a node its kernel can write its first result over.
        is_anew: returns whether the results of a node share no memory with its operands.
    """
    memory, last = _Memory(graph, is_anew), graph.last_uses()
    found: dict[Node, int] = {}
    for node in graph.nodes:
        candidates = [i for i in operands(node) if _fits(node, node.inputs[i])]
        if not candidates or memory.is_sent(node.outputs[0]):
            continue
        dying = last.get(node, ())
        over = next((i for i in candidates if memory.is_free(node.inputs[i], dying)), None)
        if over is not None:
            found[node] = over
    return found


def _fits(node: Node, x: Value) -> bool:
    """Whether a node reads each operand once, and an operand has the type of its result."""
    type = node.outputs[0].type
    return len(set(node.inputs)) == len(node.inputs) and x.type == type and type.dtype.is_float


class _Memory:
    """Whose the memory of a graph's values is.

    Args:
        graph: a local one.
        is_anew: returns whether the results of a node share no memory with its operands.
    """

    def __init__(self, graph: Graph, is_anew: Callable[[Node], bool]) -> None:
        self._makers = graph.producers()
        self._uses = graph.uses()
        self._outputs = frozenset(graph.outputs.values())
        self._is_anew = is_anew

    def is_sent(self, value: Value) -> bool:
        """Return whether a value is exchanged between devices, from a buffer of that."""
        return any(reader.op.is_collective for reader, _ in self._uses.get(value, ()))

    def is_free(self, value: Value, dying: Collection[Value]) -> bool:
        """Return whether a value may be written over by the last node that reads it.

        Args:
            value: what it reads.
            dying: what nobody reads after that node.
        """
        is_last = value in dying and value not in self._outputs
        readers = self._uses.get(value, ())
        return is_last and self._is_own(value) and all(self._is_anew(node) for node, _ in readers)

    def _is_own(self, value: Value) -> bool:
        """Return whether memory was taken for a value alone, or for what it is another shape of."""
        maker = self._makers.get(value)
        if maker is None or not isinstance(maker.op, Reshape):
            return maker is not None and self._is_anew(maker)
        (source,) = maker.inputs
        is_only = len(self._uses[source]) == 1 and source not in self._outputs
        return is_only and self._is_own(source)


__all__ = ["find_reused_operands"]
