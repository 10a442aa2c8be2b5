"""Which forward values are dropped where layers say it: all but what enters a block.

A value that another block reads, or that leaves the program, is kept. So is, of micro-batches, what
is the same for all of them. What only brings an input into place (a cast, a gather of a parameter
at rest) is done anew. In a loop the body is a block: only what an iteration starts from is kept.

The last block is not recomputed where its backward follows at once: nothing would be saved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from mithril.ir import Graph, Node, Value
from mithril.mesh import MICRO, Mesh
from mithril.ops.collective import Collective, TakeShard
from mithril.ops.elementwise import Cast
from mithril.ops.shape import Movement
from mithril.partition.recompute.asked import Recompute
from mithril.partition.recompute.blocks import BlockOf, find_blocks, match_blocks
from mithril.partition.recompute.residuals import find_fixed, split_phases
from mithril.partition.recompute.rewrite import list_in_time
from mithril.plan import Program


def drop_in_layers(program: Program, asked: Recompute) -> frozenset[Value]:
    """Return the values of a local program that are dropped because layers are recomputed.

    Args:
        program: forward and backward.
        asked: which layers, and which collectives are not repeated.
    """
    in_time = list_in_time(program)
    rules = _Rules(asked, program.mesh, in_time)
    return frozenset(rules.drop(program.graph, is_last_kept=in_time is None))


@dataclass(frozen=True, slots=True, eq=False)
class _Rules:
    """What may be dropped.

    Args:
        asked: by the user.
        mesh: of the program.
        in_time: what differs from micro-batch to micro-batch; None without them.
    """

    asked: Recompute
    mesh: Mesh
    in_time: Collection[Value] | None

    def drop(self, graph: Graph, *, is_last_kept: bool) -> Iterator[Value]:
        """Yield what is dropped of a graph that holds forward and backward, and of bodies."""
        early, late = split_phases(graph)
        for node in graph.nodes:
            for body in node.op.bodies:
                yield from replace(self, in_time=None).drop(body, is_last_kept=is_last_kept)
        if not late:
            return
        brought = _find_brought(graph, early)
        nodes = [node for node in early if node.outputs[0] not in brought]
        block_of = self._find_blocks(nodes, is_last_kept)
        yield from self._drop_early(graph, early, brought, block_of)

    def _find_blocks(self, nodes: Sequence[Node], is_last_kept: bool) -> BlockOf:
        if self.asked.layers:
            return match_blocks(self.asked.layers)
        block_of = find_blocks(nodes)
        blocks = list(dict.fromkeys(map(block_of, nodes)))
        if not is_last_kept or len(blocks) < 2:
            return block_of
        return lambda node: None if block_of(node) == blocks[-1] else block_of(node)

    def _drop_early(
        self, graph: Graph, early: Sequence[Node], brought: Collection[Value], block_of: BlockOf
    ) -> Iterator[Value]:
        leaving = set(graph.outputs.values())
        readers: dict[Value, set[str | None]] = {}
        for node in reversed(early):
            if node.outputs[0] in brought:
                blocks = set().union(*(readers.get(v, set()) for v in node.outputs)) - {None}
                is_dropped = bool(blocks)
            elif node.op.bodies:
                yield from self._drop_inside(node, block_of)
                blocks, is_dropped = {block_of(node) or ""}, False
            else:
                blocks = {block_of(node)}
                others = set().union(*(readers.get(v, set()) for v in node.outputs)) - blocks
                is_dropped = None not in blocks and not others and self._may_drop(node)
            if is_dropped and leaving.isdisjoint(node.outputs):
                yield from (v for v in node.outputs if self._may_vary(v))
            for value in node.inputs:
                readers.setdefault(value, set()).update(blocks)

    def _drop_inside(self, node: Node, block_of: BlockOf) -> Iterator[Value]:
        """Yield what is dropped of the body of a forward loop."""
        if not all(map(self._may_vary, node.outputs)):
            return
        (body,) = node.op.bodies
        whole = block_of(node) is not None or not self.asked.layers
        of: BlockOf = (lambda inner: "") if whole else block_of
        graph = Graph(body.inputs, body.nodes, {} if whole else _list_carries(node))
        inside = replace(self, in_time=None)  # a loop runs for one micro-batch as a whole
        yield from inside._drop_early(graph, body.nodes, _find_brought(body, body.nodes), of)

    def _may_drop(self, node: Node) -> bool:
        """Whether an exchange may be repeated."""
        kept = self.asked.kept_axes
        if not kept or not isinstance(node.op, Collective):
            return True
        origins = {axis.name: axis.origin for axis in self.mesh.axes}
        return kept.isdisjoint(origins[axis] for axis in node.op.axes)

    def _may_vary(self, value: Value) -> bool:
        return self.in_time is None or value in self.in_time


def _find_brought(graph: Graph, nodes: Sequence[Node]) -> frozenset[Value]:
    """Return what is an input in another form or place: cast, reshaped, gathered, cut."""
    fixed = find_fixed(graph)
    found = set(graph.inputs)
    for node in nodes:
        others = [value for value in node.inputs if value not in fixed]
        if len(others) == 1 and others[0] in found and _only_brings(node):
            found.update(node.outputs)
    return frozenset(found.difference(graph.inputs))


def _only_brings(node: Node) -> bool:
    op = node.op
    if isinstance(op, Collective):
        return not op.reduces and MICRO not in op.axes
    return isinstance(op, Cast | Movement | TakeShard)


def _list_carries(node: Node) -> dict[str, Value]:
    """Return what an iteration of a loop hands on to the next."""
    (body,) = node.op.bodies
    return dict(list(body.outputs.items())[: len(node.op.carries)])


__all__ = ["drop_in_layers"]
