"""The cheapest set to drop as an integer program, and a bound on it: all of a program at once.

A node runs again (R) or not, which is the only thing that is counted in whole numbers. A buffer is
kept (k) or made again (r): r is at most R of the node that makes it, k + r is 1 where the backward
reads it, and at least R of each node that reads it. What runs again costs seconds. For each node of
the backward, what is alive while it runs has to fit into the budget:

- what the backward reads there, and before as well as later on;
- what it reads later on, as far as it is kept, or has been made again since for something else;
- what is kept to make others again, until the first of them can be needed.

What is alive for a moment only while something is made again does not count, so that no set that
keeps to a budget is forbidden: the least cost is a bound, and its set a candidate to be measured.
Jain et al., "Checkmate" (2020), let each node run again at every moment; here it is once.

HiGHS solves it, by SciPy, which is an extra. Without it there is no program, and no answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf

import numpy as np

from mithril.ir import Value
from mithril.partition.recompute.buffers import Flow
from mithril.partition.recompute.moments import (
    Rows,
    Terms,
    Variables,
    list_changes,
    put,
    put_span,
    put_twin,
)
from mithril.partition.recompute.sections import Reading
from mithril.partition.recompute.twins import Twin

LARGEST = 1000
"""How many nodes that may run again programs have together, at most, to be solved."""
NODES = 10
"""So many branches are looked at, at most: a limit of time would give processes different plans."""
BUDGET = 1000.0
"""The budget in the unit of the program, whose tolerance of 1e-6 is next to nothing of it."""
NEAR = 1e-3
"""An answer is good enough if it is within such a part of the bound."""
NEXT_TO_NOTHING = 1e-9
"""A bound of such a part of all costs is none."""
CLOSE = 0.01
"""Larger programs are not solved for such a part of the time that is known."""
EXACT = 16
"""Of so many nodes that may run again, at most, it is the best."""


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What the program says.

    Args:
        bound: seconds that no set within the budget can go below.
        dropped: the values of a set that may keep to it; nothing if none was found.
        seconds: that making these again takes in a step.
        runs: the numbers of the variables of nodes that run again.
        is_best: whether that is the least that the program knows of.
    """

    bound: float
    dropped: frozenset[Value] = frozenset()
    seconds: float = inf
    runs: frozenset[int] = frozenset()
    is_best: bool = False


def can_solve() -> bool:
    """Return whether what solves programs is installed."""
    return find_spec("scipy") is not None


def solve(
    groups: Sequence[Sequence[Reading]],
    limits: Sequence[int],
    refuted: Sequence[Iterable[frozenset[int]]] = (),
    gap: float = inf,
) -> list[Answer]:
    """Return for each group of local programs the least time within some bytes.

    Args:
        groups: local programs that share devices, in the order of the forward.
        limits: how many bytes, for each group.
        refuted: for each group, what ran again in answers that took more than that.
        gap: by what part the best that is known may take more than the least.

    Returns:
        The answers; nothing if there is no solver, if the programs are too large for it, if what
        is known is close to the least already, or if layers are made again whole.
    """
    is_whole = any(reading.part.is_whole for group in groups for reading in group)
    if is_whole or min(limits) <= 0 or not can_solve():
        return []
    programs = [_state(group, limit) for group, limit in zip(groups, limits, strict=True)]
    for program, some in zip(programs, refuted, strict=False):
        for runs in some:
            program.refute(runs)
    count = sum(program.count_whole() for program in programs)
    if count > LARGEST or (count > EXACT and gap <= CLOSE):
        return []
    answers = [program.solve() for program in programs]
    found = [answer for answer in answers if answer is not None]
    return found if len(found) == len(answers) else []


def _state(readings: Sequence[Reading], limit: int) -> _Program:
    """Return the program of local programs that share devices."""
    program = _Program(limit)
    before: Terms = {}
    for reading in readings:
        before = program.add(reading, before)
    return program


@dataclass(slots=True, eq=False)
class _Program(Rows):
    _flows: list[Variables] = field(default_factory=list)

    @property
    def _gap(self) -> float:
        return NEAR if self.count_whole() > EXACT else 0.0

    @property
    def _unit(self) -> float:
        return BUDGET / self.limit

    def add(self, reading: Reading, before: Terms) -> Terms:
        """Add a local program; return what it and those before it keep.

        Args:
            reading: of it.
            before: what those before it keep.
        """
        part, flow = reading.part, reading.flow
        if flow is None:
            return before
        own = self._add_flow(flow, part.microbatches)
        inside = {
            at: self._add_flow(body.block.flow, part.microbatches)
            for at, body in reading.bodies.items()
        }
        waiting = {
            at: self._add_waiting(own, variables, reading.bodies[at].stacks)
            for at, variables in inside.items()
        }
        kept: Terms = {}
        for number in range(len(own.kept)):
            kept |= own.list_kept(number)
        for terms in waiting.values():
            kept |= terms
        more = {name: (part.in_flight - 1) * size for name, size in kept.items()}
        beside = before | {name: size for name, size in more.items() if size}
        changes = list_changes(own, self)
        for at, variables in inside.items():
            put_span(changes, 0, at - 1, waiting[at])
            for number in range(len(variables.kept)):
                put_span(changes, at, at, variables.list_kept(number))
        alive = None
        around = flow.around[len(flow.nodes) :]
        for at, (_, taken) in enumerate(around):
            alive = self._add_moment(alive, changes[at])
            self._limit([alive], beside, taken)
            if at in inside:
                taken += reading.bodies[at].handed_on
                self._add_inside(inside[at], alive, beside, taken)
        total = before.copy()
        put(total, {name: part.in_flight * size for name, size in kept.items()})
        return total

    def refute(self, runs: frozenset[int]) -> None:
        """Say that a set takes too much: another node runs again, or one of these does not."""
        whole = (name for name, is_whole in enumerate(self.whole) if is_whole)
        signs = {name: -1.0 if name in runs else 1.0 for name in whole}
        self.require(signs, 1.0 - len(runs))

    def solve(self) -> Answer | None:
        """Return the answer of the program; None if it has none."""
        if not self.count_whole():
            return Answer(0.0, seconds=0.0)
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        scale = sum(map(abs, self.costs)) or 1.0
        places = [(row, name) for row, (terms, _, _) in enumerate(self.rows) for name in terms]
        sizes = [size for terms, _, _ in self.rows for size in terms.values()]
        rows, columns = np.array(places, np.int32).T
        shape = len(self.rows), len(self.costs)
        matrix = csr_array((sizes, (rows, columns)), shape=shape)
        low, high = np.array([(low, high) for _, low, high in self.rows]).T
        found = milp(
            np.array(self.costs) / scale,
            integrality=np.array(self.whole, int),
            bounds=Bounds(np.zeros(len(self.upper)), np.array(self.upper)),
            constraints=LinearConstraint(matrix, low, high),
            # What presolving leaves out, HiGHS may have to mend in its answer, and it prints so.
            options={"node_limit": NODES, "mip_rel_gap": self._gap, "presolve": False},
        )
        if found.mip_dual_bound is None:
            return None
        dual = float(found.mip_dual_bound)
        bound = dual * scale if dual > NEXT_TO_NOTHING else 0.0
        if found.x is None:
            return Answer(bound)
        return self._read(found.x, bound)

    def _read(self, x: np.ndarray, bound: float) -> Answer:
        runs = frozenset(
            name for name, is_whole in enumerate(self.whole) if is_whole and x[name] > 0.5
        )
        dropped: set[Value] = set()
        for variables in self._flows:
            flow = variables.flow
            again = {at for at, name in variables.runs.items() if name in runs}
            gone = [n for n in variables.again if flow.buffers[n].maker in again]
            dropped.update(flow.list_values(gone, range(len(flow.nodes))) if gone else ())
        seconds = max(float(np.dot(self.costs, x)), 0.0)
        return Answer(bound, frozenset(dropped), seconds, runs, self._gap == 0.0)

    # ---------------------------------------------------------------- variables and rows

    def _limit(self, alive: Iterable[int], beside: Terms, taken: int) -> None:
        """Say that what is alive fits into the budget beside other bytes, and what is taken."""
        scaled = {name: size * self._unit for name, size in beside.items()}
        self.require(dict.fromkeys(alive, 1.0) | scaled, -inf, BUDGET - taken * self._unit)

    def _add_moment(self, alive: int | None, changes: Terms) -> int:
        """Return the variable of what is alive at a moment, in parts of the budget."""
        now, scale = self.new(upper=inf), self._unit
        constant = changes.get(-1, 0.0) * scale
        terms = {name: -size * scale for name, size in changes.items() if name >= 0 and size}
        earlier = {} if alive is None else {alive: -1.0}
        self.require({now: 1.0} | earlier | terms, constant, constant)
        return now

    def _add_flow(self, flow: Flow, microbatches: int) -> Variables:
        """Add the variables of a flow, and what makes its buffers."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for at, read in enumerate(flow.late):
            for number in read:
                first.setdefault(number, at)
                last[number] = at
        kept = [self.new() for _ in flow.buffers]
        again = {n: self.new() for n, buffer in enumerate(flow.buffers) if not buffer.is_fixed}
        makers = sorted({flow.buffers[number].maker for number in again})
        runs = {at: self.new(flow.seconds[at] * microbatches, is_whole=True) for at in makers}
        one = self._add_twins(flow, runs, microbatches)
        readers: dict[int, list[int]] = {}
        for at in makers:
            for number in flow.reads[at]:
                readers.setdefault(number, []).append(at)
        for number, name in again.items():
            self.require({runs[flow.buffers[number].maker]: 1.0, name: -1.0}, 0.0)
        for at, name in runs.items():
            if first.keys().isdisjoint(flow.made[at]):  # it runs for others that do
                others = {runs[w]: 1.0 for n in flow.made[at] for w in readers.get(n, ())}
                self.require(others | {name: -1.0}, 0.0)
        for number, name in enumerate(kept):
            both = {name: 1.0} | ({again[number]: 1.0} if number in again else {})
            self.require(both, 1.0 if number in first else 0.0, 1.0)
            for at in readers.get(number, ()):
                self.require(both | {runs[at]: -1.0}, 0.0)
        self._add_spare(flow, kept, microbatches)
        found = Variables(flow, kept, again, runs, first, last, one, readers)
        self._flows.append(found)
        return found

    def _add_twins(
        self, flow: Flow, runs: Mapping[int, int], microbatches: int
    ) -> dict[int, tuple[Twin, int]]:
        """Add which nodes of the backward are left out as their twins run again; see `twins`."""
        found: dict[int, tuple[Twin, int]] = {}
        for at, twin in flow.twins.items():
            needed = [at, *(other for other in twin.others if flow.made[other])]
            if not runs.keys() >= set(needed):
                continue
            name = self.new(-flow.seconds[at] * microbatches)
            for other in needed:
                self.require({runs[other]: 1.0, name: -1.0}, 0.0)
            found |= dict.fromkeys(flow.made[at], (twin, name))
        return found

    def _add_spare(self, flow: Flow, kept: Sequence[int], microbatches: int) -> None:
        """Add which nodes the forward does not run any more, as it ran them for the backward."""
        names = {at: self.new(-flow.seconds[at] * microbatches) for at in flow.spare}
        makers = {number: at for at in flow.spare for number in flow.made[at]}
        for at, name in names.items():
            for number in flow.made[at]:
                self.require({name: 1.0, kept[number]: 1.0}, 0.0, 1.0)
            for number in flow.reads[at]:
                if number in makers:
                    self.require({name: 1.0, names[makers[number]]: -1.0}, 0.0)

    def _add_waiting(self, own: Variables, inside: Variables, stacks: Mapping[int, int]) -> Terms:
        """Return the bytes of the stacks of a loop that wait for the backward.

        These are all that it keeps, without stacks that it makes again as a whole.
        """
        found: Terms = {}
        for number in range(len(inside.kept)):
            ((name, size),) = inside.list_kept(number).items()
            again = own.again.get(stacks.get(number, -1))
            if again is not None:
                waits = self.new()
                self.require({waits: 1.0, again: 1.0, name: -1.0}, 0.0)
                name = waits
            found[name] = size
        return found

    def _add_inside(self, variables: Variables, around: int, beside: Terms, taken: int) -> None:
        """Limit what an iteration of a backward loop takes, where slices lie in the stacks."""
        flow = variables.flow
        changes: list[Terms] = [{} for _ in range(len(flow.late) + 1)]
        for number, name in variables.again.items():
            if number in variables.first:
                size = float(flow.buffers[number].bytes)
                put_span(changes, variables.first[number], variables.last[number], {name: size})
                put_twin(changes, variables, number)
        alive = None
        for at, (_, more) in enumerate(flow.around[len(flow.nodes) :]):
            alive = self._add_moment(alive, changes[at])
            self._limit([around, alive], beside, taken + more)


__all__ = ["Answer", "can_solve", "solve"]
