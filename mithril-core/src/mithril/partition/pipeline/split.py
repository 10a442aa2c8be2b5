"""Cut a graph into one graph for each part of the mesh.

What goes from one part to another leaves the one as an output and enters the other as an input of
the same name. What depends on no input is computed on every part that needs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.ir import Graph, Node, Phase, Value
from mithril.partition.naming import label
from mithril.types import Shape


@dataclass(frozen=True, slots=True, eq=False)
class StageGraphs:
    """A graph in parts.

    Args:
        graphs: of each part that does something, in the order of its first node.
        crossing: what goes from part to part: name to its value in the whole graph.
        made_on: the part that makes each of them, and each output.
        returning: for gradients that go from part to part, what they may be of: the values of the
            same shape that go the other way.
    """

    graphs: Mapping[int, Graph]
    crossing: Mapping[str, Value]
    made_on: Mapping[str, int]
    returning: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @staticmethod
    def whole(graph: Graph) -> StageGraphs:
        """Return a graph that is one part, inputs that nobody reads included."""
        return StageGraphs({0: graph}, {}, dict.fromkeys(graph.outputs, 0))


def split_by_stage(graph: Graph, parts: Mapping[Node, int | None], rest: int) -> StageGraphs:
    """Return the graph of each part.

    Args:
        graph: the whole.
        parts: the part of each node; None for what may run anywhere.
        rest: where outputs are made that no part makes.
    """
    producers = graph.producers()
    order = list(dict.fromkeys(part for part in parts.values() if part is not None)) or [rest]
    home = {value: part for node, part in parts.items() for value in node.outputs}
    crossing: dict[Value, str] = {}
    ways: dict[Value, dict[tuple[int, int], None]] = {}
    taken = {*(value.name for value in graph.inputs), *graph.outputs, *_find_ambiguous(graph)}
    for node in graph.nodes:
        for value in node.inputs:
            made, used = home.get(value), parts[node]
            if made is None or used is None or made == used:
                continue
            if value not in crossing:
                crossing[value] = _name(value, producers[value], taken)
            ways.setdefault(value, {})[made, used] = None
    made_on = {name: home[value] for value, name in crossing.items()}
    for name, value in graph.outputs.items():
        made_on[name] = home.get(value)
        if made_on[name] is None:
            made_on[name] = rest if rest in order else order[0]
    graphs = {part: _of_part(part, graph, parts, crossing, made_on) for part in order}
    return StageGraphs(
        graphs,
        {name: value for value, name in crossing.items()},
        {name: part for name, part in made_on.items() if part is not None},
        _find_returning(crossing, ways, producers),
    )


def _find_returning(
    crossing: Mapping[Value, str],
    ways: Mapping[Value, Iterable[tuple[int, int]]],
    producers: Mapping[Value, Node],
) -> dict[str, list[str]]:
    """Return what a gradient that goes from part to part may be of; see `StageGraphs`."""
    forward: dict[tuple[int, int, Shape], list[str]] = {}
    back = []
    for value, name in crossing.items():
        if producers[value].phase != Phase.forward:
            back.append(value)
            continue
        for made, used in ways[value]:
            forward.setdefault((used, made, value.type.shape), []).append(name)
    return {
        crossing[value]: [
            n for way in ways[value] for n in forward.get((*way, value.type.shape), ())
        ]
        for value in back
    }


def _find_ambiguous(graph: Graph) -> set[str]:
    """Return the names of more than one value: what is said of a value by name must mean one."""
    count = Counter(value.name for value in graph.values())
    return {name for name, times in count.items() if name and times > 1}


def _name(value: Value, producer: Node, taken: set[str]) -> str:
    name = value.name or (label(producer) if producer.phase == Phase.forward else "")
    name = first = name or f"{producer.scope}.gradient".lstrip(".")
    number = 1
    while name in taken:
        number += 1
        name = f"{first}~{number}"
    taken.add(name)
    return name


def _of_part(
    part: int,
    graph: Graph,
    parts: Mapping[Node, int | None],
    crossing: Mapping[Value, str],
    made_on: Mapping[str, int | None],
) -> Graph:
    own = [node for node in graph.nodes if parts[node] in (part, None)]
    outputs = {n: v for n, v in graph.outputs.items() if made_on[n] == part}
    outputs |= {name: value for value, name in crossing.items() if made_on[name] == part}
    needed = set(outputs.values())
    kept = []
    for node in reversed(own):  # what runs anywhere runs only where it is needed
        if parts[node] == part or needed.intersection(node.outputs):
            needed.update(node.inputs)
            kept.append(node)
    made = {value for node in kept for value in node.outputs}
    arriving = {
        value: Value(value.type, name)
        for value, name in crossing.items()
        if value in needed and value not in made
    }
    nodes = tuple(
        replace(node, inputs=tuple(arriving.get(value, value) for value in node.inputs))
        for node in reversed(kept)
    )
    inputs = tuple(value for value in graph.inputs if value in needed)
    return Graph((*inputs, *arriving.values()), nodes, outputs)
