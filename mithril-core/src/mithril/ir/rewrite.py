"""Going through graphs, and rewriting them, with the bodies of loops and checkpoints.

A pass that puts something else in the place of some nodes is a function of one node:

    def visit(builder, node, operands):
        return [ops.relu(operands[0])] if is_wanted(node) else None

    graph = rewrite(graph, visit)

Everything else is done here: a node for which it returns None is copied, and its bodies are
rewritten by the same function; names stay; what is made bears the scope, source, phase and cause of
the node whose place it takes. In a body, tensors from around it may be used: they become operands.

A pass that only leaves nodes out, or puts them in another order, keeps the values as they are; for
the bodies it has `map_bodies`. A pass that only reads has `walk`, `regions` and `unroll`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from mithril.errors import GraphError
from mithril.ir.graph import Graph, Node, Value
from mithril.ir.op import Op, Tensors
from mithril.ir.tensor import Builder, Tensor

Visit: TypeAlias = "Callable[[Builder, Node, Tensors], Tensors | None]"
"""Takes the builder of the new graph, a node of the old one, and its operands in the new one;
returns the results that take the place of the node's, or None to copy it."""


def rewrite(graph: Graph, visit: Visit) -> Graph:
    """Return a graph with other nodes in the place of some.

    Args:
        graph: any graph; it stays as it is.
        visit: is asked for every node, in order, those of bodies included.

    Returns:
        A graph of values of its own, with inputs and outputs of the same names.

    Raises:
        ShapeError: a node does not take what its operands have become.
        GraphError: `visit` returned more, or fewer, results than a node has.

    >>> from mithril import ops
    >>> from mithril.types import DType, TensorType
    >>> builder = Builder()
    >>> x = builder.input(TensorType((2,), DType.float32), "x")
    >>> graph = builder.build({"y": ops.exp(ops.negate(x))})
    >>> def visit(builder, node, operands):
    ...     return [ops.sin(operands[0])] if isinstance(node.op, ops.Exp) else None
    >>> [node.op.name for node in rewrite(graph, visit).nodes]
    ['negate', 'sin']
    """
    return _rewrite_within(None, graph, visit)[1]


def copy_graph(graph: Graph) -> Graph:
    """Return the same graph with values of its own, so that both can be parts of one graph."""
    return rewrite(graph, keep)


def keep(builder: Builder, node: Node, operands: Tensors) -> None:
    """Visit a node and leave it as it is."""


def inline(
    graph: Graph, builder: Builder, operands: Sequence[Tensor], visit: Visit = keep
) -> dict[str, Tensor]:
    """Append a graph's nodes to a builder, rewritten, and return the graph's outputs there.

    Args:
        graph: what is appended.
        builder: where to.
        operands: a tensor of the builder for each input of the graph.
        visit: as of `rewrite`; by default nodes stay as they are.
    """
    made: dict[Value, Tensor] = dict(zip(graph.inputs, operands, strict=True))
    for node in graph.nodes:
        given = [made[value] for value in node.inputs]
        with builder.like(node):
            results = visit(builder, node, given)
            if results is None:
                results = _copy(builder, node, given, visit)
        if len(results) != len(node.outputs):
            raise GraphError(
                f"op '{node.op.name}' at {node.where()} has {len(node.outputs)} results, the pass "
                f"puts {len(results)} in their place; return one tensor for each"
            )
        for old, new in zip(node.outputs, results, strict=True):
            made[old] = builder.assign_name(new, old.name)
    return {name: made[value] for name, value in graph.outputs.items()}


def map_bodies(node: Node, function: Callable[[Graph], Graph]) -> Node:
    """Return a node whose bodies are what a function makes of them; others stay the same node."""
    if not node.op.bodies:
        return node
    return replace(node, op=node.op.with_bodies([function(body) for body in node.op.bodies]))


# ------------------------------------------------------------------ reading


def walk(of: Graph | Node, times: int = 1) -> Iterator[tuple[Node, int]]:
    """Yield every node and how often it runs, a node before those of its bodies.

    Args:
        of: a graph, or one node and what is in it.
        times: how often that runs.
    """
    for node in of.nodes if isinstance(of, Graph) else (of,):
        yield node, times
        for body in node.op.bodies:
            yield from walk(body, times * node.op.iterations)


def all_nodes(of: Graph | Node) -> Iterator[Node]:
    """Yield every node of a graph, or a node, and of the bodies in it; each body once."""
    return (node for node, _ in walk(of))


def communicates(of: Graph | Node) -> bool:
    """Return whether there is a collective in a graph, or whether a node is one or has one inside.

    >>> from mithril.types import DType, TensorType
    >>> builder = Builder()
    >>> communicates(builder.build({"y": builder.input(TensorType((2,), DType.float32), "x")}))
    False
    """
    if isinstance(of, Node) and not of.op.bodies:  # asked of thousands
        return of.op.is_collective
    return any(node.op.is_collective for node in all_nodes(of))


def is_alike(one: Graph, other: Graph) -> bool:
    """Whether two graphs are the same ops on the same operands, in one order.

    Inputs are paired in order; names of values, and what nodes say of code and causes,
    are not compared.

    Args:
        one: a graph.
        other: another one.
    """
    types = ([value.type for value in graph.inputs] for graph in (one, other))
    if next(types) != next(types) or len(one.nodes) != len(other.nodes):
        return False
    same = dict(zip(one.inputs, other.inputs, strict=True))
    for node, twin in zip(one.nodes, other.nodes, strict=True):
        if tuple(same[value] for value in node.inputs) != twin.inputs:
            return False
        if not _is_same_op(node.op, twin.op):
            return False
        same.update(zip(node.outputs, twin.outputs, strict=True))
    return {name: same[value] for name, value in one.outputs.items()} == dict(other.outputs)


def _is_same_op(one: Op, other: Op) -> bool:
    bodies = one.bodies, other.bodies
    if not any(bodies):
        return one == other
    if len(one.bodies) != len(other.bodies) or not all(map(is_alike, *bodies)):
        return False
    return one.with_bodies(other.bodies) == other


def unroll(graph: Graph) -> Iterator[Node]:
    """Yield the nodes that run, in that order and as often as they do; no node that has bodies."""
    for node in graph.nodes:
        if not node.op.bodies:
            yield node
        for _ in range(node.op.iterations):
            for body in node.op.bodies:
                yield from unroll(body)


@dataclass(frozen=True, slots=True)
class Region:
    """A graph, or a body in it, and how often it runs."""

    graph: Graph
    times: int


def regions(graph: Graph, times: int = 1) -> Iterator[Region]:
    """Yield the graph and the bodies in it, outermost first."""
    yield Region(graph, times)
    for node in graph.nodes:
        for body in node.op.bodies:
            yield from regions(body, times * node.op.iterations)


# ------------------------------------------------------------------ bodies


def _rewrite_within(outer: Builder | None, graph: Graph, visit: Visit) -> tuple[Builder, Graph]:
    """Return the builder of a rewritten graph, and that graph."""
    builder = Builder(outer)
    inputs = [builder.input(value.type, value.name) for value in graph.inputs]
    return builder, builder.build(inline(graph, builder, inputs, visit))


def _copy(builder: Builder, node: Node, operands: Tensors, visit: Visit) -> Tensors:
    """Append a node with its bodies rewritten; it takes what they use from around them, too."""
    if not node.op.bodies:
        return builder.copy(node, operands)
    rewritten = [_rewrite_within(builder, body, visit) for body in node.op.bodies]
    captured = list({x.value: x for inner, _ in rewritten for x in inner.captured}.values())
    bodies = []
    for (inner, body), old in zip(rewritten, node.op.bodies, strict=True):
        own = body.inputs[: len(old.inputs)]
        first = len(own) - len(node.op.slices)
        taken = (inner.own(x).value for x in captured)
        inputs = (*own[:first], *taken, *own[first:])
        bodies.append(Graph(inputs, body.nodes, body.outputs))
    first = len(operands) - len(node.op.slices)
    given = [*operands[:first], *captured, *operands[first:]]
    return builder.copy(replace(node, op=node.op.with_bodies(bodies)), given)
