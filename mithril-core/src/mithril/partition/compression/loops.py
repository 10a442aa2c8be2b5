"""Takes sums that a loop has in its body behind it, of all iterations at once.

What is kept from step to step of a gradient is kept of the whole stack. A stack of sums is the sum
of stacks, and the scattered dimension is one further behind:

    stack over i of (scatter of g(i) along d) = scatter of (stack over i of g(i)) along d + 1

A sum over micro-batches that already stands behind the loop comes first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mithril.errors import PlanError
from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import all_nodes
from mithril.mesh import MICRO
from mithril.ops.collective import AllReduce, ReduceScatter
from mithril.types import TensorType


def take_sums_behind_loops(graph: Graph, sums: Mapping[Node, str]) -> Graph:
    """Return the graph with sums behind the loops that have them.

    Args:
        graph: of a local program.
        sums: over devices, and the parameters whose gradients they are of.

    Raises:
        PlanError: a loop does more with a sum than to give it back.
    """
    own = set(graph.nodes)
    for node, parameter in sums.items():
        if node not in own:
            graph = _take_behind(graph, node, parameter)
    return graph


def _take_behind(graph: Graph, sum: Node, parameter: str) -> Graph:
    for loop in graph.nodes:
        if loop.op.bodies and any(node is sum for node in all_nodes(loop)):
            return _split_loop(graph, loop, sum, parameter)
    raise _is_used_inside(parameter)


def _split_loop(graph: Graph, loop: Node, sum: Node, parameter: str) -> Graph:
    """Return the graph whose loop gives back the terms of a sum, which is taken behind it."""
    op, (body, *others), (result,) = loop.op, loop.op.bodies, sum.outputs
    places = [i for i, value in enumerate(body.outputs.values()) if value is result]
    is_made = bool(places) and min(places) >= len(op.carries) and not others
    if not is_made or sum not in body.nodes or body.uses().get(result):
        raise _is_used_inside(parameter)
    outputs = {n: sum.inputs[0] if v is result else v for n, v in body.outputs.items()}
    nodes = tuple(node for node in body.nodes if node is not sum)
    made, behind = list(loop.outputs), list[Node]()
    over_time: dict[Node, Node] = {}
    for place in places:
        whole = sum.inputs[0].type
        terms = Value(TensorType((op.iterations, *whole.shape), whole.dtype))
        made[place], last = terms, loop.outputs[place]
        later = _find_sum_over_time(graph, last)
        if later is not None:
            added = Value(terms.type)
            over_time[later] = replace(later, inputs=(terms,), outputs=(added,))
            terms, last = added, later.outputs[0]
        behind.append(replace(_stack(sum), inputs=(terms,), outputs=(last,)))
    inner = Graph(body.inputs, nodes, outputs)
    found = replace(loop, op=op.with_bodies([inner]), outputs=tuple(made))
    rest = tuple(node for node in graph.nodes if node not in over_time)
    at = rest.index(loop)
    between = (found, *over_time.values(), *behind)
    return Graph(graph.inputs, (*rest[:at], *between, *rest[at + 1 :]), graph.outputs)


def _find_sum_over_time(graph: Graph, value: Value) -> Node | None:
    """Return the sum over micro-batches that alone reads a value."""
    readers = [node for node, _ in graph.uses().get(value, ())]
    if len(readers) != 1 or value in graph.outputs.values():
        return None
    (node,) = readers
    is_sum = isinstance(node.op, AllReduce) and node.op.axes == (MICRO,)
    return node if is_sum else None


def _stack(sum: Node) -> Node:
    """Return a sum as it is taken of a stack."""
    if isinstance(sum.op, ReduceScatter):
        return replace(sum, op=replace(sum.op, dimension=sum.op.dimension + 1))
    return sum


def _is_used_inside(parameter: str) -> PlanError:
    return PlanError(
        f"gradient_compression keeps a state of '{parameter}', whose gradient a loop sums over "
        f"devices and goes on with; use zero=0 or 1, or a form without a state"
    )


__all__ = ["take_sums_behind_loops"]
