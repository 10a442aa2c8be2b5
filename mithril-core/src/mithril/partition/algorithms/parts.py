"""Collectives over several axes, of collectives over some of them each.

What a group sends over its outer links is least where members that lie near one another have put
together what they have, so a hierarchical all_reduce is

    reduce_scatter over the inner axes, all_reduce over the outer, all_gather over the inner ones

and, with n = o * i members, only 1/i of the bytes goes over the outer axes. A reduce_scatter begins
over the inner axes, an all_gather over the outer ones, and an all_to_all moves first what goes to
another place inside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mithril.ir import Builder
from mithril.mesh import Mesh
from mithril.ops import transpose
from mithril.ops.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from mithril.partition.algorithms.asked import NATIVE
from mithril.partition.algorithms.members import Members
from mithril.partition.algorithms.rounds import (
    EXCHANGE,
    GATHER,
    REDUCE,
    SCATTER,
    cut_rows,
    join_rows,
)


@dataclass(frozen=True, slots=True)
class Part:
    """Some axes of a collective.

    Args:
        axes: major first.
        of: the algorithm of each kind of collective over them; `native` where nothing is said.
    """

    axes: tuple[str, ...]
    of: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Way:
    """How a collective is carried out.

    Args:
        name: of the algorithm, for readers.
        stages: all axes, major first; a stage of several parts is hierarchical.
    """

    name: str
    stages: tuple[tuple[Part, ...], ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all stages, major first."""
        return tuple(part for stage in self.stages for part in stage)


@dataclass(frozen=True, slots=True)
class Exchange:
    """Carries collectives out on rows, in a program.

    Args:
        builder: of the program.
        mesh: the devices.
    """

    builder: Builder
    mesh: Mesh

    def reduce(self, way: Way, x: Any, reduction: str) -> Any:
        """Return the reduction of x over all members: one stage after another, the last first."""
        for stage in reversed(way.stages):
            x = self._reduce_over(stage, x, reduction)
        return x

    def _reduce_over(self, stage: Sequence[Part], x: Any, reduction: str) -> Any:
        outer, inner = stage[0], stage[1:]
        if not inner:
            return self._find(REDUCE, AllReduce.name, outer)(self._members(outer), x, reduction)
        near = self.mesh.product(axis for part in inner for axis in part.axes)
        mine = self.scatter(inner, cut_rows(x, near), reduction)
        return join_rows(self.gather(inner, self._reduce_over([outer], mine, reduction)), x)

    def scatter(self, parts: Sequence[Part], rows: Any, reduction: str) -> Any:
        """Return the reduction of the row of this member, of rows by member."""
        outer, inner = parts[0], parts[1:]
        if inner:
            rows = self.scatter(inner, self._regroup(rows, outer), reduction)
        return self._find(SCATTER, ReduceScatter.name, outer)(self._members(outer), rows, reduction)

    def gather(self, parts: Sequence[Part], row: Any) -> Any:
        """Return the rows of all members."""
        outer, inner = parts[0], parts[1:]
        made = self._find(GATHER, AllGather.name, outer)(self._members(outer), row)
        return _merge(self.gather(inner, made)) if inner else made

    def exchange(self, parts: Sequence[Part], rows: Any) -> Any:
        """Return the rows that the members have for this one, of rows for each of them."""
        outer, inner = parts[0], parts[1:]
        if inner:
            rows = _swap(self.exchange(inner, self._regroup(rows, outer)))
        made = self._find(EXCHANGE, AllToAll.name, outer)(self._members(outer), rows)
        return made.reshape(-1, *made.shape[2:]) if inner else made

    def _regroup(self, rows: Any, outer: Part) -> Any:
        """Return rows by member as (inner, outer, …)."""
        far = self.mesh.product(outer.axes)
        return _swap(rows.reshape(far, rows.shape[0] // far, *rows.shape[1:]))

    def _members(self, part: Part) -> Members:
        return Members(self.builder, part.axes, self.mesh.product(part.axes))

    @staticmethod
    def _find(known: Mapping[str, Any], kind: str, part: Part) -> Any:
        return known[part.of.get(kind, NATIVE)]


def _swap(rows: Any) -> Any:
    return transpose(rows, (1, 0, *range(2, rows.ndim)))


def _merge(rows: Any) -> Any:
    """Return rows (inner, outer, …) by member."""
    inner, outer, *rest = rows.shape
    return _swap(rows).reshape(outer * inner, *rest)


__all__ = ["Exchange", "Part", "Way"]
