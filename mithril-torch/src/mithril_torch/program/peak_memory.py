"""Takes sums out of fusions where a program holds the most memory.

A fusion in which something is reduced behind its first result makes that in memory of its own, as
PyTorch's compiler does not write over what it reads then. Where the program's peak is there, the
sum becomes a call of its own, and the fusion writes over an operand. Elsewhere that would only take
the time of reading the result once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mithril.spi import Graph, Node, Value
from mithril.spi.ops import Constant

from mithril_torch.program.fusions import Fusion, find_dependents
from mithril_torch.program.in_place import find_reused

NEAR = 0.9
"""The share of the peak from which on it counts: what comes next is the peak once that is less."""


def split_at_peak(graph: Graph) -> Graph:
    """Return a graph that computes the same, and holds less where it holds the most.

    Args:
        graph: a local one; its loops are not looked into.
    """
    live = count_live(graph, find_reused(graph))
    peak = max(live.values(), default=0)
    for node in graph.nodes:
        parts = _split(node) if live[node] >= NEAR * peak else []
        if not parts:
            continue
        place = graph.nodes.index(node)
        nodes = (*graph.nodes[:place], *parts, *graph.nodes[place + 1 :])
        split = Graph(graph.inputs, nodes, graph.outputs)
        after = count_live(split, find_reused(split))
        if max(after[part] for part in parts) < live[node]:
            graph, live = split, after
    return graph


def count_live(graph: Graph, reused: Mapping[Node, int]) -> dict[Node, int]:
    """Return the bytes of all that is held while each node runs, but for inputs of the graph.

    Args:
        graph: a local one.
        reused: the nodes that write over an operand, and which.
    """
    memory: dict[Value, Value] = {value: value for value in graph.inputs}
    begin: dict[Value, int] = {}
    end: dict[Value, int] = {}
    for place, node in enumerate(graph.nodes):
        over = 0 if node.op.is_view else reused.get(node)
        for position, value in enumerate(node.outputs):
            is_shared = over is not None and position == 0 and node.inputs
            memory[value] = memory[node.inputs[over or 0]] if is_shared else value
            begin.setdefault(memory[value], place)
        for value in (*node.inputs, *node.outputs):
            end[memory[value]] = place
    end |= dict.fromkeys((memory[x] for x in graph.outputs.values()), len(graph.nodes))
    changes = [0] * (len(graph.nodes) + 2)
    for value in begin.keys() - set(graph.inputs):
        changes[begin[value]] += value.type.nbytes
        changes[end[value] + 1] -= value.type.nbytes
    live, found = 0, {}
    for node, change in zip(graph.nodes, changes, strict=False):
        live += change
        found[node] = live
    return found


def _split(node: Node) -> list[Node]:
    """Return a fusion without what reads its first result, and after it that, node by node.

    Nothing, if there is no such node, or one that reads anything else that is made in the fusion.
    """
    if not isinstance(node.op, Fusion):
        return []
    body = node.op.body
    first = body.outputs["0"]
    later = find_dependents(body, first)
    kept = [inner for inner in body.nodes if inner not in later]
    own = {value for inner in kept for value in inner.outputs} - {first}
    if not later or any(own.intersection(inner.inputs) for inner in later):
        return []
    outside = dict(zip(body.inputs, node.inputs, strict=True))
    outside |= dict(zip(body.outputs.values(), node.outputs, strict=True))
    found: list[Node] = []
    if sum(not isinstance(inner.op, Constant) for inner in kept) == 1:  # a call of its own, too
        later.update(kept)
    else:
        results = [value for value in body.outputs.values() if value in own or value == first]
        fused = Graph(body.inputs, tuple(kept), {str(i): x for i, x in enumerate(results)})
        found.append(replace(node, op=Fusion(fused), outputs=tuple(outside[x] for x in results)))
    for inner in body.nodes:
        if inner in later:
            outside |= {x: Value(x.type) for x in inner.outputs if x not in outside}
            inputs, outputs = (
                tuple(outside[x] for x in values) for values in (inner.inputs, inner.outputs)
            )
            found.append(replace(node, op=inner.op, inputs=inputs, outputs=outputs))
    return found


__all__ = ["count_live", "split_at_peak"]
