"""Program, Port and Stage: what the devices of a mesh run, as data.

A Program is one local graph that every device of its mesh runs, together with how each input and
output lies on the mesh. Its collectives are ordinary nodes, each with its Cause. A Stage is a
program on a mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mithril.ir import Cause, Graph, Node, Phase
from mithril.ir.rewrite import unroll, walk
from mithril.mesh import Mesh, Sharding
from mithril.plan.issued import Issued, Row, issue_node
from mithril.types import TensorType


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a plan, as a row to read.

    Args:
        kind: its kind (see `mithril.ops.collective`); `send` for what goes from the devices of one
            stage to those of another.
        axes: mesh axes it runs over; a complete run of sub-axes is named by its axis.
        bytes: per device: the result of an all_gather, what goes into any other collective, what
            a device is sent.
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


def bytes_by_axis(rows: Iterable[Collective]) -> dict[str, int]:
    """Return the bytes each device moves per mesh axis (or axes, joined by `+`), or by sends."""
    total: dict[str, int] = {}
    for row in rows:
        key = "+".join(row.axes) or row.kind
        total[key] = total.get(key, 0) + row.bytes * row.times
    return total


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
        for node, times in walk(self.graph):
            if node.op.is_collective:
                yield _row(node, self.mesh, times)

    def issue(self) -> Iterator[Issued]:
        """Yield the collectives as an observer is told them, as often as they run."""
        known: dict[Node, Issued] = {}
        for node in unroll(self.graph):
            if node.op.is_collective:
                if node not in known:
                    known[node] = issue_node(node, self.mesh)
                yield known[node]

    def list_issued(self) -> Iterator[Row]:
        """Yield kind, axes and bytes of the collectives, as often as they run."""
        return (issued.row for issued in self.issue())


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A program and the flat device indices it runs on."""

    name: str
    program: Program
    devices: tuple[int, ...]


def describe_collective(node: Node, mesh: Mesh) -> Row:
    """Return kind, axes and bytes of a collective node."""
    return issue_node(node, mesh).row


def _row(node: Node, mesh: Mesh, times: int) -> Collective:
    assert node.cause is not None, "collective without a cause"
    return Collective(
        *describe_collective(node, mesh), node.phase, node.scope, node.line, node.cause, times
    )
