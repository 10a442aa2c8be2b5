"""Min-sum diffusion: costs are shifted between tables until the sum of their minima is high.

Costs may be shifted between tables that share a variable without a change of any sum. The sum of
the least entries of all tables is a lower bound. Going forward and backward through the variables,
each takes what its tables cost at least and hands it on in equal shares, which never lowers the
bound (Werner, "A linear programming approach to max-sum problem", 2007).

Models repeat, and what is shifted in one block may be shifted in all that are like it. Variables
are put in groups; two pairs of variables are alike if their costs are one array and their ends are
in the same groups, and have the same messages. Whatever the messages are, the bound is one, so
groups may be coarse: those of variables that look alike so many steps around (Weisfeiler and Leman,
"The reduction of a graph to canonical form", 1968). The first and last blocks then share groups
with others that have more around them; a group hands on what all of its variables can spare, so the
bound still never falls. It ends up lower than with a group for each variable, which goes on from
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mithril.sharding.eliminate import Table

HUGE = 1e3
"""What is forbidden costs so many times the sum of everything else."""

Ends = tuple[int, int]
"""Two variables, the one with the smaller number first."""
Messages = tuple[np.ndarray, np.ndarray]
"""What has been shifted from a pair of variables to each of them."""
End = tuple[int, int]
"""The number of an edge, and which of its ends it is."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Costs of single variables and of pairs of them; equal ones are one array.

    Args:
        constant: what all choices cost.
        own: of each variable.
        costs: of each pair, none of them infinite.
    """

    constant: float
    own: Sequence[np.ndarray]
    costs: Mapping[Ends, np.ndarray]


def find_pairs(domains: Sequence[int], tables: Sequence[Table]) -> Pairs:
    """Return tables as costs of variables and pairs.

    Args:
        domains: number of values of each variable.
        tables: over two variables at most.
    """
    finite = _Finite(tables)
    singles: list[list[np.ndarray]] = [[] for _ in domains]
    doubles: dict[Ends, list[np.ndarray]] = {}
    constant = 0.0
    for table in tables:
        if not table.variables:
            constant += float(finite.of(table.costs, is_turned=False))
        elif len(table.variables) == 1:
            singles[table.variables[0]].append(finite.of(table.costs, is_turned=False))
        else:
            a, b = table.variables
            costs = finite.of(table.costs, is_turned=a > b)
            doubles.setdefault((min(a, b), max(a, b)), []).append(costs)
    sums = _Sums()
    zeros = {size: np.zeros(size) for size in set(domains)}
    own = [sums.add([zeros[size], *some]) for size, some in zip(domains, singles, strict=True)]
    return Pairs(constant, own, {ends: sums.add(some) for ends, some in doubles.items()})


class _Finite:
    """Costs with what is forbidden being dear."""

    def __init__(self, tables: Sequence[Table]) -> None:
        tops = {}
        for table in tables:
            if id(table.costs) not in tops:
                known = table.costs[np.isfinite(table.costs)]
                tops[id(table.costs)] = float(np.abs(known).max(initial=0.0))
        self._huge = HUGE * max(sum(tops[id(table.costs)] for table in tables), 1.0)
        self._known: dict[tuple[int, bool], np.ndarray] = {}

    def of(self, costs: np.ndarray, *, is_turned: bool) -> np.ndarray:
        """Return costs, transposed or not."""
        if (id(costs), is_turned) not in self._known:
            turned = costs.T if is_turned else costs
            self._known[id(costs), is_turned] = np.where(np.isinf(turned), self._huge, turned)
        return self._known[id(costs), is_turned]


@dataclass(slots=True)
class _Sums:
    """Sums of arrays, each made once."""

    known: dict[tuple[int, ...], tuple[list[np.ndarray], np.ndarray]] = field(default_factory=dict)

    def add(self, arrays: list[np.ndarray]) -> np.ndarray:
        """Return the sum of arrays."""
        if len(arrays) == 1:
            return arrays[0]
        key = tuple(map(id, arrays))
        if key not in self.known:
            self.known[key] = arrays, np.sum(arrays, axis=0)
        return self.known[key][1]


def find_groups(pairs: Pairs, steps: int) -> list[int]:
    """Return the number of each variable's group: those that look alike so many steps around.

    Args:
        pairs: the costs.
        steps: so many; 0 compares only the costs of the variables themselves.
    """
    known: dict[object, int] = {}
    around: list[list[tuple[int, int, int]]] = [[] for _ in pairs.own]
    for (a, b), costs in pairs.costs.items():
        around[a].append((id(costs), 0, b))
        around[b].append((id(costs), 1, a))
    groups = [known.setdefault(id(own), len(known)) for own in pairs.own]
    for _ in range(steps):
        seen = [
            (own, tuple(sorted((costs, end, groups[other]) for costs, end, other in some)))
            for own, some in zip(groups, around, strict=True)
        ]
        groups = [known.setdefault(one, len(known)) for one in seen]
    return groups


@dataclass(slots=True, eq=False)
class _Edge:
    """Pairs that are alike.

    Args:
        groups: of the ends.
        costs: the first end in rows, and transposed.
        messages: what has been shifted to the ends.
        taken: what each end can take, where that is known.
        count: so many pairs.
    """

    groups: tuple[int, int]
    costs: tuple[np.ndarray, np.ndarray]
    messages: list[np.ndarray]
    taken: list[np.ndarray | None]
    count: int = 0

    def take(self, end: int) -> None:
        """Shift to an end all that can be."""
        found = self.taken[end]
        if found is None:
            other = 1 - end  # in rows: columns are compared faster than rows
            found = np.minimum.reduce(self.costs[other] - self.messages[other][:, None], axis=0)
        self.messages[end], self.taken[end] = found, found

    def rest(self) -> np.ndarray:
        """Return the costs without what has been shifted."""
        left: np.ndarray = self.costs[0] - self.messages[0][:, None]
        left -= self.messages[1]
        return left


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Variables of one group that have the same edges.

    Args:
        group: its number.
        own: costs of each of them.
        around: how often they are which end of which edge.
    """

    group: int
    own: np.ndarray
    around: Mapping[End, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """What a group does when its turn comes.

    Args:
        kinds: of its variables.
        ends: of the edges around them.
        later: those whose other end has its turn later.
        part: of what can be spared, for each of these.
    """

    kinds: Sequence[Kind]
    ends: Sequence[End]
    later: Sequence[End]
    part: float


class Diffusion:
    """Shifts costs between variables and pairs.

    Args:
        pairs: the costs.
        groups: of the variables.
        start: first messages of each pair; those of pairs that are alike are taken to be equal.
    """

    def __init__(
        self,
        pairs: Pairs,
        groups: Sequence[int],
        start: Mapping[Ends, Messages] | None = None,
    ) -> None:
        self._constant = pairs.constant
        self._edges: list[_Edge] = []
        self._edge_of: dict[Ends, int] = {}
        self._add_edges(pairs, groups, start)
        self.kinds = self._find_kinds(pairs, groups)
        self._counts = Counter(self.kinds)
        self._turns = self._plan_turns(pairs)

    def sweep(self) -> None:
        """Shift costs forward and backward through the variables."""
        for turns in self._turns:
            for turn in turns:
                self._shift(turn)

    def measure(self) -> tuple[float, dict[Kind, np.ndarray]]:
        """Return a bound of all sums, and for each value how much higher it is with that one."""
        bound, more = self._constant, dict[Kind, np.ndarray]()
        for kind, count in self._counts.items():
            total = self._add_up(kind)
            least = float(total.min())
            bound += count * least
            more[kind] = total - least
        rests: list[Messages] = []
        for edge in self._edges:
            rest = edge.rest()
            rows = rest.min(axis=1)
            least = float(rows.min())
            bound += edge.count * least
            rests.append((rows - least, rest.min(axis=0) - least))
        for kind in more:
            for (number, end), times in kind.around.items():
                more[kind] = more[kind] + times * rests[number][end]
        return bound, more

    def list_messages(self) -> dict[Ends, Messages]:
        """Return what has been shifted from each pair."""
        found = [(edge.messages[0], edge.messages[1]) for edge in self._edges]
        return {ends: found[number] for ends, number in self._edge_of.items()}

    def _add_edges(
        self, pairs: Pairs, groups: Sequence[int], start: Mapping[Ends, Messages] | None
    ) -> None:
        numbers: dict[tuple[int, int, int], int] = {}
        turned: dict[int, np.ndarray] = {}
        for (a, b), costs in pairs.costs.items():
            key = (id(costs), groups[a], groups[b])
            if key not in numbers:
                numbers[key] = len(self._edges)
                if id(costs) not in turned:
                    turned[id(costs)] = np.ascontiguousarray(costs.T)
                first = start[a, b] if start else tuple(np.zeros(size) for size in costs.shape)
                sides = (costs, turned[id(costs)])
                self._edges.append(_Edge((groups[a], groups[b]), sides, list(first), [None, None]))
            self._edge_of[a, b] = numbers[key]
            self._edges[numbers[key]].count += 1

    def _find_kinds(self, pairs: Pairs, groups: Sequence[int]) -> list[Kind]:
        """Return the kind of each variable."""
        around: list[list[End]] = [[] for _ in groups]
        for ends, number in self._edge_of.items():
            for end, variable in enumerate(ends):
                around[variable].append((number, end))
        known: dict[tuple[int, int, tuple[End, ...]], Kind] = {}
        found = []
        for group, own, some in zip(groups, pairs.own, around, strict=True):
            key = (group, id(own), tuple(sorted(some)))
            if key not in known:
                known[key] = Kind(group, own, Counter(some))
            found.append(known[key])
        return found

    def _plan_turns(self, pairs: Pairs) -> list[list[_Turn]]:
        """Return the turns of all groups forward, and backward."""
        places = [float(variable) for variable in range(len(self.kinds))]
        for a, b in pairs.costs:  # what comes of others stands behind the first of them
            places[a], places[b] = min(places[a], b + 0.5), min(places[b], a + 0.5)
        members: dict[int, dict[Kind, None]] = {}
        for variable in sorted(range(len(places)), key=places.__getitem__):
            kind = self.kinds[variable]
            members.setdefault(kind.group, {})[kind] = None
        ranks = {group: rank for rank, group in enumerate(members)}
        both = [
            [self._plan_turn(list(kinds), ranks, sign) for kinds in members.values()]
            for sign in (1, -1)
        ]
        return [both[0], both[1][::-1]]

    def _plan_turn(self, kinds: Sequence[Kind], ranks: Mapping[int, int], sign: int) -> _Turn:
        rank = ranks[kinds[0].group]

        def is_later(end: End) -> bool:
            return (ranks[self._edges[end[0]].groups[1 - end[1]]] - rank) * sign > 0

        ends = list(dict.fromkeys(end for kind in kinds for end in kind.around))
        most = 1
        for kind in kinds:
            later = sum(times for end, times in kind.around.items() if is_later(end))
            most = max(most, later, sum(kind.around.values()) - later)
        return _Turn(kinds, ends, [end for end in ends if is_later(end)], 1.0 / most)

    def _shift(self, turn: _Turn) -> None:
        """Shift to a group what its edges cost at least, and on to those of later groups."""
        for number, end in turn.ends:
            self._edges[number].take(end)
        if turn.later:
            spare: np.ndarray | None = None
            for kind in turn.kinds:
                total = self._add_up(kind)
                total -= total.min()
                spare = total if spare is None else np.minimum(spare, total)
            assert spare is not None, "a group has variables"
            spare *= turn.part
            for number, end in turn.later:
                edge = self._edges[number]
                edge.messages[end] = edge.messages[end] - spare
        for number, end in turn.ends:
            self._edges[number].taken[1 - end] = None

    def _add_up(self, kind: Kind) -> np.ndarray:
        total = kind.own.copy()
        for (number, end), times in kind.around.items():
            shifted = self._edges[number].messages[end]
            total += shifted if times == 1 else times * shifted
        return total
