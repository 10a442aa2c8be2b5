"""Choose, exactly, what every node splits and where every value lives.

Variables: one choice per node (a factor, a linear group or nothing for each mesh axis) and one home
sharding per value. The cost is the compute of the choices, plus the reshard from where a value is
produced to its home, once, plus the reshards from home to each consumer. It is minimised by
variable elimination (`eliminate`), which is exact; ties go to fewer collectives, then to the
earlier option.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mithril.cost import Hardware
from mithril.ir import Graph, Node, Phase, Rule, Value
from mithril.mesh import Mesh, Sharding
from mithril.sharding.candidates import Candidates, Constraints
from mithril.sharding.eliminate import Table, minimise
from mithril.sharding.reshard import PICOSECONDS, Resharder

FORBIDDEN = float("inf")
PRICE_UNIT = 64.0  # one picosecond; what lies below breaks ties
COLLECTIVE_TIE = 1.0  # fewer collectives first
MEMORY_TIE = 0.5  # then the smaller copy of a value that may lie anywhere
LINEAR_TIE = 0.25  # then reduce early: the plan names the layer that made the partial sum


Seat = tuple[Value, Phase]
"""A value in a phase; `forward` stands for both unless the value is kept at rest."""


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a node: per mesh axis a factor or a linear group, and what follows from it.

    Args:
        factors: mesh axis to split factor.
        linear: mesh axis to linear group of operands.
        operands: sharding each operand is needed in.
        results: sharding each result is produced in.
    """

    factors: Mapping[str, str]
    linear: Mapping[str, tuple[int, ...]]
    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]

    def axes_of(self) -> dict[str, tuple[str, ...]]:
        """Return the mesh axes that split each split factor, major first."""
        axes: dict[str, tuple[str, ...]] = {}
        for axis, factor in self.factors.items():
            axes[factor] = (*axes.get(factor, ()), axis)
        return axes


@dataclass(frozen=True, slots=True)
class Choice:
    """The decision.

    Args:
        rules: the sharding rule of each node.
        options: the option each node takes.
        homes: the sharding each value lives in; one kept at rest has a home in each phase.
        price: predicted picoseconds of what could be chosen.
        is_exact: whether it is proved to be the cheapest.
    """

    rules: Mapping[Node, Rule]
    options: Mapping[Node, Option]
    homes: Mapping[Seat, Sharding]
    price: float
    is_exact: bool

    def home(self, value: Value, phase: Phase = Phase.forward) -> Sharding | None:
        """Return where a value lives in a phase, None when nobody uses it."""
        later = self.homes.get((value, phase)) if phase == Phase.backward else None
        return later or self.homes.get((value, Phase.forward))

    def sizes(self, node: Node) -> Mapping[str, int]:
        """Return the global size of each factor of a node."""
        return self.rules[node].sizes


def choose(
    graph: Graph,
    given: Constraints,
    candidates: Candidates,
    resharder: Resharder,
    hardware: Hardware,
) -> Choice:
    """Return the cheapest choice; see the module's text."""
    objective = Objective.of(graph, given, candidates, resharder, hardware)
    picked, price, is_exact = minimise(objective.domains, objective.tables)
    chosen = {
        node: options[picked.get(objective.variable[node], 0)]
        for node, options in objective.options.items()
    }
    homes = {
        seat: homes[picked.get(objective.variable[seat], 0)]
        for seat, homes in objective.homes.items()
    }
    return Choice(candidates.rules, chosen, homes, price / PRICE_UNIT, is_exact)


# ------------------------------------------------------------------ options of a node


def node_options(node: Node, mesh: Mesh, candidates: Candidates, pads: bool) -> tuple[Option, ...]:
    """Return the admitted options of a node, one per combination of choices on the mesh axes."""
    rule = candidates.rules[node]
    axes = [axis.name for axis in mesh.axes if axis.size > 1]
    per_axis = [_axis_choices(node, axis, candidates) for axis in axes]
    found = [
        option
        for picks in itertools.product(*per_axis)
        if (option := _option(rule, mesh, dict(zip(axes, picks, strict=True)), pads))
    ]
    if found:
        return tuple(found)
    # The axes exclude one another here (too small a dimension, say): let each stand aside.
    relaxed = [(*choices, None) for choices in per_axis]
    return tuple(
        option
        for picks in itertools.product(*relaxed)
        if (option := _option(rule, mesh, dict(zip(axes, picks, strict=True)), pads))
    )


AxisChoice = str | tuple[int, ...] | None


def _axis_choices(node: Node, axis: str, candidates: Candidates) -> tuple[AxisChoice, ...]:
    forced = candidates.forced.get(node, {}).get(axis)
    if forced:
        return forced
    factors = candidates.factors[node].get(axis, ())
    able = candidates.partial[axis]
    groups = tuple(
        group
        for group in candidates.rules[node].linear
        if any(node.inputs[i] in able for i in group)
    )
    # A single candidate is the user's intent: running the node twice is then no alternative.
    nothing: tuple[AxisChoice, ...] = () if len(factors) == 1 else (None,)
    return (*factors, *groups, *nothing)


def _option(rule: Rule, mesh: Mesh, picks: Mapping[str, AxisChoice], pads: bool) -> Option | None:
    """Return what the picks imply, or None when they do not fit the rule's layout."""
    factors = {axis: pick for axis, pick in picks.items() if isinstance(pick, str)}
    linear = {axis: pick for axis, pick in picks.items() if isinstance(pick, tuple)}
    axes_of = Option(factors, linear, (), ()).axes_of()
    if any(
        not _may_cut(rule, factor, mesh.product(axes), pads) for factor, axes in axes_of.items()
    ):
        return None
    operands = []
    for index, dims in enumerate(rule.operands):
        pending = tuple((axis, "sum") for axis, group in linear.items() if index in group)
        operands.append(_sharding(rule, mesh, dims, axes_of, pending))
    results = []
    for dims in rule.results:
        inside = {factor for dim in dims for factor in dim}
        left = {axis: rule.reduction(f) for axis, f in factors.items() if f not in inside}
        pending = tuple(
            (axis, left.get(axis, "sum")) for axis in picks if axis in left or axis in linear
        )
        results.append(_sharding(rule, mesh, dims, axes_of, pending))
    if None in operands or None in results:
        return None
    return Option(factors, linear, tuple(filter(None, operands)), tuple(filter(None, results)))


def _may_cut(rule: Rule, factor: str, parts: int, pads: bool) -> bool:
    """Whether a factor may be cut: evenly, or with padding where it stands alone and is larger."""
    size = rule.sizes[factor]
    return size % parts == 0 or (pads and size > parts and rule.is_alone(factor))


def _sharding(
    rule: Rule,
    mesh: Mesh,
    dims: Sequence[tuple[str, ...]],
    axes_of: Mapping[str, tuple[str, ...]],
    pending: tuple[tuple[str, str], ...],
) -> Sharding | None:
    split: list[tuple[str, ...]] = []
    for dim in dims:
        axes: tuple[str, ...] = ()
        complete = True
        for factor in dim:
            own = axes_of.get(factor, ())
            if own and not complete:
                return None  # a minor factor may be split only inside a completely split major
            axes += own
            complete = complete and mesh.product(own) == rule.sizes[factor]
        split.append(axes)
    return Sharding(mesh, tuple(split), pending)


# ------------------------------------------------------------------ the problem as tables


class Objective:
    """What is minimised: variables with their domains, and cost tables over them."""

    @staticmethod
    def of(
        graph: Graph,
        given: Constraints,
        candidates: Candidates,
        resharder: Resharder,
        hardware: Hardware,
    ) -> Objective:
        """Return the objective of a graph."""
        options = {
            node: node_options(node, given.mesh, candidates, given.pads) for node in graph.nodes
        }
        return Objective(graph, given, options, resharder, hardware)

    def __init__(
        self,
        graph: Graph,
        given: Constraints,
        options: Mapping[Node, Sequence[Option]],
        resharder: Resharder,
        hardware: Hardware,
    ) -> None:
        self._given = given
        self.options = options
        self._resharder = resharder
        self.homes: dict[Seat, tuple[Sharding, ...]] = {}
        self.variable: dict[Node | Seat, int] = {}
        self.domains: list[int] = []
        self.tables: list[Table] = []
        for node in graph.nodes:
            self._add(node, len(options[node]))
            self._price_node(node, hardware)
        promised: dict[Value, list[Sharding]] = {value: [] for value in graph.outputs.values()}
        for name, sharding in given.outputs.items():
            promised[graph.outputs[name]].append(sharding)
        uses = _uses(graph)
        producers = graph.producers()
        for value in graph.values():
            for phase, users in self._phases(value, uses.get(value, [])):
                if users or value in promised or value in given.free:
                    self._price_value((value, phase), producers.get(value), users, promised)
        for name, source in given.tied.items():
            self._tie(graph.outputs[name], source)

    def _phases(
        self, value: Value, uses: list[tuple[Node, int]]
    ) -> list[tuple[Phase, list[tuple[Node, int]]]]:
        """Return the uses of a value by phase; one that is kept at rest is fetched in each."""
        if value not in self._given.at_rest:
            return [(Phase.forward, uses)]
        return [(phase, [use for use in uses if use[0].phase == phase]) for phase in Phase]

    def _add(self, item: Node | Seat, size: int) -> None:
        self.variable[item] = len(self.domains)
        self.domains.append(size)

    def _price_node(self, node: Node, hardware: Hardware) -> None:
        options = self.options[node]
        if len(options) == 1:
            return
        work = node.op.cost([v.type for v in node.inputs], [v.type for v in node.outputs])
        prices = []
        for option in options:
            mesh = option.results[0].mesh
            seconds = work.flops / hardware.flops / mesh.product(option.factors)
            tie = LINEAR_TIE * len(option.linear)
            prices.append(round(seconds * PICOSECONDS) * PRICE_UNIT + tie)
        self.tables.append(Table((self.variable[node],), np.array(prices)))

    def _price_value(
        self,
        seat: Seat,
        producer: Node | None,
        uses: list[tuple[Node, int]],
        promised: Mapping[Value, Sequence[Sharding]],
    ) -> None:
        value = seat[0]
        produced = self._produced(value, producer)
        needs = [[option.operands[i] for option in self.options[node]] for node, i in uses]
        goals = promised.get(value, ())
        homes = self._home_candidates(value, produced, needs, goals)
        self.homes[seat] = homes
        self._add(seat, len(homes))
        self._connect(producer, seat, self._arrival(value, produced, homes))
        if value in promised:
            leave = [[self._leave(home, goals, value) for home in homes]]
            self._connect(None, seat, np.array(leave))
        fixed: set[Sharding] = set()
        for (node, _), need in zip(uses, needs, strict=True):
            if len(set(need)) == 1:
                if need[0] in fixed:
                    continue  # equal reshards of a value are shared
                fixed.add(need[0])
            self._connect(node, seat, self._departure(value, need, homes))

    def _produced(self, value: Value, producer: Node | None) -> list[Sharding]:
        if value in self._given.free:
            return [Sharding.replicated(self._given.inputs[value].mesh, value.type.rank)]
        if producer is None:
            return [self._given.inputs[value]]
        position = producer.outputs.index(value)
        return [option.results[position] for option in self.options[producer]]

    def _home_candidates(
        self,
        value: Value,
        produced: list[Sharding],
        needs: list[list[Sharding]],
        goals: Sequence[Sharding],
    ) -> tuple[Sharding, ...]:
        if value in self._given.homes:
            return (self._given.homes[value],)
        needed = itertools.chain.from_iterable(needs)
        reduced = (sharding.reduced() for sharding in produced)
        found = dict.fromkeys((*produced, *reduced, *needed, *goals))
        if value in self._given.free:  # an array is never a partial sum
            found = dict.fromkeys(sharding.reduced() for sharding in found)
        return tuple(found)

    def _arrival(
        self, value: Value, produced: Sequence[Sharding], homes: Sequence[Sharding]
    ) -> np.ndarray:
        if value in self._given.free:  # arrives where it is needed; the smaller the better
            return np.array([[MEMORY_TIE / h.mesh.product(h.split_axes) for h in homes]])
        return np.array([[self._move(value, p, h) for h in homes] for p in produced])

    def _departure(
        self, value: Value, needs: Sequence[Sharding], homes: Sequence[Sharding]
    ) -> np.ndarray:
        return np.array([[self._use(value, h, need) for h in homes] for need in needs])

    def _use(self, value: Value, home: Sharding, need: Sharding) -> float:
        """Once a value has been reduced nobody uses its partial form: reduce on the way home."""
        if not set(home.partial) <= set(need.partial):
            return FORBIDDEN
        return self._move(value, home, need)

    def _leave(self, home: Sharding, goals: Sequence[Sharding], value: Value) -> float:
        if home.partial:
            return FORBIDDEN
        return sum(self._move(value, home, goal) for goal in dict.fromkeys(goals))

    def _move(self, value: Value, start: Sharding, goal: Sharding) -> float:
        if start == goal:
            return 0.0
        for axis, reduction in goal.partial:
            held = start.reduction_of(axis)
            if held != reduction and not (held is None and reduction == "sum"):
                return FORBIDDEN  # only a sum can be made partial
        path = self._resharder.path(start, goal, value.type)
        collectives = sum(move.is_collective for move in path.moves)
        return path.price * PRICE_UNIT + collectives * COLLECTIVE_TIE

    def _tie(self, value: Value, source: Value) -> None:
        """Let an output leave in the home of an input."""
        here, there = (value, Phase.forward), (source, Phase.forward)
        prices = np.array(
            [
                [self._leave(h, [goal], value) for h in self.homes[here]]
                for goal in self.homes[there]
            ]
        )
        rows = () if len(prices) == 1 else (self.variable[there],)
        columns = () if prices.shape[1] == 1 else (self.variable[here],)
        self.tables.append(Table(rows + columns, prices.squeeze()))

    def _connect(self, node: Node | None, seat: Seat, prices: np.ndarray) -> None:
        """Add a table over (node choice, home), without variables that have one possibility."""
        rows = () if node is None or len(prices) == 1 else (self.variable[node],)
        columns = () if prices.shape[1] == 1 else (self.variable[seat],)
        self.tables.append(Table(rows + columns, prices.squeeze()))


def _uses(graph: Graph) -> dict[Value, list[tuple[Node, int]]]:
    uses: dict[Value, list[tuple[Node, int]]] = {}
    for node in graph.nodes:
        for index, value in enumerate(node.inputs):
            uses.setdefault(value, []).append((node, index))
    return uses
