"""Graphs and plans as JSON, both ways.

Values are numbered in order of definition; ops are named, with their attributes. Nothing but data
is read: an unknown op, a wrong attribute or an ill-formed graph is refused. Reading back what was
written gives a graph that prints the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any, TypeVar

from mithril.errors import GraphError, MithrilError, nearest
from mithril.ir.graph import Graph, Node, Phase, Value
from mithril.ir.op import Op, registry
from mithril.ir.plan import Cause, Plan, Port, Program, Stage, TensorReport
from mithril.ir.schedule import Action, read_table
from mithril.ir.source import Source
from mithril.ir.timetable import Index, Run, Send, Timetable, Transfer
from mithril.ir.verify import verify
from mithril.mesh import Axis, Mesh, Sharding
from mithril.types import TensorType, as_dtype

SCHEMA = 1
Json = dict[str, Any]
Read = TypeVar("Read")


def graph_to_json(graph: Graph) -> str:
    """Return a graph as JSON text."""
    return _dump({"schema": SCHEMA, "graph": _graph_out(graph)})


def graph_from_json(text: str) -> Graph:
    """Return the graph a JSON text describes.

    Raises:
        GraphError: the text is not a graph of this schema.
    """
    return _read(text, "graph", _graph_in)


def plan_to_json(plan: Plan) -> str:
    """Return a plan as JSON text."""
    return _dump({"schema": SCHEMA, "plan": _plan_out(plan)})


def plan_from_json(text: str) -> Plan:
    """Return the plan a JSON text describes.

    Raises:
        GraphError: the text is not a plan of this schema.
    """
    return _read(text, "plan", _plan_in)


def _dump(content: Json) -> str:
    return json.dumps(content, indent=1, allow_nan=False)


def _read(text: str, what: str, decode: Callable[[Json], Read]) -> Read:
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("schema") != SCHEMA or what not in content:
            raise GraphError(f"JSON text is not a {what} of schema {SCHEMA}; write it anew")
        return decode(content[what])
    except MithrilError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise GraphError(
            f"JSON text does not describe a {what}; {type(error).__name__}: {error}; write it anew"
        ) from error


# ------------------------------------------------------------------ graphs


def _graph_out(graph: Graph) -> Json:
    numbers = {value: number for number, value in enumerate(graph.values())}
    return {
        "inputs": [_value_out(value) for value in graph.inputs],
        "nodes": [_node_out(node, numbers) for node in graph.nodes],
        "outputs": {name: numbers[value] for name, value in graph.outputs.items()},
    }


def _graph_in(content: Json) -> Graph:
    values = [_value_in(item) for item in content["inputs"]]
    inputs = tuple(values)
    nodes = []
    for item in content["nodes"]:
        nodes.append(_node_in(item, values))
        values += nodes[-1].outputs
    outputs = {name: values[number] for name, number in content["outputs"].items()}
    return verify(Graph(inputs, tuple(nodes), outputs))


def _value_out(value: Value) -> Json:
    return {**_type_out(value.type), "name": value.name}


def _value_in(item: Json) -> Value:
    return Value(_type_in(item), item["name"])


def _type_out(type: TensorType) -> Json:
    return {"shape": list(type.shape), "dtype": str(type.dtype)}


def _type_in(item: Json) -> TensorType:
    return TensorType(tuple(map(int, item["shape"])), as_dtype(item["dtype"]))


def _node_out(node: Node, numbers: Mapping[Value, int]) -> Json:
    item: Json = {
        "op": node.op.name,
        "attributes": {name: _encode(value) for name, value in node.attributes.items()},
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
        op=_op_in(item["op"], item["attributes"]),
        inputs=tuple(values[number] for number in item["inputs"]),
        outputs=tuple(_value_in(value) for value in item["outputs"]),
        scope=item["scope"],
        source=Source(**item["source"]) if "source" in item else None,
        phase=Phase(item["phase"]),
        cause=_cause_in(cause) if cause else None,
    )


def _cause_in(item: Json) -> Cause:
    texts: Json = {name: tuple(item.pop(name)) for name in ("parts", "instead")}
    return Cause(**item, **texts)


def _op_in(name: str, attributes: Json) -> Op:
    op_class = registry().get(name)
    if op_class is None:
        raise GraphError(
            f"op '{name}' is not known here{nearest(name, registry())}; import it first"
        )
    kinds = {field.name: field.type for field in fields(op_class)}
    if set(kinds) != set(attributes):
        raise GraphError(
            f"op '{name}' has attributes {sorted(kinds)}, the text gives {sorted(attributes)}"
        )
    return op_class(**{key: _decode(value, kinds[key]) for key, value in attributes.items()})


def _encode(value: object) -> object:
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Graph):
        return {"graph": _graph_out(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(value)}
    return value


def _decode(value: Any, kind: object) -> Any:
    if isinstance(value, list):
        return tuple(_decode(item, None) for item in value)
    if isinstance(value, dict):
        return _graph_in(value["graph"]) if "graph" in value else float(value["float"])
    return as_dtype(value) if kind == "DType" else value


# ------------------------------------------------------------------ plans


def _plan_out(plan: Plan) -> Json:
    return {
        "mesh": _mesh_out(plan.mesh),
        "stages": [
            {
                "name": stage.name,
                "devices": list(stage.devices),
                "mesh": _mesh_out(stage.program.mesh),
                "graph": _graph_out(stage.program.graph),
                "inputs": [_port_out(port) for port in stage.program.inputs],
                "outputs": [_port_out(port) for port in stage.program.outputs],
            }
            for stage in plan.stages
        ],
        "specs": {
            name: {
                **_type_out(report.type),
                **_sharding_out(report.sharding),
                "decided_by": report.decided_by,
            }
            for name, report in plan.specs.items()
        },
        "notes": list(plan.notes),
        "timetable": None if plan.timetable is None else _timetable_out(plan.timetable),
    }


def _plan_in(content: Json) -> Plan:
    mesh = _mesh_in(content["mesh"])
    specs = {
        name: TensorReport(_type_in(item), _sharding_in(item), item["decided_by"])
        for name, item in content["specs"].items()
    }
    stages = tuple(map(_stage_in, content["stages"]))
    table = content["timetable"]
    return Plan(
        mesh,
        stages,
        specs,
        tuple(content["notes"]),
        None,
        None if table is None else _timetable_in(table),
    )


def _stage_in(item: Json) -> Stage:
    mesh = _mesh_in(item["mesh"])
    program = Program(
        mesh,
        _graph_in(item["graph"]),
        tuple(map(_port_in, item["inputs"])),
        tuple(map(_port_in, item["outputs"])),
    )
    return Stage(item["name"], program, tuple(item["devices"]))


def _port_out(port: Port) -> Json:
    return {"name": port.name, **_type_out(port.type), **_sharding_out(port.sharding)}


def _port_in(item: Json) -> Port:
    return Port(item["name"], _type_in(item), _sharding_in(item))


def _timetable_out(table: Timetable) -> Json:
    return {
        "inputs": [_port_out(port) for port in table.inputs],
        "given": list(table.given),
        "outputs": [_port_out(port) for port in table.outputs],
        "made": list(table.made),
        "steps": [_step_out(step) for step in table.steps],
        "transfers": [_transfer_out(transfer) for transfer in table.transfers],
        "indices": [[i.slot, _mesh_out(i.mesh), i.value] for i in table.indices],
        "schedule": None
        if table.schedule is None
        else {"name": table.schedule.name, "rows": table.schedule.lines},
    }


def _timetable_in(item: Json) -> Timetable:
    schedule = item["schedule"]
    return Timetable(
        tuple(map(_port_in, item["inputs"])),
        tuple(item["given"]),
        tuple(map(_port_in, item["outputs"])),
        tuple(item["made"]),
        tuple(map(_step_in, item["steps"])),
        tuple(map(_transfer_in, item["transfers"])),
        tuple(Index(slot, _mesh_in(mesh), value) for slot, mesh, value in item["indices"]),
        None if schedule is None else read_table(schedule["name"], schedule["rows"]),
    )


def _step_out(step: Run | Send) -> Json:
    action = {} if step.action is None else {"action": str(step.action)}
    if isinstance(step, Run):
        return {
            "run": step.stage,
            "inputs": list(step.inputs),
            "outputs": list(step.outputs),
            **action,
        }
    return {"send": step.transfer, "source": step.source, "target": step.target, **action}


def _step_in(item: Json) -> Run | Send:
    action = Action.read(item["action"]) if "action" in item else None
    if "run" in item:
        return Run(item["run"], tuple(item["inputs"]), tuple(item["outputs"]), action)
    return Send(item["send"], item["source"], item["target"], action)


def _transfer_out(transfer: Transfer) -> Json:
    return {
        **_type_out(transfer.type),
        "from": _sharding_out(transfer.source),
        "to": _sharding_out(transfer.target),
        "cause": asdict(transfer.cause),
        "phase": str(transfer.phase),
        "scope": transfer.scope,
        "place": transfer.place,
        "goal": None if transfer.goal is None else _type_out(transfer.goal),
        "offset": transfer.offset,
    }


def _transfer_in(item: Json) -> Transfer:
    return Transfer(
        _type_in(item),
        _sharding_in(item["from"]),
        _sharding_in(item["to"]),
        _cause_in(item["cause"]),
        Phase(item["phase"]),
        item["scope"],
        item["place"],
        None if item["goal"] is None else _type_in(item["goal"]),
        item["offset"],
    )


def _mesh_out(mesh: Mesh) -> Json:
    return {"axes": [asdict(axis) for axis in mesh.axes], "devices": list(mesh.devices)}


def _mesh_in(item: Json) -> Mesh:
    axes = item["axes"]
    Mesh({axis["name"]: axis["size"] for axis in axes})  # checks names and sizes
    return Mesh.of_axes((Axis(**axis) for axis in axes), item["devices"])


def _sharding_out(sharding: Sharding) -> Json:
    return {
        "on": _mesh_out(sharding.mesh),
        "dims": [list(axes) for axes in sharding.dims],
        "partial": [list(pair) for pair in sharding.partial],
    }


def _sharding_in(item: Json) -> Sharding:
    mesh = _mesh_in(item["on"])
    partial = tuple((axis, reduction) for axis, reduction in item["partial"])
    sharding = Sharding(mesh, tuple(tuple(axes) for axes in item["dims"]), partial)
    for axis in (*sharding.split_axes, *(axis for axis, _ in partial)):
        mesh.require(axis)
    return sharding
