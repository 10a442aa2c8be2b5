"""Compute forward values again in the backward instead of keeping them.

The values that are dropped are told by identity; everything else stays what it is. A late node (see
`residuals`) that reads a dropped value reads a clone of it: the nodes that made it stand again
directly before the first late node that needs them, and what they need that is not dropped is kept.
Clones are of the backward phase, and bear the layer and the line of what they repeat.

No compiler may see that a clone computes what the forward has computed: some operand of it comes
`after` a value of the backward that exists just before. Draws of random numbers depend on seed and
place alone, so a clone draws the same; collectives run again in the same order on every device.

A loop of the forward that stacks up a dropped value of its body does so no longer. The backward
loop, which took a slice of that stack in each iteration, computes it from slices of what is still
stacked. Its body is another computation than the forward's, so nothing has to be kept apart there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import all_nodes, map_bodies
from mithril.mesh import MICRO
from mithril.partition.pipeline.microbatch_index import varying
from mithril.partition.recompute.clone import Gates
from mithril.partition.recompute.levels import TopLevel
from mithril.partition.recompute.residuals import split_phases
from mithril.plan import Program
from mithril.transform.simplify import eliminate_dead


@dataclass(frozen=True, slots=True, eq=False)
class Recomputed:
    """A program whose backward computes values of the forward again.

    Args:
        program: the program.
        nodes: the forward nodes that run again, and how often in a run.
    """

    program: Program
    nodes: tuple[tuple[Node, int], ...] = ()


def recompute(program: Program, dropped: Collection[Value]) -> Program:
    """Return a local program whose backward computes some values of the forward again.

    Args:
        program: forward and backward.
        dropped: values that forward nodes make, in the graph or in bodies of its loops. What a
            dropped value is computed from is kept, unless it is dropped as well.

    Returns:
        The program; the same one if no late node needs any of the values.
    """
    return rewrite_program(program, dropped).program


def rewrite_program(program: Program, dropped: Collection[Value]) -> Recomputed:
    """Return what `recompute` returns, and which nodes run again."""
    rewriting = _Rewriting(frozenset(dropped), list_in_time(program))
    graph = rewriting.rewrite(program.graph)
    if graph is program.graph:
        return Recomputed(program)
    return Recomputed(replace(program, graph=eliminate_dead(graph)), tuple(rewriting.repeated))


def list_in_time(program: Program) -> frozenset[Value] | None:
    """Return the values that differ from micro-batch to micro-batch; None without micro-batches.

    The others are computed once for all micro-batches: only what differs may be dropped, and what
    a clone comes after has to be such a value, too.
    """
    if MICRO not in program.mesh.sizes:
        return None
    return frozenset(value for value, axes in varying(program).items() if MICRO in axes)


@dataclass(slots=True)
class _Rewriting:
    """Goes through a graph and the bodies in it.

    Args:
        dropped: as of `recompute`.
        in_time: the values that differ from micro-batch to micro-batch; None without these.
        repeated: the nodes that run again, and how often.
    """

    dropped: frozenset[Value]
    in_time: Collection[Value] | None
    repeated: list[tuple[Node, int]] = field(default_factory=list)

    def rewrite(self, graph: Graph, times: int = 1) -> Graph:
        """Return the graph with clones, and what nobody needs any more; itself if it has none."""
        if not self.dropped:
            return graph
        graph = self._rewrite_bodies(graph, times)
        early, late = split_phases(graph)
        if not late or self.dropped.isdisjoint(_list_made(early)):
            return graph
        level = TopLevel(early, self.dropped, Gates(graph, early, self.dropped, self.in_time))
        is_late = frozenset(late)
        nodes: list[Node] = []
        for node in graph.nodes:
            nodes += level.renew(node) if node in is_late else [node]
        outputs = {name: level.current(value) for name, value in graph.outputs.items()}
        self.repeated += [(node, often * times) for node, often in level.list_repeated()]
        return Graph(graph.inputs, tuple(map(level.patch, nodes)), outputs)

    def _rewrite_bodies(self, graph: Graph, times: int) -> Graph:
        """Return the graph whose loops recompute in gradients that their bodies take themselves."""
        nodes = [self._rewrite_inside(node, times) for node in graph.nodes]
        if all(new is old for new, old in zip(nodes, graph.nodes, strict=True)):
            return graph
        return Graph(graph.inputs, tuple(nodes), graph.outputs)

    def _rewrite_inside(self, node: Node, times: int) -> Node:
        often = times * node.op.iterations
        found = map_bodies(node, lambda body: self.rewrite(body, often))
        pairs = zip(found.op.bodies, node.op.bodies, strict=True)
        return node if all(new is old for new, old in pairs) else found


def _list_made(nodes: Sequence[Node]) -> set[Value]:
    """Return what nodes, and those of their bodies, make."""
    return {value for node in nodes for inner in all_nodes(node) for value in inner.outputs}


__all__ = ["Recomputed", "list_in_time", "recompute", "rewrite_program"]
