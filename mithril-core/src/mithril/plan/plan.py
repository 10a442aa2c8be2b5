"""Plan: everything that runs for one input signature, as data.

A plan is stages and the timetable that says when each runs and what is sent between them. The plan
of a model that is not placed has one stage, which runs once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from mithril.errors import PlanError
from mithril.ir import Graph, Value
from mithril.mesh import Mesh, Sharding
from mithril.ops.collective import SEND
from mithril.plan.execution import Execution
from mithril.plan.issued import Issued, Row
from mithril.plan.policy import MemoryPolicy
from mithril.plan.printer import collective_lines, port_lines, stage_lines
from mithril.plan.program import Collective, Port, Program, Stage, bytes_by_axis
from mithril.plan.search import SearchResult
from mithril.plan.tables import tabulate_parts
from mithril.plan.timetable import Run, Send, Timetable, Transfer, run_once
from mithril.tables import render_html
from mithril.types import TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """What a program computes, before it was cut into local parts.

    Args:
        graph: the graph on whole tensors.
        homes: how values lie, where the plan says it.
    """

    graph: Graph
    homes: Mapping[Value, Sharding]


class Analyst(Protocol):
    """Reads memory and time off plans; `mithril.cost` has it, which knows hardware."""

    def predict_memory(self, plan: Plan, hardware: Any, donated: Collection[str]) -> Any:
        """Return what `Plan.memory` returns."""
        ...

    def predict_timeline(self, plan: Plan, hardware: Any) -> Any:
        """Return what `Plan.timeline` returns."""
        ...


@dataclass(frozen=True, slots=True)
class Pricing:
    """What the choices of a plan were priced with.

    Args:
        profile: name of the hardware profile.
        unknown_platform: the platform of the devices if no profile describes it, else empty. Then
            the profile is of other devices, and its times say nothing of these.
        execution: how the engine runs programs.
    """

    profile: str
    unknown_platform: str = ""
    execution: Execution = field(default_factory=Execution)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that runs for one input signature.

    Args:
        mesh: the mesh of the backend.
        stages: programs in the order they start.
        timetable: in which order the stages run, and what they send.
        specs: how each named tensor of the model is computed, and who decided it.
        notes: facts a reader of the plan should know, such as ignored annotations.
        whole: the same on whole tensors, for an engine that leaves collectives to its compiler.
        pricing: what priced the choices in it, if there were any.
        analyst: reads memory and time off it.
        parameters: names of the inputs that are parameters of a model.
        optimizer: names of the inputs that are the state of an optimiser.
        policy: what its backward computes again; None where it finds all that it needs.
        search: what a search over shardings has found; None where there was none.
    """

    mesh: Mesh
    stages: tuple[Stage, ...]
    timetable: Timetable
    specs: Mapping[str, TensorReport] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    whole: Whole | None = None
    pricing: Pricing | None = None
    analyst: Analyst | None = field(default=None, repr=False)
    parameters: tuple[str, ...] = ()
    optimizer: tuple[str, ...] = ()
    policy: MemoryPolicy | None = None
    search: SearchResult | None = None

    @staticmethod
    def of_program(
        mesh: Mesh,
        program: Program,
        specs: Mapping[str, TensorReport] | None = None,
        notes: tuple[str, ...] = (),
        whole: Whole | None = None,
    ) -> Plan:
        """Return the plan that runs one program once, on all devices of the mesh."""
        stage = Stage("main", program, tuple(range(mesh.size)))
        table = run_once(program.inputs, program.outputs)
        return Plan(mesh, (stage,), table, specs or {}, notes, whole)

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the plan takes."""
        return self.timetable.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What the plan makes."""
        return self.timetable.outputs

    @property
    def only_stage(self) -> Stage | None:
        """The stage that is all of the plan, if one is: it runs once, on all devices."""
        if len(self.stages) != 1 or not self.timetable.runs_once:
            return None
        program = self.stages[0].program
        is_everywhere = program.mesh.devices == self.mesh.devices
        is_all = (self.inputs, self.outputs) == (program.inputs, program.outputs)
        return self.stages[0] if is_everywhere and is_all else None

    def collectives(self) -> tuple[Collective, ...]:
        """Return every collective of every stage, in order, and what is sent between stages."""
        times = self.timetable.times()
        within = tuple(
            replace(row, times=row.times * times[number])
            for number, stage in enumerate(self.stages)
            for row in stage.program.collectives()
        )
        return (*within, *list_sends(self.timetable))

    def issue(self, device: int | None = None) -> Iterator[Issued]:
        """Yield every collective and send as an observer is told it, as often as it runs, in order.

        Args:
            device: flat index of a device: only that in which it takes part.
        """
        return _iterate_issued(self, device)

    def list_issued(self, device: int | None = None) -> tuple[Row, ...]:
        """Return kind, axes and bytes of every collective and send as often as it runs, in order.

        What is sent between devices has no axes; what stays where it is is not sent.

        Args:
            device: flat index of a device: only that in which it takes part.
        """
        return tuple(issued.row for issued in self.issue(device))

    def bytes_by_axis(self) -> dict[str, int]:
        """Return the bytes each device moves per mesh axis (or axes, joined by `+`).

        What is sent between stages is under `send`.
        """
        return bytes_by_axis(self.collectives())

    def memory(self, hardware: Any = None, *, donated: Collection[str] = ()) -> Any:
        """Return what each device holds while the plan runs, and the most it holds at once.

        Args:
            hardware: a profile, or the name of one; by default that which priced the plan.
            donated: names of inputs that are given up, in whose memory results may be made.

        Raises:
            OptionError: no profile has the name.
            PlanError: the plan was made without prices.
        """
        return self._analyst.predict_memory(self, hardware, donated)

    def timeline(self, hardware: Any = None) -> Any:
        """Return when each device computes and communicates while the plan runs.

        Args:
            hardware: a profile, or the name of one; by default that which priced the plan.

        Raises:
            OptionError: no profile has the name.
            PlanError: the plan was made without prices, or no profile describes its devices.
        """
        return self._analyst.predict_timeline(self, hardware)

    @property
    def _analyst(self) -> Analyst:
        if self.analyst is None:
            raise PlanError(
                "plan has no hardware profile: it was read from a file, or is of one op; use "
                "mithril.cost.predict_memory(plan, hardware) or predict_timeline(plan, hardware)"
            )
        return self.analyst

    def _repr_html_(self) -> str:
        parts = tabulate_parts(self.stages, self.timetable, self.collectives())
        return render_html([replace(self.mesh.tabulate(), title=f"plan on {self.mesh!r}"), *parts])

    def __str__(self) -> str:
        lines = [f"plan on {self.mesh!r}, {self.mesh.size} devices", *port_lines(self.timetable)]
        if self.only_stage is None:
            lines += stage_lines(self.stages, self.timetable)
        lines += collective_lines(self.collectives())
        lines += [] if self.search is None else self.search.lines()
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


@dataclass(frozen=True, slots=True)
class TensorReport:
    """How a tensor is computed: its type, its sharding, and who decided it."""

    type: TensorType
    sharding: Sharding
    decided_by: str


def list_sends(timetable: Timetable) -> Iterator[Collective]:
    """Yield what is sent between stages, each value once, with the times it is sent."""
    times = Counter(step.transfer for step in timetable.steps if isinstance(step, Send))
    for number, transfer in enumerate(timetable.transfers):
        if transfer.bytes and times[number]:
            yield _make_row(transfer, times[number])


def issue_transfer(transfer: Transfer) -> Issued:
    """Return what an observer is told of a transfer."""
    return Issued(SEND, (), transfer.bytes, transfer)


def _iterate_issued(plan: Plan, device: int | None) -> Iterator[Issued]:
    for step in plan.timetable.steps:
        if isinstance(step, Run):
            stage = plan.stages[step.stage]
            if device is None or device in stage.devices:
                yield from stage.program.issue()
            continue
        transfer = plan.timetable.transfers[step.transfer]
        if transfer.bytes and (device is None or device in transfer.devices):
            yield issue_transfer(transfer)


def _make_row(transfer: Transfer, times: int) -> Collective:
    return Collective(
        *issue_transfer(transfer).row, transfer.phase, transfer.scope, transfer.place,
        transfer.cause, times,
    )  # fmt: skip
