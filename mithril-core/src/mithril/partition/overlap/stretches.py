"""Stretches: the runs of nodes of one block and phase, in the order in which they compute.

Blocks are the outermost layers that repeat, and the layers beside them, as recomputation has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mithril.ir import Graph, Node, Phase
from mithril.ops.collective import collective_of
from mithril.partition.recompute.layers import find_layers, is_product


@dataclass(frozen=True, slots=True)
class Stretches:
    """The stretches of a graph.

    Args:
        of: for each node the number of its stretch; a collective is in that which it stands in.
        starts: for each stretch the position of the first node that computes in it.
    """

    of: tuple[int, ...]
    starts: tuple[int, ...]

    def find_start(self, number: int) -> int:
        """Return the position where a stretch starts; that of the graph for one before all."""
        return self.starts[number] if number >= 0 else 0


def find_stretches(graph: Graph) -> Stretches:
    """Return the stretches of a graph.

    Args:
        graph: a local one.
    """
    blocks = _name_blocks(graph)
    of: list[int] = []
    starts: list[int] = []
    current: object = None
    for position, node in enumerate(graph.nodes):
        key = _find_key(node, blocks)
        if key is not None and key != current:
            current = key
            starts.append(position)
        of.append(len(starts) - 1)
    return Stretches(tuple(of), tuple(starts))


def _find_key(node: Node, blocks: Mapping[str, str | None]) -> object:
    """Return phase and block of a node that computes in one; None for others."""
    if not node.inputs or collective_of(node.op) is not None or node.op.is_view:
        return None
    if node.phase == Phase.update:
        return node.phase, ""
    block = blocks.get(node.scope)
    return None if block is None else (node.phase, block)


def _name_blocks(graph: Graph) -> dict[str, str | None]:
    """Return the block of each layer path; a backward has the same layers as its forward.

    The backward of a stage has little of its forward: no products.
    """
    local = [node for node in graph.nodes if node.scope and node.phase != Phase.update]
    forward = [node for node in local if node.phase == Phase.forward]
    nodes = forward if any(map(is_product, forward)) else local
    block_of = find_layers(nodes)
    return {node.scope: block_of(node) for node in nodes}


__all__ = ["Stretches", "find_stretches"]
