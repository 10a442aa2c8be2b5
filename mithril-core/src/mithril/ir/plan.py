"""Plan, Stage and Program: what runs, as data.

A Program is one local graph that every device of its mesh runs, together with how each input and
output lies on the mesh. Its collectives are ordinary nodes, each with its Cause. A Stage is a
program on a mesh; a Plan is the stages in the order they run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mithril.ir.timetable import Run, Send
from mithril.mesh import Mesh, Sharding
from mithril.types import TensorType

if TYPE_CHECKING:
    from mithril.ir.graph import Graph, Node, Phase, Value
    from mithril.ir.timetable import Timetable, Transfer


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a collective is in the plan.

    Args:
        value: the tensor that moves.
        produced: how it lies where it is made.
        required: how it has to lie where it is used.
        consumer: layer path or output that requires it.
        seconds: predicted time.
        parts: for a bucket, the tensors it carries.
        instead: what else was possible for the layer that asks, and how much more it would cost.
        emulated: what is issued in its place, where the backend lacks it.
        is_asked: whether it is part of what an option asks for, such as `context_parallel`.
    """

    value: str
    produced: str
    required: str
    consumer: str
    seconds: float = 0.0
    parts: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()
    emulated: str = ""
    is_asked: bool = False


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a plan, as a row to read.

    Args:
        kind: `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all` or `permute`; `send` for
            what goes from the devices of one stage to those of another.
        axes: mesh axes it runs over; a complete run of sub-axes is named by its axis.
        bytes: per device: the buffer of an all_reduce, the output of an all_gather, the input of a
            reduce_scatter, the local part of an all_to_all or permute, what a device is sent.
        phase: forward or backward.
        scope: layer path of the value's producer.
        source: the user's line, as `file:line`, or empty.
        cause: why it is there.
        times: how often it runs: the iterations of the loops around it.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    phase: Phase
    scope: str
    source: str
    cause: Cause
    times: int = 1


@dataclass(frozen=True, slots=True)
class Port:
    """One input or output of a program: global type and how it lies on the mesh.

    The sharding is said on the mesh of the user where that is possible, without the sub-axes of the
    program; `mithril.mesh.carry` says it on the program's mesh.
    """

    name: str
    type: TensorType
    sharding: Sharding


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """A local graph with explicit collectives, the same for every device of the mesh.

    `graph.inputs` and `inputs` correspond one to one, and so do `graph.outputs` and `outputs`.
    """

    mesh: Mesh
    graph: Graph
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def collectives(self) -> Iterator[Collective]:
        """Yield the collectives in the order every device issues them, those of a loop once."""
        yield from _rows(self.graph, self.mesh, 1)

    def issued(self) -> Iterator[tuple[str, tuple[str, ...], int]]:
        """Yield kind, axes and bytes of the collectives as an observer is told them."""
        yield from _issued(self.graph, self.mesh)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A program and the flat device indices it runs on."""

    name: str
    program: Program
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """What a program computes, before it was cut into local parts.

    Args:
        graph: the graph on whole tensors.
        homes: how values lie, where the plan says it.
    """

    graph: Graph
    homes: Mapping[Value, Sharding]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Everything that runs for one input signature.

    Args:
        mesh: the mesh of the backend.
        stages: programs in the order they start.
        specs: how each named tensor of the model is computed, and who decided it.
        notes: facts a reader of the plan should know, such as ignored annotations.
        whole: the same on whole tensors, for an engine that leaves collectives to its compiler.
        timetable: in which order the stages run and what they send, if there are several.
    """

    mesh: Mesh
    stages: tuple[Stage, ...]
    specs: Mapping[str, TensorReport] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    whole: Whole | None = None
    timetable: Timetable | None = None

    @property
    def inputs(self) -> tuple[Port, ...]:
        """What the plan takes."""
        return self.stages[0].program.inputs if self.timetable is None else self.timetable.inputs

    @property
    def outputs(self) -> tuple[Port, ...]:
        """What the plan makes."""
        return self.stages[0].program.outputs if self.timetable is None else self.timetable.outputs

    def collectives(self) -> tuple[Collective, ...]:
        """Return every collective of every stage, in order, and what is sent between stages."""
        if self.timetable is None:
            return tuple(self.stages[0].program.collectives())
        times = self.timetable.times()
        within = tuple(
            replace(row, times=row.times * times[number])
            for number, stage in enumerate(self.stages)
            for row in stage.program.collectives()
        )
        return (*within, *sent_rows(self.timetable))

    def issued(self, device: int | None = None) -> tuple[tuple[str, tuple[str, ...], int], ...]:
        """Return kind, axes and bytes of every collective and send as often as it runs, in order.

        What is sent between devices has no axes; what stays where it is is not sent.

        Args:
            device: flat index of a device: only that in which it takes part.
        """
        if self.timetable is None:
            return tuple(self.stages[0].program.issued())
        return tuple(_issued_by(self, self.timetable, device))

    def bytes_by_axis(self) -> dict[str, int]:
        """Return the bytes each device moves per mesh axis (or axes, joined by `+`).

        What is sent between stages is under `send`.
        """
        total: dict[str, int] = {}
        for row in self.collectives():
            key = "+".join(row.axes) or row.kind
            total[key] = total.get(key, 0) + row.bytes * row.times
        return total

    def __str__(self) -> str:
        from mithril.ir.printer import print_plan

        return print_plan(self)


@dataclass(frozen=True, slots=True)
class TensorReport:
    """How a tensor is computed: its type, its sharding, and who decided it."""

    type: TensorType
    sharding: Sharding
    decided_by: str


def sent_rows(timetable: Timetable) -> Iterator[Collective]:
    """Yield what is sent between stages, each value once, with the times it is sent."""
    times = Counter(step.transfer for step in timetable.steps if isinstance(step, Send))
    for number, transfer in enumerate(timetable.transfers):
        if transfer.bytes and times[number]:
            yield _sent(transfer, times[number])


def observed_send(transfer: Transfer) -> tuple[str, tuple[str, ...], int]:
    """Return what an observer is told of a transfer."""
    return "send", (), transfer.bytes


def _issued_by(
    plan: Plan, timetable: Timetable, device: int | None
) -> Iterator[tuple[str, tuple[str, ...], int]]:
    for step in timetable.steps:
        if isinstance(step, Run):
            stage = plan.stages[step.stage]
            if device is None or device in stage.devices:
                yield from stage.program.issued()
            continue
        transfer = timetable.transfers[step.transfer]
        if transfer.bytes and (device is None or device in transfer.devices):
            yield observed_send(transfer)


def _sent(transfer: Transfer, times: int) -> Collective:
    return Collective(
        *observed_send(transfer), transfer.phase, transfer.scope, transfer.place, transfer.cause,
        times,
    )  # fmt: skip


def moved_bytes(node: Node) -> int:
    """Return the bytes of a collective node, as `Collective.bytes` counts them."""
    values = node.outputs if node.op.name == "all_gather" else node.inputs
    return sum(value.type.nbytes for value in values)


def observed(node: Node, mesh: Mesh) -> tuple[str, tuple[str, ...], int]:
    """Return kind, axes and bytes of a collective node, as an observer is told them."""
    axes = node.op.attributes["axes"]
    assert isinstance(axes, tuple), "a collective has axes"
    return node.op.name, mesh.joined(axes), moved_bytes(node)


def _rows(graph: Graph, mesh: Mesh, times: int) -> Iterator[Collective]:
    from mithril.ir.repeat import Repeat

    for node in graph.nodes:
        if isinstance(node.op, Repeat):
            yield from _rows(node.op.body, mesh, times * node.op.count)
        elif node.op.is_collective:
            yield _row(node, mesh, times)


def _issued(graph: Graph, mesh: Mesh) -> Iterator[tuple[str, tuple[str, ...], int]]:
    from mithril.ir.repeat import Repeat

    for node in graph.nodes:
        if isinstance(node.op, Repeat):
            for _ in range(node.op.count):
                yield from _issued(node.op.body, mesh)
        elif node.op.is_collective:
            yield observed(node, mesh)


def _row(node: Node, mesh: Mesh, times: int) -> Collective:
    assert node.cause is not None, "collective without a cause"
    source = str(node.source) if node.source else ""
    return Collective(*observed(node, mesh), node.phase, node.scope, source, node.cause, times)
