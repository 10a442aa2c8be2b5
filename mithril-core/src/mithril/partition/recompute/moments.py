"""What is alive at which moment of a backward, as sums of an integer program's variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from mithril.partition.recompute.buffers import Flow
from mithril.partition.recompute.twins import Twin

Terms = dict[int, float]
"""A sum: coefficients by the numbers of variables."""


@dataclass(slots=True, eq=False)
class Rows:
    """Variables of at least 0, and between what sums of them lie.

    Args:
        limit: bytes that may be alive at once.
        costs: of each variable.
        whole: whether each is a whole number.
        upper: what each is at most.
        rows: sums, with what they are at least and at most.
    """

    limit: int
    costs: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    rows: list[tuple[Terms, float, float]] = field(default_factory=list)

    def count_whole(self) -> int:
        """Return how many variables are whole numbers."""
        return sum(self.whole)

    def new(self, cost: float = 0.0, *, is_whole: bool = False, upper: float = 1.0) -> int:
        """Return the number of a new variable of at least 0."""
        self.costs.append(cost)
        self.whole.append(is_whole)
        self.upper.append(upper)
        return len(self.costs) - 1

    def require(self, terms: Terms, low: float, high: float = inf) -> None:
        """Say between what a sum lies."""
        self.rows.append((terms, low, high))


@dataclass(frozen=True, slots=True, eq=False)
class Variables:
    """The variables of a flow.

    Args:
        flow: the one.
        kept: of its buffers.
        again: of those that may be made again.
        runs: of the nodes that may run again.
        first: for each buffer that the backward reads, the position where it first does.
        last: and where it last does.
        one: for each buffer of which the backward has a twin, that twin, and whether it is left
            out.
        readers: for each buffer, the nodes that read it and may run again.
    """

    flow: Flow
    kept: Sequence[int]
    again: Mapping[int, int]
    runs: Mapping[int, int]
    first: Mapping[int, int]
    last: Mapping[int, int]
    one: Mapping[int, tuple[Twin, int]]
    readers: Mapping[int, Sequence[int]]

    def list_kept(self, number: int) -> Terms:
        """Return the bytes of a buffer as far as it is kept, of all iterations."""
        return {self.kept[number]: self.flow.buffers[number].bytes * self.flow.times}

    def find_earliest(self) -> dict[int, int]:
        """Return when each buffer can be needed first, for the backward or to make others again."""
        found = dict(self.first)
        for at in reversed(range(len(self.flow.nodes))):
            needed = [found[n] for n in self.flow.made[at] if n in self.again and n in found]
            for number in self.flow.reads[at] if needed else ():
                found[number] = min(found.get(number, min(needed)), *needed)
        return found


def list_changes(variables: Variables, program: Rows) -> list[Terms]:
    """Return what comes and goes before each node of the backward; -1 stands for constants."""
    flow, earliest = variables.flow, variables.find_earliest()
    changes: list[Terms] = [{} for _ in range(len(flow.late) + 2)]
    for number, buffer in enumerate(flow.buffers):
        if number not in earliest or not buffer.bytes:
            continue
        size, name = float(buffer.bytes), variables.kept[number]
        put(changes[0], {name: size})
        if number not in variables.first:
            put(changes[earliest[number] + 1], {name: -size})
            continue
        first = variables.first[number]
        put_twin(changes, variables, number)
        for at, runs in () if number in variables.one else _list_earlier(variables, number):
            there = program.new()
            program.require({there: 1.0, name: -1.0}, 0.0)
            for run in runs:
                program.require({there: 1.0, run: -1.0}, 0.0)
            put(changes[at], {there: size, name: -size})
            name = there
        put(changes[first], {name: -size})
        put_span(changes, first, variables.last[number], {-1: size})
    return changes


def _list_earlier(variables: Variables, number: int) -> Iterable[tuple[int, list[int]]]:
    """Return when, before the backward reads a buffer, others have been made of it, and which."""
    found: dict[int, list[int]] = {}
    for at in variables.readers.get(number, ()):
        made, first = variables.flow.made[at], variables.first
        if all(n in first for n in made):
            latest = max(first[n] for n in made)
            if latest < first[number]:
                found.setdefault(latest, []).append(variables.runs[at])
    return sorted(found.items())


def put_twin(changes: Sequence[Terms], variables: Variables, number: int) -> None:
    """Let a buffer and the result of a twin that is left out be one."""
    if number not in variables.one:
        return
    twin, name = variables.one[number]
    first, last = variables.first[number], variables.last[number]
    size, until = float(twin.bytes), min(twin.until, len(changes) - 2)
    put_span(changes, min(first, twin.at), max(last, until), {name: size})
    put_span(changes, first, last, {name: -size})
    put_span(changes, twin.at, until, {name: -size})


def put_span(changes: Sequence[Terms], first: int, last: int, terms: Terms) -> None:
    """Let something be alive from before one node until another has run."""
    put(changes[first], terms)
    put(changes[last + 1], negate(terms))


def put(terms: Terms, more: Mapping[int, float]) -> None:
    """Add a sum to another one."""
    for name, size in more.items():
        terms[name] = terms.get(name, 0.0) + size


def negate(terms: Terms) -> Terms:
    """Return a sum with the signs turned around."""
    return {name: -size for name, size in terms.items()}


__all__ = ["Rows", "Terms", "Variables", "list_changes", "negate", "put", "put_span", "put_twin"]
