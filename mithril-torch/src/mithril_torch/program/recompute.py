"""Computes elementwise ops of the forward again where the backward reads them.

What they read is there anyway, as the backward reads that, too, and kernels of fusions read it just
once (`program.fusions`): so nothing is kept for the backward that costs nothing to make again.
"""

from __future__ import annotations

from dataclasses import replace

from mithril.spi import Graph, Node, Phase, Value
from mithril.spi.ops import Constant, Elementwise

from mithril_torch.program.fusions import find_written


def recompute_elementwise(graph: Graph) -> Graph:
    """Return a graph that computes the same and keeps less of the forward for the backward.

    Args:
        graph: a local one; the bodies of its loops, which belong to one phase, stay as they are.
    """
    recomputing = _Recomputing(graph)
    nodes = [made for node in graph.nodes for made in recomputing.list_nodes(node)]
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


class _Recomputing:
    """Which nodes are computed again.

    Args:
        graph: a local one.
    """

    def __init__(self, graph: Graph) -> None:
        self._uses, self._makers = graph.uses(), graph.producers()
        places = {node: place for place, node in enumerate(graph.nodes)}
        self._places = places
        self._last = {
            value: max(places[reader] for reader, _ in readers)
            for value, readers in self._uses.items()
            if readers
        }
        self._written: dict[Value, int] = {}
        for node in graph.nodes:
            for value in find_written(node):
                self._written.setdefault(value, places[node])
        outputs = set(graph.outputs.values())
        self._last |= dict.fromkeys([*graph.inputs, *outputs], len(places))
        self._found = {
            node.outputs[0]: node
            for node in graph.nodes
            if node.phase is Phase.forward
            and isinstance(node.op, Elementwise)
            and node.outputs[0] not in outputs
            and self._is_free(node)
        }

    def list_nodes(self, node: Node) -> list[Node]:
        """Return a node, after what it reads and what is computed again for it."""
        if node.phase is not Phase.backward or not isinstance(node.op, Elementwise):
            return [node]
        made: list[Node] = []
        new: dict[Value, Value] = {}
        for value in dict.fromkeys(node.inputs):
            maker = self._found.get(value)
            if maker is not None:
                new[value] = copy = Value(value.type, value.name)
                made.append(replace(maker, outputs=(copy,), phase=node.phase))
        inputs = tuple(new.get(value, value) for value in node.inputs)
        return [*made, replace(node, inputs=inputs)] if made else [node]

    def _is_free(self, node: Node) -> bool:
        """Return whether the backward can compute a node again, and what that reads is there."""
        readers = [reader for reader, _ in self._uses.get(node.outputs[0], ())]
        late = [reader for reader in readers if reader.phase is not Phase.forward]
        if not late or len(late) == len(readers):
            return False
        if not all(r.phase is Phase.backward and isinstance(r.op, Elementwise) for r in late):
            return False
        until = max(self._places[reader] for reader in late)
        if any(self._written.get(x, until) < until for x in node.inputs):
            return False
        large = (x for x in node.inputs if 2 * x.type.nbytes > node.outputs[0].type.nbytes)
        return all(self._last[x] >= until or self._is_constant(x) for x in large)

    def _is_constant(self, value: Value) -> bool:
        maker = self._makers.get(value)
        return maker is not None and isinstance(maker.op, Constant)


__all__ = ["recompute_elementwise"]
