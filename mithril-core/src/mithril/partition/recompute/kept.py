"""What is kept in any case, whichever layers are recomputed and whatever budget there is.

That is what does not differ from micro-batch to micro-batch, which is there once for all of them,
and what a collective has brought that shall not run again. What only brings an input into place
(a cast, a gather of a parameter at rest) is none of that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import all_nodes, regions
from mithril.mesh import MICRO, Mesh, list_origins
from mithril.ops.collective import AllGather, Collective, TakeShard
from mithril.ops.elementwise import Cast
from mithril.ops.shape import Movement
from mithril.partition.recompute.asked import Recompute
from mithril.partition.recompute.residuals import find_fixed
from mithril.partition.recompute.rewrite import list_in_time
from mithril.plan import Program


def find_kept(program: Program, asked: Recompute) -> frozenset[Value]:
    """Return the values of a local program, and of bodies in it, that may not be dropped.

    Args:
        program: forward and backward.
        asked: over which axes nothing is exchanged again.
    """
    return frozenset((*_list_once(program), *_list_exchanged(program, asked)))


def find_brought(
    graph: Graph, nodes: Sequence[Node], inputs: Collection[Value] | None = None
) -> frozenset[Value]:
    """Return what is an input in another form or place: cast, reshaped, gathered, cut.

    Args:
        graph: the inputs are of it.
        nodes: some of its nodes, in order.
        inputs: some of its inputs; None for all.
    """
    fixed, given = find_fixed(graph), graph.inputs if inputs is None else inputs
    found = set(given)
    for node in nodes:
        others = [value for value in node.inputs if value not in fixed]
        if len(others) == 1 and others[0] in found and _only_brings(node):
            found.update(node.outputs)
    return frozenset(found.difference(given))


def find_gathered(
    program: Program, names: Collection[str], others: Collection[str]
) -> frozenset[Value]:
    """Return what gathers bring of some inputs.

    Args:
        program: a local one.
        names: of these inputs.
        others: mesh axes, as a user knows them, over which gathers do not count.
    """
    if not names:
        return frozenset()
    inputs = [value for value in program.graph.inputs if value.name in names]
    gathers = (
        node
        for node in _list_gathers(program, inputs)
        if not set(others).intersection(_list_axes(node, program.mesh))
    )
    return frozenset(value for node in gathers for value in node.outputs)


def find_gathered_axes(program: Program) -> frozenset[str]:
    """Return the mesh axes, as a user knows them, over which inputs are gathered.

    Args:
        program: forward and backward.
    """
    gathers = _list_gathers(program, program.graph.inputs)
    return frozenset(axis for node in gathers for axis in _list_axes(node, program.mesh))


def _list_gathers(program: Program, inputs: Collection[Value]) -> list[Node]:
    """Return what gathers inputs, or what they are in another form."""
    nodes = program.graph.nodes
    brought = find_brought(program.graph, nodes, inputs)
    return [n for n in nodes if isinstance(n.op, AllGather) and brought.issuperset(n.outputs)]


def _list_once(program: Program) -> Iterator[Value]:
    """Yield what is the same for all micro-batches; a loop runs for one of them as a whole."""
    in_time = list_in_time(program)
    if in_time is None:
        return
    for node in program.graph.nodes:
        if in_time.isdisjoint(node.outputs):
            yield from (value for inner in all_nodes(node) for value in inner.outputs)


def _list_exchanged(program: Program, asked: Recompute) -> Iterator[Value]:
    """Yield what collectives over axes have brought over which nothing is exchanged again."""
    axes = asked.kept_axes
    for region in regions(program.graph) if axes else ():
        brought = find_brought(region.graph, region.graph.nodes)
        for node in region.graph.nodes:
            is_again = axes.isdisjoint(_list_axes(node, program.mesh))
            if not is_again and brought.isdisjoint(node.outputs):
                yield from node.outputs


def _list_axes(node: Node, mesh: Mesh) -> list[str]:
    """Return the axes, as a user knows them, over which a node exchanges data."""
    if not isinstance(node.op, Collective):
        return []
    return list_origins(mesh, node.op.axes)


def _only_brings(node: Node) -> bool:
    op = node.op
    if isinstance(op, Collective):
        return not op.reduces and MICRO not in op.axes
    return isinstance(op, Cast | Movement | TakeShard)


__all__ = ["find_brought", "find_gathered", "find_gathered_axes", "find_kept"]
