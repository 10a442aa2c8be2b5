"""The executable specification of a graph: what every pass may rely on and must keep."""

from __future__ import annotations

from mithril.errors import GraphError
from mithril.ir.graph import Graph, Node, Value
from mithril.ir.start import verify_starts


def verify(graph: Graph) -> Graph:
    """Return the graph unchanged when it is well formed.

    Values are defined once and before use, results have the types their op infers, and inputs have
    distinct names. What a collective has started is waited for.

    Raises:
        GraphError: it is not; the message names the node. Always a fault of Mithril or of an op.
    """
    defined: set[Value] = set()
    names = [value.name for value in graph.inputs]
    if len(set(names)) != len(names) or "" in names:
        raise GraphError(f"graph inputs {names} need distinct, non-empty names")
    for value in graph.inputs:
        _define(value, defined, "an input")
    for node in graph.nodes:
        _verify_node(node, defined)
    for name, value in graph.outputs.items():
        if value not in defined:
            raise GraphError(f"output '{name}' of the graph is never defined")
    verify_starts(graph)
    return graph


def _verify_node(node: Node, defined: set[Value]) -> None:
    for value in node.inputs:
        if value not in defined:
            raise GraphError(
                f"op '{node.op.name}' at {node.where()} uses {value!r} before it is made"
            )
    for body in node.op.bodies:
        verify(body)
    expected = tuple(node.op.infer([value.type for value in node.inputs]))
    actual = tuple(value.type for value in node.outputs)
    if expected != actual:
        raise GraphError(
            f"op '{node.op.name}' at {node.where()} makes {_types(expected)}, the graph says "
            f"{_types(actual)}"
        )
    for value in node.outputs:
        _define(value, defined, f"op '{node.op.name}' at {node.where()}")


def _define(value: Value, defined: set[Value], by: str) -> None:
    if value in defined:
        raise GraphError(f"{value!r} is defined a second time by {by}")
    defined.add(value)


def _types(types: tuple[object, ...]) -> str:
    return ", ".join(map(str, types)) or "nothing"
