"""The state of an optimiser lies in the host arena between steps."""

from __future__ import annotations

from collections import defaultdict

from mithril.ir import Graph, Node, Value
from mithril.ops.host import FromHost, ToHost
from mithril.partition.offload.insert import DependencyFinder, insert, with_outputs
from mithril.plan.names import next_of


def offload_state(graph: Graph, names: frozenset[str], arena: str) -> Graph:
    """Return a graph that takes state from the host where it is used, and puts the next there."""
    at = {node: position for position, node in enumerate(graph.nodes)}
    uses, finder = graph.uses(), DependencyFinder(graph)
    ahead: defaultdict[int, list[Node]] = defaultdict(list)
    behind: defaultdict[int, list[Node]] = defaultdict(list)
    renamed: list[tuple[int, dict[Value, Value]]] = []
    outputs = dict(graph.outputs)
    for value in graph.inputs:
        users = uses.get(value, ())
        if value.name not in names or not users:
            continue
        first = min((user for user, _ in users), key=at.__getitem__)
        dependency = finder.find(at[first], at[first])
        fetched = Value(value.type)
        given = (value,) if dependency is None else (value, dependency)
        ahead[at[first]].append(
            Node(FromHost(), given, (fetched,), first.scope, first.source, first.phase)
        )
        renamed.append((at[first], {value: fetched}))
    made = graph.producers()
    for name in sorted(names):
        key = next_of(name) if next_of(name) in outputs else name
        result = outputs.get(key)
        if result is None or result not in made:
            continue
        held, maker = Value(result.type, result.name), made[result]
        last = max(at[node] for node in (maker, *(user for user, _ in uses.get(result, ()))))
        behind[last].append(
            Node(ToHost(arena), (result,), (held,), maker.scope, maker.source, maker.phase)
        )
        outputs[key] = held
    return insert(with_outputs(graph, outputs), behind, ahead, renamed)


__all__ = ["offload_state"]
