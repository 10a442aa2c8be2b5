"""Plans as JSON, both ways, as `mithril.ir.serialize` does it for graphs."""

from __future__ import annotations

from dataclasses import asdict, replace

from mithril.ir import Phase
from mithril.ir.serialize import (
    SCHEMA,
    Json,
    cause_in,
    dump,
    graph_in,
    graph_out,
    read,
    type_in,
    type_out,
)
from mithril.mesh import Axis, Mesh, Sharding
from mithril.plan.execution import Execution
from mithril.plan.plan import Plan, Pricing, TensorReport
from mithril.plan.policy import LayerPolicy, MemoryPolicy, TradeOff
from mithril.plan.program import Port, Program, Stage
from mithril.plan.schedule import Action, read_table
from mithril.plan.search import SearchResult
from mithril.plan.timetable import Index, Run, Send, Timetable, Transfer, run_once
from mithril.types import TensorType


def plan_to_json(plan: Plan) -> str:
    """Return a plan as JSON text."""
    return dump({"schema": SCHEMA, "plan": _plan_out(plan)})


def plan_from_json(text: str) -> Plan:
    """Return the plan a JSON text describes.

    Raises:
        GraphError: the text is not a plan of this schema.
    """
    return read(text, "plan", _plan_in)


def _plan_out(plan: Plan) -> Json:
    return {
        "mesh": _mesh_out(plan.mesh),
        "stages": [
            {
                "name": stage.name,
                "devices": list(stage.devices),
                "mesh": _mesh_out(stage.program.mesh),
                "graph": graph_out(stage.program.graph),
                "inputs": [_port_out(port) for port in stage.program.inputs],
                "outputs": [_port_out(port) for port in stage.program.outputs],
            }
            for stage in plan.stages
        ],
        "specs": {
            name: {
                **type_out(report.type),
                **_sharding_out(report.sharding),
                "decided_by": report.decided_by,
            }
            for name, report in plan.specs.items()
        },
        "notes": list(plan.notes),
        "parameters": list(plan.parameters),
        "optimizer": list(plan.optimizer),
        "policy": None if plan.policy is None else asdict(plan.policy),
        "search": None if plan.search is None else asdict(replace(plan.search, wall=0.0)),
        "pricing": None if plan.pricing is None else asdict(plan.pricing),
        "timetable": None if plan.only_stage else _timetable_out(plan.timetable),
    }


def _plan_in(content: Json) -> Plan:
    mesh = _mesh_in(content["mesh"])
    specs = {
        name: TensorReport(*_type_and_sharding(item), item["decided_by"])
        for name, item in content["specs"].items()
    }
    stages = tuple(map(_stage_in, content["stages"]))
    table = content["timetable"]
    if table is None:  # one stage that runs once
        program = stages[0].program
        timetable = run_once(program.inputs, program.outputs)
    else:
        timetable = _timetable_in(table)
    pricing = None if content["pricing"] is None else _pricing_in(content["pricing"])
    return Plan(
        mesh,
        stages,
        timetable,
        specs,
        tuple(content["notes"]),
        pricing=pricing,
        parameters=tuple(content["parameters"]),
        optimizer=tuple(content.get("optimizer", ())),
        policy=_policy_in(content.get("policy")),
        search=_search_in(content.get("search")),
    )


def _search_in(content: Json | None) -> SearchResult | None:
    return None if content is None else SearchResult(**content)


def _policy_in(content: Json | None) -> MemoryPolicy | None:
    if content is None:
        return None
    layers = tuple(LayerPolicy(**layer) for layer in content["layers"])
    curve = tuple(TradeOff(**point) for point in content["curve"])
    return MemoryPolicy(**{**content, "layers": layers, "curve": curve})


def _stage_in(item: Json) -> Stage:
    mesh = _mesh_in(item["mesh"])
    program = Program(
        mesh,
        graph_in(item["graph"]),
        tuple(map(_port_in, item["inputs"])),
        tuple(map(_port_in, item["outputs"])),
    )
    return Stage(item["name"], program, tuple(item["devices"]))


def _port_out(port: Port) -> Json:
    return {"name": port.name, **type_out(port.type), **_sharding_out(port.sharding)}


def _port_in(item: Json) -> Port:
    return Port(item["name"], *_type_and_sharding(item))


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
        **type_out(transfer.type),
        "from": _sharding_out(transfer.source),
        "to": _sharding_out(transfer.target),
        "cause": asdict(transfer.cause),
        "phase": str(transfer.phase),
        "scope": transfer.scope,
        "place": transfer.place,
        "goal": None if transfer.goal is None else type_out(transfer.goal),
        "offset": transfer.offset,
    }


def _transfer_in(item: Json) -> Transfer:
    return Transfer(
        type_in(item),
        _sharding_in(item["from"]),
        _sharding_in(item["to"]),
        cause_in(item["cause"]),
        Phase(item["phase"]),
        item["scope"],
        item["place"],
        None if item["goal"] is None else type_in(item["goal"]),
        item["offset"],
    )


def _mesh_out(mesh: Mesh) -> Json:
    return {
        "axes": [asdict(axis) for axis in mesh.axes],
        "devices": list(mesh.devices),
        "order": list(mesh.order),
    }


def _mesh_in(item: Json) -> Mesh:
    axes = item["axes"]
    made = [Axis(**axis) for axis in axes]
    for axis in made:
        Mesh({axis.origin: axis.size})  # checks name and size
        if axis.parent and not axis.name.removeprefix(f"{axis.parent}.").isdecimal():
            raise ValueError(f"{axis.name!r} is no part of axis '{axis.parent}'")
    if len({axis.name for axis in made}) < len(made):
        raise ValueError(f"axes {[axis.name for axis in made]} repeat a name")
    order, names = item.get("order", []), [axis.name for axis in made]
    if order and sorted(order) != sorted(names):
        raise ValueError(f"order {order} does not name each of the axes {names} once")
    return Mesh.of_axes(made, item["devices"], order)


def _sharding_out(sharding: Sharding) -> Json:
    return {
        "on": _mesh_out(sharding.mesh),
        "dims": [list(axes) for axes in sharding.dims],
        "partial": [list(pair) for pair in sharding.partial],
    }


def _type_and_sharding(item: Json) -> tuple[TensorType, Sharding]:
    type, sharding = type_in(item), _sharding_in(item)
    if len(sharding.dims) != type.rank:
        raise ValueError(f"a sharding of {len(sharding.dims)} dimensions for {type}")
    return type, sharding


def _sharding_in(item: Json) -> Sharding:
    mesh = _mesh_in(item["on"])
    partial = tuple((axis, reduction) for axis, reduction in item["partial"])
    sharding = Sharding(mesh, tuple(tuple(axes) for axes in item["dims"]), partial)
    for axis in (*sharding.split_axes, *(axis for axis, _ in partial)):
        mesh.require(axis)
    return sharding


def _pricing_in(content: Json) -> Pricing:
    execution = content["execution"]
    reused = execution.get("reused_operands", ())
    tables = {
        "reused_operands": tuple((name, tuple(which)) for name, which in reused),
        "workspaces": tuple((name, factor) for name, factor in execution["workspaces"]),
        "ordered": tuple((name, tuple(parts)) for name, parts in execution["ordered"]),
        "in_arena": tuple(execution["in_arena"]),
    }
    return Pricing(**{**content, "execution": Execution(**{**execution, **tables})})
