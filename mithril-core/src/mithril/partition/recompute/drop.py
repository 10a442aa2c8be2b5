"""Which forward values are dropped where layers say it: all but what enters one.

A value that another layer reads, or that leaves the program, is kept. So is what may not be dropped
(`kept`). What only brings an input into place (a cast, a gather of a parameter at rest) is done
anew. The body of a loop is recomputed whole: only what an iteration starts from is kept.

The last layer is not recomputed where its backward follows at once: nothing would be saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from mithril.ir import Graph, Node, Value
from mithril.mesh import MICRO
from mithril.partition.recompute.asked import Recompute
from mithril.partition.recompute.kept import find_brought, find_gathered, find_kept
from mithril.partition.recompute.layers import LayerOf, find_layers, match_layers
from mithril.partition.recompute.residuals import split_phases
from mithril.plan import Program


def drop_in_layers(
    program: Program, asked: Recompute, once: Collection[str] = ()
) -> frozenset[Value]:
    """Return the values of a local program that are dropped because layers are recomputed.

    Args:
        program: forward and backward.
        asked: which layers, and which collectives are not repeated.
        once: names of inputs that are gathered once, for both phases.
    """
    is_last_kept = MICRO not in program.mesh.sizes
    dropped = frozenset(_Layers(asked, is_last_kept).drop(program.graph))
    gathered = find_gathered(program, once, asked.repeated_axes)
    return dropped - find_kept(program, asked) - gathered


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """Drops what is inside layers.

    Args:
        asked: by the user.
        is_last_kept: whether the last layer is not recomputed.
    """

    asked: Recompute
    is_last_kept: bool

    def drop(self, graph: Graph) -> Iterator[Value]:
        """Yield what is dropped of a graph that holds forward and backward, and of bodies."""
        early, late = split_phases(graph)
        for node in graph.nodes:
            for body in node.op.bodies:
                yield from self.drop(body)
        if not late:
            return
        brought = find_brought(graph, early)
        nodes = [node for node in early if node.outputs[0] not in brought]
        yield from self._drop_early(graph, early, brought, self._find_layers(nodes))

    def _find_layers(self, nodes: Sequence[Node]) -> LayerOf:
        if self.asked.layers:
            return match_layers(self.asked.layers)
        layer_of = find_layers(nodes)
        layers = list(dict.fromkeys(map(layer_of, nodes)))
        if not self.is_last_kept or len(layers) < 2:
            return layer_of
        return lambda node: None if layer_of(node) == layers[-1] else layer_of(node)

    def _drop_early(
        self, graph: Graph, early: Sequence[Node], brought: Collection[Value], layer_of: LayerOf
    ) -> Iterator[Value]:
        leaving = set(graph.outputs.values())
        readers: dict[Value, set[str | None]] = {}
        for node in reversed(early):
            if node.outputs[0] in brought:
                layers = set().union(*(readers.get(v, set()) for v in node.outputs)) - {None}
                is_dropped = bool(layers)
            elif node.op.bodies:
                yield from self._drop_inside(node, layer_of)
                layers, is_dropped = {layer_of(node) or ""}, False
            else:
                layers = {layer_of(node)}
                others = set().union(*(readers.get(v, set()) for v in node.outputs)) - layers
                is_dropped = None not in layers and not others
            if is_dropped and leaving.isdisjoint(node.outputs):
                yield from node.outputs
            for value in node.inputs:
                readers.setdefault(value, set()).update(layers)

    def _drop_inside(self, node: Node, layer_of: LayerOf) -> Iterator[Value]:
        """Yield what is dropped of the body of a forward loop."""
        (body,) = node.op.bodies
        whole = layer_of(node) is not None or not self.asked.layers
        of: LayerOf = (lambda inner: "") if whole else layer_of
        graph = Graph(body.inputs, body.nodes, {} if whole else _list_carries(node))
        yield from self._drop_early(graph, body.nodes, find_brought(body, body.nodes), of)


def _list_carries(node: Node) -> dict[str, Value]:
    """Return what an iteration of a loop hands on to the next."""
    (body,) = node.op.bodies
    return dict(list(body.outputs.items())[: len(node.op.carries)])


__all__ = ["drop_in_layers"]
