"""What may go into a bucket, and how much, by the prices of a profile and by what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mithril.cost import (
    Hardware,
    collective_seconds,
    find_bucket_bytes,
    find_start_up,
)
from mithril.cost.communication import LEAST_SHARE
from mithril.cost.pairs import price_cause
from mithril.ir import Cause, Node, Phase, Value
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Collective, ReduceScatter
from mithril.partition.bucket_limits import LITTLE, limit_bucket
from mithril.partition.bucket_sizes import Link
from mithril.partition.fusion import FUSE_AS_IT_PAYS, Fusion

LARGE_SHARE = 100
"""How much longer the bytes of a bucket take than its start-up, at most, where the time model says
how large it is, and of a sum, which needs no copies."""


@dataclass(frozen=True, slots=True)
class Filling:
    """What may go into a bucket, and how much, by the prices of a profile.

    Args:
        mesh: the devices.
        hardware: the profile.
        moved: as of `count_moved`.
        asked: what shall travel together.
    """

    mesh: Mesh
    hardware: Hardware
    moved: Mapping[str, int]
    asked: Fusion = FUSE_AS_IT_PAYS
    _limits: dict[Collective, int] = field(default_factory=dict)
    _worth: dict[tuple[Collective, int], bool] = field(default_factory=dict)

    def is_timed(self, op: Collective) -> bool:
        """Whether the time model says how large buckets are: there is a wait to shorten."""
        may_wait = self.asked.nbytes is None and self.hardware.hides_collectives
        return may_wait and (isinstance(op, AllReduce) or self.asked.by_time)

    def find_limit(self, op: Collective) -> int:
        """Return the bytes at which a bucket is closed."""
        if self.asked.nbytes is not None:
            return self.asked.nbytes
        if op not in self._limits:
            self._limits[op] = self._price_limit(op)
        return self._limits[op]

    def find_link(self, op: Collective) -> Link:
        """Return what buckets of a collective cost, and how large they may be."""
        start, per_byte = find_start_up(op.name, op.axes, self.mesh, self.hardware)
        return Link(start, per_byte, self.find_limit(op))

    def is_start_up(self, node: Node) -> bool:
        """Whether a collective is a sum that takes longer to start than its bytes take."""
        op = node.op
        if not isinstance(op, AllReduce):
            return False
        link = self.find_link(op)
        return size_of(node) * link.per_byte < link.start

    def may_join(self, node: Node) -> bool:
        """Whether a collective may travel with others."""
        op = node.op
        if isinstance(op, AllReduce):
            return self.asked.all_reduces
        return (
            self.asked.others
            and isinstance(op, Collective)
            and self._is_worth_it(op, size_of(node))
        )

    def _price_limit(self, op: Collective) -> int:
        issued = op.name, op.axes, self.mesh, self.hardware
        is_sum = isinstance(op, AllReduce)
        share = LARGE_SHARE if is_sum or self.is_timed(op) else LEAST_SHARE
        found = limit_bucket(op, find_bucket_bytes(*issued, share), self.moved)
        return max(LITTLE, found) if is_sum else found

    def _is_worth_it(self, op: Collective, nbytes: int) -> bool:
        """Whether copies into a buffer, and out of it, take less time than what they save.

        Along another dimension than the first the data of a collective is copied in any case, as it
        has to lie device by device.
        """
        if (op, nbytes) not in self._worth:
            self._worth[op, nbytes] = self._saves(op, nbytes)
        return self._worth[op, nbytes]

    def _saves(self, op: Collective, nbytes: int) -> bool:
        if isinstance(op, ReduceScatter) and op.reduction != "sum":
            return False  # libraries make these of other collectives
        saved = 2 * self._seconds(op, nbytes) - self._seconds(op, 2 * nbytes)
        moved = 2 * nbytes // self.mesh.product(op.axes)
        if _dimension(op) == 0:
            moved += 2 * nbytes
        copying = moved / self.hardware.bandwidth(moved) + 2 * self.hardware.kernel_seconds
        return nbytes > 0 and saved > copying

    def _seconds(self, op: Collective, nbytes: int) -> float:
        return collective_seconds(op.name, nbytes, op.axes, self.mesh, self.hardware)

    def join(self, nodes: Sequence[Node]) -> Node:
        """Return the collective of a bucket."""
        return join_collectives(nodes, self.mesh, self.hardware)


def _dimension(op: Collective) -> int:
    if isinstance(op, AllToAll):
        return op.split
    return op.dimension if isinstance(op, AllGather | ReduceScatter) else 0


def size_of(node: Node) -> int:
    """Return the bytes of a collective, as plans count them."""
    assert isinstance(node.op, Collective), "it is asked of collectives"
    return node.op.count_bytes([value.type for value in node.inputs])


def find_form(node: Node) -> str:
    """Return what a collective carries of a gradient, if it is compressed."""
    return node.cause.compressed if node.cause is not None else ""


def join_collectives(nodes: Sequence[Node], mesh: Mesh, hardware: Hardware) -> Node:
    """Return one collective over a flat buffer in the place of several.

    Args:
        nodes: collectives of one op and dtype, in order.
        mesh: the devices.
        hardware: the profile that prices it.
    """
    inputs = tuple(value for node in nodes for value in node.inputs)
    outputs: tuple[Value, ...] = tuple(value for node in nodes for value in node.outputs)
    last, phases = nodes[-1], list(Phase)
    op = last.op
    assert isinstance(op, Collective), "only collectives are put together"
    causes = [node.cause for node in nodes if node.cause]
    gradients = sum(_is_gradient(node) for node in nodes if node.cause)
    cause = Cause(
        value=_count({"gradient": gradients, "value": len(causes) - gradients}),
        produced=causes[0].produced,
        required=causes[0].required,
        consumer="gradient bucket" if gradients else "value bucket",
        parts=tuple(cause.value for cause in causes),
        instead=causes[0].instead if len({cause.instead for cause in causes}) == 1 else (),
        is_asked=all(cause.is_asked for cause in causes),
        is_again=all(cause.is_again for cause in causes),
        compressed=causes[0].compressed if causes else "",
        plain_bytes=sum(cause.plain_bytes for cause in causes),
    )
    nbytes = op.count_bytes([value.type for value in inputs])
    cause = price_cause(cause, op, nbytes, mesh, hardware)
    phase = max((node.phase for node in nodes), key=phases.index)
    return Node(op, inputs, outputs, phase=phase, cause=cause)


def _is_gradient(node: Node) -> bool:
    op = node.op
    return isinstance(op, Collective) and op.reduces and node.phase == Phase.backward


def _count(numbers: Mapping[str, int]) -> str:
    """Return how many there are of what.

    >>> _count({"gradient": 3, "value": 1})
    '3 gradients, 1 value'
    """
    found = (f"{n} {what}{'s' * (n > 1)}" for what, n in numbers.items() if n)
    return ", ".join(found)


__all__ = ["Filling", "find_form", "join_collectives", "size_of"]
