"""Issued: a collective, or a message between stages, that was carried out, with what asked for it.

Observers are told these. Plans list the same: what an engine carried out equals the plan's list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Protocol

from mithril.ir import Cause, Node, Phase
from mithril.mesh import Mesh
from mithril.ops.collective import Collective, collective_of
from mithril.plan.names import GRADIENT

Row = tuple[str, tuple[str, ...], int]
"""Kind, mesh axes and bytes."""


class Origin(Protocol):
    """What a program or a timetable has for an exchange of data: a node, or a transfer."""

    @property
    def scope(self) -> str:
        """Layer path of the value's producer."""

    @property
    def phase(self) -> Phase:
        """Forward or backward."""

    @property
    def line(self) -> str:
        """The user's line, as `file:line`, or empty."""

    @property
    def cause(self) -> Cause | None:
        """Why it is there."""


@dataclass(frozen=True, slots=True)
class Issued:
    """An exchange of data that was carried out.

    Args:
        kind: of the collective (see `mithril.ops.collective`); `send` for a message.
        axes: mesh axes it ran over; none for a message.
        bytes: as `mithril.plan.Collective` counts them.
        origin: the node or transfer that asked for it; None where a compiler put it there itself.
        seconds: how long it took, where that was measured.
    """

    kind: str
    axes: tuple[str, ...]
    bytes: int
    origin: Origin | None = field(default=None, repr=False)
    seconds: float | None = field(default=None, compare=False)

    @property
    def row(self) -> Row:
        """Kind, mesh axes and bytes, as `Plan.list_issued` has them."""
        return self.kind, self.axes, self.bytes

    @property
    def scope(self) -> str:
        """Layer path of the value's producer; empty where several layers share it."""
        return "" if self.origin is None else self.origin.scope

    @property
    def source(self) -> str:
        """The user's line, as `file:line`, or empty."""
        return "" if self.origin is None else self.origin.line

    @property
    def phase(self) -> Phase | None:
        """Forward or backward, where that is known."""
        return None if self.origin is None else self.origin.phase

    @property
    def cause(self) -> Cause | None:
        """Why it was there, where that is known."""
        return None if self.origin is None else self.origin.cause

    def split_by_layer(self) -> dict[str, int]:
        """Return its bytes by layer path; those of a bucket by the layers of what it carries.

        >>> Issued("all_reduce", ("data",), 8).split_by_layer()
        {'': 8}
        """
        parts = self.cause.parts if self.cause is not None else ()
        sizes = self._list_sizes()
        if not parts or len(parts) != len(sizes):
            return {self.scope: self.bytes}
        # A compiler may carry out a bucket in pieces: of each, every layer has its part.
        ends = [self.bytes * end // sum(sizes) for end in accumulate(sizes, initial=0)]
        found: dict[str, int] = {}
        for part, (start, stop) in zip(parts, pairwise(ends), strict=True):
            layer = part.removeprefix(GRADIENT).rpartition(".")[0]
            found[layer] = found.get(layer, 0) + stop - start
        return found

    def _list_sizes(self) -> Sequence[int]:
        """Return the bytes of each tensor of a bucket, also where this is a step of one."""
        if self.cause is not None and self.cause.algorithm is not None:
            return self.cause.algorithm.bytes
        inputs = self.origin.inputs if isinstance(self.origin, Node) else ()
        return [value.type.nbytes for value in inputs]


def issue_node(node: Node, mesh: Mesh) -> Issued:
    """Return what an observer is told of a collective node of a program on a mesh."""
    op = _get_collective(node)
    return Issued(op.name, mesh.join_axes(op.axes), count_moved_bytes(node), node)


def count_moved_bytes(node: Node) -> int:
    """Return the bytes of a collective node, as `mithril.plan.Collective` counts them."""
    return _get_collective(node).count_bytes([value.type for value in node.inputs])


def _get_collective(node: Node) -> Collective:
    op = collective_of(node.op)
    assert op is not None, "it is asked of collectives"
    return op


def find_issued(row: Row, known: Sequence[Issued]) -> Issued:
    """Return an exchange of some kind, axes and bytes with the origin that the plan has for it.

    Args:
        row: what was seen.
        known: what the plan lists; the first of the same row asked for it.
    """
    return next((issued for issued in known if issued.row == row), Issued(*row))


__all__ = ["Issued", "Origin", "Row", "count_moved_bytes", "find_issued", "issue_node"]
