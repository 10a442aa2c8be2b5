"""Graphs as text that reads like a program."""

from __future__ import annotations

from mithril.ir.graph import Graph, Node, Phase, Value


def print_graph(graph: Graph) -> str:
    """Return a graph as text, one line per node, values by name or number."""
    return "\n".join(graph_lines(graph, [str(value.type) for value in graph.inputs]))


def graph_lines(graph: Graph, ports: list[str]) -> list[str]:
    """Return the lines of a graph; what is said of each input is given."""
    names = _names(graph)
    lines = ["graph("]
    lines += [f"  {names[v]}: {port}," for v, port in zip(graph.inputs, ports, strict=True)]
    lines.append(")")
    phase = Phase.forward
    for node in graph.nodes:
        if node.phase != phase:
            phase = node.phase
            lines.append(f"  # {phase}")
        lines.append(f"  {_node(node, names)}")
        for body in node.op.bodies:
            inner = graph_lines(body, [str(value.type) for value in body.inputs])
            lines += [f"    {line}" for line in inner]
    results = ", ".join(f"{name}={names[value]}" for name, value in graph.outputs.items())
    return [*lines, f"  return {results}"]


def _node(node: Node, names: dict[Value, str]) -> str:
    results = ", ".join(f"{names[value]}: {value.type}" for value in node.outputs)
    operands = ", ".join(names[value] for value in node.inputs)
    place = " ".join(str(part) for part in (node.scope, node.source) if part)
    return f"{results} = {node.op}({operands})" + (f"  # {place}" if place else "")


def _names(graph: Graph) -> dict[Value, str]:
    names: dict[Value, str] = {}
    taken: set[str] = set()
    for number, value in enumerate(graph.values()):
        name = value.name if value.name and value.name not in taken else f"%{number}"
        taken.add(name)
        names[value] = name
    return names
