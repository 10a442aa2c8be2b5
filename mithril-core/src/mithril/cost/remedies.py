"""Remedies for a plan that does not fit: what each would save, and what it would cost, by the plan.

Each is worked out from the plan at hand, from what is in memory at its peak; after a remedy the
peak may be elsewhere. What it costs is priced as collectives are (`cost.communication`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mithril.cost.communication import collective_seconds, find_bucket_bytes
from mithril.cost.devices import local_bytes
from mithril.cost.hardware import Hardware
from mithril.cost.liveness import ACTIVATIONS, HOST, TEMPORARIES
from mithril.cost.memory import DeviceMemory, PlanMemory
from mithril.ir.rewrite import all_nodes
from mithril.ops.collective import AllGather, AllReduce
from mithril.plan import Plan, Port
from mithril.plan.names import GRADIENT
from mithril.types import DType
from mithril.units import format_bytes, format_seconds

SHOWN = 3
"""How many remedies a message names."""
LEAST = 0.01
"""The share of the peak that a remedy saves at least."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What makes a plan take less memory.

    Args:
        what: to do.
        saved: bytes on the fullest device, at least.
        seconds: predicted time that it adds to a run.
    """

    what: str
    saved: int
    seconds: float

    def __str__(self) -> str:
        cost = f" for {format_seconds(self.seconds)} more" if self.seconds else ""
        return f"{self.what} saves {format_bytes(self.saved)}{cost}"


def find_remedies(plan: Plan, memory: PlanMemory, hardware: Hardware) -> list[Remedy]:
    """Return what makes a plan take less memory, the cheapest first.

    Args:
        plan: what does not fit.
        memory: what it takes.
        hardware: the profile that prices remedies.
    """
    row = memory.fullest
    found = [
        *_rest_parameters(plan, row, hardware),
        *_split_activations(plan, row, hardware),
        *_cut_batches(plan, row),
        *_compute_in_half(plan, row),
    ]
    worth = [remedy for remedy in found if remedy.saved >= LEAST * row.peak]
    return sorted(worth, key=lambda remedy: (remedy.seconds, -remedy.saved))


def describe_shortage(plan: Plan, memory: PlanMemory, hardware: Hardware) -> str:
    """Return how much memory is missing, what takes most, and the cheapest remedies.

    Args:
        plan: what does not fit.
        memory: what it takes.
        hardware: the profile of its devices.
    """
    assert memory.capacity is not None, "only what is known can be too small"
    row = memory.fullest
    here = (item for item in row.parts.items() if item[0] != HOST)
    parts = sorted(here, key=lambda item: -item[1])
    largest = ", ".join(f"{part} {format_bytes(size)}" for part, size in parts[:SHOWN] if size)
    remedies = find_remedies(plan, memory, hardware)[:SHOWN]
    listed = "; or ".join(map(str, remedies)) or "use smaller batches, or more devices"
    return (
        f"plan needs {format_bytes(row.peak)} on device {row.devices[0]} at {row.at}, and a device "
        f"of profile '{hardware.name}' has {format_bytes(memory.capacity)}; {largest}; {listed}"
    )


# ------------------------------------------------------------------ remedies


def _rest_parameters(plan: Plan, row: DeviceMemory, hardware: Hardware) -> Iterator[Remedy]:
    """Yield what parameters, and their gradients, save when they rest split over an axis."""
    ports = [p for p in plan.inputs if p.name in plan.parameters and _is_on(p, row.devices[0])]
    held = row.parts["parameters"]
    gradients = row.parts["gradients"] / held if held else 0.0
    for axis in plan.mesh.axes:
        cut = [port for port in ports if axis.size > 1 and _can_rest(port, axis.name, axis.size)]
        sizes = [local_bytes(port.type, port.sharding) for port in cut]
        if not sizes:
            continue
        bucket = find_bucket_bytes(AllGather.name, [axis.name], plan.mesh, hardware)
        whole = max(*sizes, min(sum(sizes), bucket))  # of what is needed at one moment
        saved = sum(sizes) * (1 - 1 / axis.size) * (1 + gradients) - whole
        seconds = 2 * sum(
            collective_seconds(AllGather.name, size, [axis.name], plan.mesh, hardware)
            for size in sizes
        )
        what = f"at_rest=ml.P('{axis.name}') of the parameters"
        yield Remedy(what, int(saved), seconds)


def _split_activations(plan: Plan, row: DeviceMemory, hardware: Hardware) -> Iterator[Remedy]:
    """Yield what activations save that are whole along an axis, and could be split."""
    names = {h.name: h.bytes for h in row.alive if h.kind == ACTIVATIONS}
    reports = {name: plan.specs[name] for name in names if name in plan.specs}
    gradients = sum(
        local_bytes(p.type, p.sharding) for p in plan.outputs if p.name.startswith(GRADIENT)
    )
    for axis in plan.mesh.axes:
        size = sum(
            names[name]
            for name, report in reports.items()
            if axis.size > 1
            and axis.name not in {a.split(".")[0] for a in report.sharding.split_axes}
            and report.sharding.mesh.size == plan.mesh.size
            and any(n and n % axis.size == 0 for n in report.type.shape)
        )
        if not size:
            continue
        splits = any(axis.name in _axes(p) for p in plan.inputs if p.name in plan.parameters)
        kind, moved = (AllGather.name, size) if splits else (AllReduce.name, gradients)
        seconds = collective_seconds(kind, moved, [axis.name], plan.mesh, hardware)
        how = "activations" if splits else "the batch"
        option = "ml.constrain" if splits else "in_shardings"
        what = f"splitting {how} over '{axis.name}' by {option}"
        yield Remedy(what, int(size * (1 - 1 / axis.size)), seconds)


def _cut_batches(plan: Plan, row: DeviceMemory) -> Iterator[Remedy]:
    """Yield what micro-batches of half the size save in a pipeline."""
    schedule = plan.timetable.schedule
    if schedule is None:
        return
    # GPipe holds all micro-batches, however many there are.
    kept = 0 if schedule.name == "gpipe" else row.parts[ACTIVATIONS]
    saved = (kept + row.parts[TEMPORARIES]) // 2
    count = schedule.microbatches
    yield Remedy(f"{2 * count} micro-batches in place of {count}", saved, 0.0)


def _compute_in_half(plan: Plan, row: DeviceMemory) -> Iterator[Remedy]:
    """Yield what 16-bit floats save where values are computed in float32."""
    sizes = dict.fromkeys(DType, 0)
    for stage in plan.stages:
        if row.devices[0] in stage.devices:
            for node in all_nodes(stage.program.graph):
                for value in node.outputs:
                    sizes[value.type.dtype] += value.type.nbytes
    total = sum(sizes.values())
    if not total:
        return
    share = sizes[DType.float32] / total
    held = row.parts[ACTIVATIONS] + row.parts[TEMPORARIES]
    yield Remedy("compute_dtype='bfloat16' of ml.Precision", int(share * held / 2), 0.0)


# ------------------------------------------------------------------ ports


def _is_on(port: Port, device: int) -> bool:
    return device in port.sharding.mesh.flat


def _axes(port: Port) -> set[str]:
    return {axis.split(".")[0] for axis in port.sharding.split_axes}


def _can_rest(port: Port, axis: str, size: int) -> bool:
    """Return whether a parameter may be split once more, over an axis."""
    local = port.sharding.local_shape(port.type.shape)
    is_split = axis in _axes(port) or port.sharding.mesh.sizes.get(axis, 1) < size
    return not is_split and any(n and n % size == 0 for n in local)
