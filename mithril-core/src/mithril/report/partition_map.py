"""The partition map: which device runs which layers and holds which parameters, as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mithril.ir import Node, registry
from mithril.ir.rewrite import all_nodes
from mithril.plan import Plan, Port

Map = dict[str, Any]


def partition_map(plan: Plan, parameters: Sequence[str]) -> Map:
    """Return who runs and holds what: dicts, lists, strings and numbers only, fit for JSON.

    Args:
        plan: the plan.
        parameters: names of the model's parameters.

    Returns:
        `mesh`: size of each axis; `order`: the axes as they lie on the network, the slowest first;
        `stages`: name, devices, layers, and how often each runs;
        `layers`: by path, the devices that compute it; `parameters`: by name, shape, dtype, spec,
        the devices that hold it, row-major, sizes of the axes (or sub-axes) that they are, which
        of them split each dimension, and shape and bytes of what each of them holds; `devices`: by
        flat index, its layers, its parameters and their bytes.
    """
    held = [_describe_port(port) for port in plan.inputs if port.name in set(parameters)]
    layers = _layers(plan)
    return {
        "mesh": {axis.name: axis.size for axis in plan.mesh.axes},
        "order": list(plan.mesh.order or plan.mesh.names),
        "stages": _stages(plan),
        "layers": {path: {"devices": devices} for path, devices in layers.items()},
        "parameters": dict(held),
        "devices": _devices(plan.mesh.size, layers, held),
    }


def _devices(
    count: int, layers: Mapping[str, Sequence[int]], held: Sequence[tuple[str, Map]]
) -> dict[int, Map]:
    found: dict[int, Map] = {
        device: {"layers": [], "parameters": [], "bytes": 0} for device in range(count)
    }
    for path, devices in layers.items():
        for device in devices:
            found[device]["layers"].append(path)
    for name, entry in held:
        for device in entry["devices"]:
            found[device]["parameters"].append(name)
            found[device]["bytes"] += entry["bytes"]
    return found


def _describe_port(port: Port) -> tuple[str, Map]:
    local = port.sharding.local_shape(port.type.shape)
    entry = {
        "shape": list(port.type.shape),
        "dtype": str(port.type.dtype),
        "spec": repr(port.sharding.spec),
        "devices": list(port.sharding.mesh.row_major),
        "axes": {axis.name: axis.size for axis in port.sharding.mesh.axes},
        "split": [list(axes) for axes in port.sharding.dims],
        "local_shape": list(local),
        "bytes": math.prod(local) * port.type.dtype.itemsize,
    }
    return port.name, entry


def _list_scopes(plan: Plan, number: int) -> list[str]:
    nodes = all_nodes(plan.stages[number].program.graph)
    own = (n for n in nodes if n.scope and not (n.op.is_collective or _is_on_its_way(n)))
    return list(dict.fromkeys(node.scope for node in own))


def _is_on_its_way(node: Node) -> bool:
    """Whether a node moves what no layer made: its scope is the op that needs it, not a layer.

    A layer may bear the name of an op, too; it knows its line.
    """
    is_asked = node.cause is not None and node.cause.consumer == node.scope
    around, _, name = node.scope.rpartition(".")
    return node.source is None and (is_asked or (around != "" and name in registry()))


def _stages(plan: Plan) -> list[Map]:
    times = plan.timetable.times()
    return [
        {
            "name": stage.name,
            "devices": list(stage.devices),
            "layers": _list_scopes(plan, number),
            "runs": times[number],
        }
        for number, stage in enumerate(plan.stages)
    ]


def _layers(plan: Plan) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for number, stage in enumerate(plan.stages):
        for scope in _list_scopes(plan, number):
            found.setdefault(scope, set()).update(stage.devices)
    return {path: sorted(devices) for path, devices in found.items()}
