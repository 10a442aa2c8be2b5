"""Sums over micro-batches are taken behind what commutes with them, where that pays.

Those that a loop would take in every iteration are taken behind the loop.

A parameter that is kept at rest and stacked has its gradient reduced slice by slice. Over devices
that has to be so, or the loop would hold all of them at once; over time it cannot be, because a
loop runs before the next micro-batch starts.

Sums over different axes commute, and a stack of sums is the sum of stacks. With d the devices, m
the micro-batches and g(i) what iteration i makes:

    stack over i of (sum over m of sum over d of g(i))
        = sum over m of (stack over i of sum over d of g(i))

so the sum over m moves behind the loop, and the one over d stays in it. The same holds of all else
that is linear in the sum: a slice that is gathered over other devices, cast, or cut into parts.

A gradient that an update takes and that lives at rest is split over devices in every micro-batch,
so that each device adds up its own part alone, and not the whole to give most of it away:

    scatter over d of (sum over m of g) = sum over m of (scatter over d of g)

One whose compression keeps something from step to step is summed over the micro-batches first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mithril.ir import Graph, Node, Repeat, Value
from mithril.mesh import MICRO
from mithril.ops.collective import AllReduce, Collective, KeepFirst, ReduceScatter, TakeShard
from mithril.ops.compression import MarkGradient
from mithril.partition.pipeline.microbatch_index import reads_microbatch_index
from mithril.plan import Program
from mithril.plan.names import gradient_of


def hoist_reductions(program: Program, resting: Collection[str] = ()) -> Program:
    """Return the program with sums over micro-batches behind loops, and behind scatters.

    Args:
        program: on a mesh that may have the axis of micro-batches.
        resting: names of gradients that an update takes and that live at rest.
    """
    nodes: list[Node] = []
    for node in program.graph.nodes:
        if isinstance(node.op, Repeat):
            nodes += _hoist(node, node.op)
        else:
            nodes.append(node)
    graph = Graph(program.graph.inputs, tuple(nodes), program.graph.outputs)
    if MICRO in program.mesh.names:
        ops = (n.op for n in nodes)
        kept = {op.owner for op in ops if isinstance(op, MarkGradient) and op.keeps_state}
        resting = set(resting) - {gradient_of(name) for name in kept}
        last = {v.name: v for n in nodes for v in n.outputs if v.name in resting}
        for value in last.values():  # the form of it that is taken, or leaves
            graph = _sum_last(graph, value)
    return replace(program, graph=graph)


def _sum_last(graph: Graph, made: Value) -> Graph:
    """Return the graph in which a value is summed over micro-batches when all else is done."""
    found = _sum_over_time(graph, made, {**graph.uses(), made: ()})
    if found is None or made in found.outputs:
        return graph
    graph = _without(graph, found)
    term = Value(made.type, made.name)  # of one micro-batch
    nodes: list[Node] = []
    for node in graph.nodes:
        if made not in node.outputs:
            nodes.append(node)
            continue
        nodes.append(replace(node, outputs=tuple(term if v is made else v for v in node.outputs)))
        over_time = replace(found, op=AllReduce((MICRO,), "sum"), phase=node.phase)
        nodes.append(replace(over_time, inputs=(term,), outputs=(made,)))
    return Graph(graph.inputs, tuple(nodes), graph.outputs)


def _hoist(node: Node, op: Repeat) -> list[Node]:
    """Return a loop without such sums, and the sums behind it."""
    body = op.body
    outputs, behind = list(node.outputs), []
    for position, made in list(enumerate(op.body.outputs.values()))[op.carried :]:
        found = _sum_over_time(body, made, body.uses())
        if found is None:
            continue
        body = _without(body, found)
        terms = Value(node.outputs[position].type)  # the stack of one micro-batch
        outputs[position] = terms
        over_time = replace(found, op=AllReduce((MICRO,), "sum"), phase=node.phase)
        behind.append(replace(over_time, inputs=(terms,), outputs=(node.outputs[position],)))
    if not behind:
        return [node]
    return [replace(node, op=replace(op, body=body), outputs=tuple(outputs)), *behind]


def _sum_over_time(body: Graph, made: Value, uses: Mapping[Value, Sequence[object]]) -> Node | None:
    """Return the sum over micro-batches that a result of a body is made of, linearly."""
    producers, fixed = body.producers(), _find_fixed(body)
    value = made
    # Only a chain of linear nodes that end in this result commutes with its stack; a sum that
    # something else reads, too, has to stay where it is.
    while value in producers:
        node = producers[value]
        operand = _linear_operand(node, fixed)
        if operand is None or len(uses.get(value, ())) > (value is not made):
            return None
        if isinstance(node.op, AllReduce) and MICRO in node.op.axes:
            return node
        value = operand
    return None


def _find_fixed(body: Graph) -> set[Value]:
    """Return the values that depend on no input: the same for every micro-batch."""
    fixed: set[Value] = set()
    for node in body.nodes:
        if fixed.issuperset(node.inputs) and not reads_microbatch_index(node):
            fixed.update(node.outputs)
    return fixed


def _linear_operand(node: Node, fixed: set[Value]) -> Value | None:
    """Return the one operand that is not fixed, if the node is linear in it.

    What a node makes of a sum of such operands is then the sum of what it makes of each.
    """
    places = [place for place, value in enumerate(node.inputs) if value not in fixed]
    if len(places) != 1 or node.op.bodies:
        return None
    op = node.op
    if isinstance(op, Collective):
        is_sum = isinstance(op, AllReduce | ReduceScatter) and op.reduction == "sum"
        in_time = MICRO in op.axes and not isinstance(op, AllReduce)
        is_linear = not in_time and (is_sum or not op.reduces)
    elif isinstance(op, TakeShard | KeepFirst):
        is_linear = True
    else:
        types = [v.type for v in node.inputs], [v.type for v in node.outputs]
        is_linear = (places[0],) in op.rule(*types).linear
    return node.inputs[places[0]] if is_linear else None


def _without(body: Graph, found: Node) -> Graph:
    """Return a body whose sum is one over devices only, or none at all."""
    op = found.op
    assert isinstance(op, AllReduce), "sums over time are all-reduces"
    axes = tuple(axis for axis in op.axes if axis != MICRO)
    if axes:
        fewer = replace(found, op=replace(op, axes=axes))
        nodes = tuple(fewer if node is found else node for node in body.nodes)
        return Graph(body.inputs, nodes, body.outputs)
    (before,), (after,) = found.inputs, found.outputs
    nodes = tuple(
        replace(node, inputs=tuple(before if v is after else v for v in node.inputs))
        for node in body.nodes
        if node is not found
    )
    outputs = {name: before if v is after else v for name, v in body.outputs.items()}
    return Graph(body.inputs, nodes, outputs)
