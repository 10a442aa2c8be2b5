"""The timeline of a plan: when each device computes and communicates, by simulation.

Prices are those of `mithril.cost.kernels` and `mithril.cost.communication`, and what hides what is
said in `mithril.cost.streams` and `mithril.cost.simulate_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike

from mithril.cost.chrome_trace import write_trace
from mithril.cost.events import Event, Events
from mithril.cost.hardware import Hardware
from mithril.cost.kernels import OpCosts
from mithril.cost.simulate_plan import SimulatedPlan, simulate_plan
from mithril.errors import PlanError
from mithril.ir import Graph
from mithril.ir.rewrite import walk
from mithril.plan import Plan
from mithril.types import DType

SHOWN = 10
"""How many layers a table shows."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceTimeline:
    """What equal devices do.

    Args:
        devices: flat indices of the devices, which all do the same.
        events: of one of them, those of a stream in order.
    """

    devices: tuple[int, ...]
    events: Sequence[Event]


@dataclass(frozen=True, slots=True, eq=False)
class PlanTimeline:
    """When the devices of a plan compute and communicate, as predicted.

    Args:
        rows: what devices do; equal devices share a row.
        seconds: of a step.
        flops: operations of the products of tensors in the model, on all devices together.
        utilization: the share of the devices' peak rate that these are.
        bubble: the share of the devices' time in which they neither compute nor communicate.
        exposed: seconds of communication that nothing hides, by axes joined by `+`, and of sends
            under `send`; the mean over all devices.
        communication: all of it, likewise.
        layers: seconds of compute by layer path, on a device that has the layer.
        critical_path: layers and collectives, with their seconds, of which each had to wait for the
            one before; all together they take as long as a step.
        profile: name of the hardware profile that it is predicted with.
    """

    rows: tuple[DeviceTimeline, ...]
    seconds: float
    flops: int
    utilization: float
    bubble: float
    exposed: Mapping[str, float]
    communication: Mapping[str, float]
    layers: Mapping[str, float]
    critical_path: tuple[tuple[str, float], ...]
    profile: str

    def to_chrome_trace(self, path: str | PathLike[str]) -> None:
        """Write the events as JSON that Perfetto and `chrome://tracing` show.

        Args:
            path: of the file.
        """
        write_trace(path, [(row.devices, row.events) for row in self.rows], self.profile)

    def __str__(self) -> str:
        shown = sorted(self.layers.items(), key=lambda item: -item[1])
        lines = [
            f"step {_time(self.seconds)}, predicted with profile '{self.profile}'",
            f"  utilization    {_percent(self.utilization)}",
            f"  bubble         {_percent(self.bubble)}",
        ]
        for key, seconds in self.communication.items():
            lines.append(
                f"  communication  {key}: {_time(seconds)}, of which {_time(self.exposed[key])} "
                f"are exposed"
            )
        lines += [f"  compute        {name}: {_time(spent)}" for name, spent in shown[:SHOWN]]
        if len(shown) > SHOWN:
            rest = sum(spent for _, spent in shown[SHOWN:])
            lines.append(f"  compute        {len(shown) - SHOWN} more layers: {_time(rest)}")
        return "\n".join(lines)


def predict_timeline(plan: Plan, hardware: Hardware) -> PlanTimeline:
    """Return when each device computes and communicates while a plan runs.

    Args:
        plan: what runs.
        hardware: the profile to price with, and how programs run.

    Raises:
        PlanError: no profile describes the devices.

    >>> import mithril as ml
    >>> from mithril.cost import SIMULATED
    >>> model = ml.Linear(dimension=4, bias=False)
    >>> compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(data=2)), shapes={"input": (8, 4)})
    >>> timeline = predict_timeline(compiled.plan, SIMULATED)
    >>> timeline.bubble, timeline.rows[0].devices
    (0.0, (0, 1))
    """
    if hardware.unknown_platform:
        raise PlanError(
            f"plan has no times: no hardware profile describes '{hardware.unknown_platform}'; "
            f"measure one with `mithril calibrate`, or name one, as in plan.timeline('h100-sxm')"
        )
    costs = OpCosts()
    simulated = simulate_plan(plan, hardware, costs)
    rates = _count_flops(plan, costs)
    size, seconds = plan.mesh.size, simulated.seconds
    processors = 1 if hardware.execution.in_turn else size
    ideal = sum(flops / hardware.peak(dtype) for dtype, flops in rates.items()) / processors
    communication = _average(simulated, "communication", size)
    exposed = _average(simulated, "exposed", size)
    return PlanTimeline(
        rows=tuple(DeviceTimeline(row.devices, Events(row.occurrences)) for row in simulated.rows),
        seconds=seconds,
        flops=sum(rates.values()),
        utilization=ideal / seconds if seconds else 0.0,
        bubble=0.0 if hardware.execution.in_turn else _find_bubble(simulated, hardware, size),
        exposed={key: exposed.get(key, 0.0) for key in communication},
        communication=communication,
        layers=dict(simulated.layers),
        critical_path=tuple(simulated.path),
        profile=hardware.name,
    )


def _find_bubble(simulated: SimulatedPlan, hardware: Hardware, size: int) -> float:
    whole = (simulated.seconds - hardware.call_seconds) * size
    busy = sum(
        (row.totals.compute + sum(row.totals.exposed.values())) * len(row.devices)
        for row in simulated.rows
    )
    return max(1 - busy / whole, 0.0) if whole else 0.0


def _average(simulated: SimulatedPlan, what: str, size: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for row in simulated.rows:
        for key, seconds in getattr(row.totals, what).items():
            found[key] = found.get(key, 0.0) + seconds * len(row.devices) / size
    return found


def _count_flops(plan: Plan, costs: OpCosts) -> dict[DType, int]:
    """Return the operations of products on all devices, by dtype.

    The graph on whole tensors has each once, where devices may do the same work side by side; of a
    plan of several stages there is none.
    """
    found: dict[DType, int] = {}
    if plan.whole is not None:
        _add_flops(plan.whole.graph, 1, costs, found)
        return found
    times = plan.timetable.times()
    for number, stage in enumerate(plan.stages):
        _add_flops(stage.program.graph, times[number] * len(stage.devices), costs, found)
    return found


def _add_flops(graph: Graph, times: int, costs: OpCosts, found: dict[DType, int]) -> None:
    for node, count in walk(graph, times):
        if node.op.bodies or node.op.is_collective:
            continue
        work, dtype = costs.of(node)
        if dtype is not None:
            found[dtype] = found.get(dtype, 0) + work.flops * count


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
