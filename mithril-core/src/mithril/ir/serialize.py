"""Graphs as JSON, both ways.

Values are numbered in order of definition; ops are named, with their attributes. Nothing but data
is read: an unknown op, a wrong attribute or an ill-formed graph is refused; an op of an installed
plugin is imported. Reading back what was written gives a graph that prints the same.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from mithril.errors import GraphError, MithrilError, UnknownNameError, nearest
from mithril.ir.graph import Algorithm, Alternative, Cause, Graph, Node, Phase, Value
from mithril.ir.op import Op, registry
from mithril.ir.source import Source
from mithril.ir.verify import verify
from mithril.types import TensorType, as_dtype

SCHEMA = 1
_SURROGATE = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")
Json = dict[str, Any]
Read = TypeVar("Read")
OP_FINDERS: list[Callable[[str], None]] = []
"""Each is asked for an op that is not known, and defines it if it can; plugins have one."""


def graph_to_json(graph: Graph) -> str:
    """Return a graph as JSON text."""
    return dump({"schema": SCHEMA, "graph": graph_out(graph)})


def graph_from_json(text: str) -> Graph:
    """Return the graph a JSON text describes.

    Raises:
        GraphError: the text is not a graph of this schema.
    """
    return read(text, "graph", graph_in)


def dump(content: Json) -> str:
    """Return data as JSON text."""
    return json.dumps(content, indent=1, allow_nan=False)


def read(text: str, what: str, decode: Callable[[Json], Read]) -> Read:
    """Return what a JSON text describes.

    Args:
        text: JSON.
        what: the key under which it stands, and its name for messages.
        decode: makes it of data.

    Raises:
        GraphError: the text does not describe it.
    """
    try:
        content = json.loads(text)
        if _SURROGATE.search(text):  # half a character, which no file or terminal takes
            json.dumps(content, ensure_ascii=False).encode()
        if not isinstance(content, dict) or content.get("schema") != SCHEMA or what not in content:
            raise GraphError(f"JSON text is not a {what} of schema {SCHEMA}; write it anew")
        return decode(content[what])
    except MithrilError:
        raise
    except RecursionError as error:
        raise GraphError(f"JSON text of a {what} is nested too deep; write it anew") from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise GraphError(
            f"JSON text does not describe a {what}; {type(error).__name__}: {error}; write it anew"
        ) from error


# ------------------------------------------------------------------ graphs


def graph_out(graph: Graph) -> Json:
    """Return a graph as data."""
    numbers = {value: number for number, value in enumerate(graph.values())}
    return {
        "inputs": [_value_out(value) for value in graph.inputs],
        "nodes": [_node_out(node, numbers) for node in graph.nodes],
        "outputs": {name: numbers[value] for name, value in graph.outputs.items()},
    }


def graph_in(content: Json) -> Graph:
    """Return the graph that data describes, checked."""
    values = [_value_in(item) for item in content["inputs"]]
    inputs = tuple(values)
    nodes = []
    for item in content["nodes"]:
        nodes.append(_node_in(item, values))
        values += nodes[-1].outputs
    outputs = {name: values[number] for name, number in content["outputs"].items()}
    return verify(Graph(inputs, tuple(nodes), outputs))


def _value_out(value: Value) -> Json:
    return {**type_out(value.type), "name": value.name}


def _value_in(item: Json) -> Value:
    return Value(type_in(item), item["name"])


def type_out(type: TensorType) -> Json:
    """Return a type as data."""
    return {"shape": list(type.shape), "dtype": str(type.dtype)}


def type_in(item: Json) -> TensorType:
    """Return the type that data describes."""
    return TensorType(tuple(map(int, item["shape"])), as_dtype(item["dtype"]))


def _node_out(node: Node, numbers: Mapping[Value, int]) -> Json:
    item: Json = {
        **_op_out(node.op),
        "inputs": [numbers[value] for value in node.inputs],
        "outputs": [_value_out(value) for value in node.outputs],
        "scope": node.scope,
        "phase": str(node.phase),
    }
    if node.source:
        item["source"] = asdict(node.source)
    if node.cause:
        item["cause"] = asdict(node.cause)
    return item


def _node_in(item: Json, values: list[Value]) -> Node:
    cause = item.get("cause")
    return Node(
        op=_op_in(item),
        inputs=tuple(values[number] for number in item["inputs"]),
        outputs=tuple(_value_in(value) for value in item["outputs"]),
        scope=item["scope"],
        source=Source(**item["source"]) if "source" in item else None,
        phase=Phase(item["phase"]),
        cause=cause_in(cause) if cause else None,
    )


def cause_in(item: Json) -> Cause:
    """Return the cause that data describes."""
    instead = tuple(Alternative(**other) for other in item["instead"])
    return Cause(
        **{
            **item,
            "parts": tuple(item["parts"]),
            "instead": instead,
            "behind": tuple(item["behind"]),
            "algorithm": _algorithm_in(item.get("algorithm")),
        }
    )


def _algorithm_in(item: Json | None) -> Algorithm | None:
    return None if item is None else Algorithm(**{**item, "bytes": tuple(item["bytes"])})


def _op_out(op: Op) -> Json:
    attributes = {name: _encode(value) for name, value in op.attributes.items()}
    return {"op": op.name, "attributes": attributes}


def _op_in(item: Json) -> Op:
    name, attributes = item["op"], item["attributes"]
    op_class = _find_op(name)
    kinds = {field.name: field.type for field in fields(op_class)}
    if set(kinds) != set(attributes):
        raise GraphError(
            f"op '{name}' has attributes {sorted(kinds)}, the text gives {sorted(attributes)}"
        )
    return op_class(**{key: _decode(value, kinds[key]) for key, value in attributes.items()})


def _find_op(name: str) -> type[Op]:
    if name not in registry():
        for define in OP_FINDERS:
            define(name)
    if name not in registry():
        raise UnknownNameError(
            f"op '{name}' is not known here{nearest(name, registry())}; import it first"
        )
    return registry()[name]


def _encode(value: object) -> object:
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Graph):
        return {"graph": graph_out(value)}
    if isinstance(value, Op):
        return _op_out(value)
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _decode(value: Any, kind: object) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, None) for item in value)
    if isinstance(value, dict):
        if "op" in value:
            return _op_in(value)
        return graph_in(value["graph"]) if "graph" in value else float(value["float"])
    return as_dtype(value) if kind == "DType" else value
