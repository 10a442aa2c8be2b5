"""What is minimised: variables with their domains, and cost tables over them.

Variables are the option o(n) of every node n, and the home h(v) of every value v: the sharding it
lies in between its maker and its users. An option makes v in the sharding p(v, o), and needs it in
q(v, o). With `move` the price of the cheapest reshard and t how often a loop around runs, the cost
is the sum of

    t * work(n, o(n))                       of every node n
    t * move(p(v, o(maker of v)) -> h(v))   of every value v that is made: it goes home once
    t * move(h(v) -> q(v, o(n)))            of every use of v by a node n; equal moves count once
    t * move(r(v) -> h(v))                  of every v whose resting place r(v) is searched for
    move(h(v) -> promised(v))               of every output that must leave in a given sharding
    t * move(h(v) -> h(w))                  of every v that becomes w at the border of a loop

A home makes tables of two variables of what would otherwise be one of the maker and all users, and
is why a value that many need alike is moved once. Each term is one table, and `eliminate` minimises
their sum. Work is what a device takes by the roofline model, and the collectives that an op issues
itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mithril.ir import Graph, Node, Phase, Rule, Value
from mithril.ir.rewrite import regions
from mithril.mesh import MICRO, Sharding
from mithril.sharding.candidates import Candidates
from mithril.sharding.constraints import Constraints
from mithril.sharding.eliminate import Table
from mithril.sharding.move_prices import FORBIDDEN, PRICE_UNIT, MovePrices
from mithril.sharding.move_terms import MoveTerm
from mithril.sharding.option import NodeOptions, Option
from mithril.sharding.regions import Link, add_leading_dim, drop_leading_dim, links, split_slice
from mithril.sharding.reshard import PICOSECONDS
from mithril.sharding.resting import find_resting
from mithril.sharding.search import FULLY_SHARDED, MIXED
from mithril.sharding.trial import exchange_seconds, price_work
from mithril.sharding.unawaited import find_unawaited

# Below the unit of prices, and behind COLLECTIVE_TIE of `move_prices`:
MEMORY_TIE = 0.5  # then the smaller copy of a value that may lie anywhere
LINEAR_TIE = 0.25  # then reduce early: the plan names the layer that made the partial sum

LARGE = 64 * 64
"""The entries of a table above which homes are left out by which nothing is gained."""

ValueUse = tuple[Value, Phase]
"""A value in a phase; `forward` stands for both unless the value is kept at rest."""
Use = tuple[Node, int]
"""An operand of a node."""
Item = Node | ValueUse | Value
"""What is chosen: an option, a home, or where a parameter rests."""


class Objective:
    """The choice of a graph as a sum of tables.

    Args:
        graph: the global graph.
        given: the shardings that are given.
        candidates: what may be split.
        prices: of moves; the hardware of its resharder prices the work.
        space: of what is searched for.
    """

    def __init__(
        self,
        graph: Graph,
        given: Constraints,
        candidates: Candidates,
        prices: MovePrices,
        space: str = MIXED,
    ) -> None:
        self.rests = find_resting(graph, given, space)
        self.options: dict[Node, tuple[Option, ...]] = {}
        self.homes: dict[ValueUse, tuple[Sharding, ...]] = {}
        self.variable: dict[Item, int] = {}
        self.domains: list[int] = []
        self.node_tables: list[Table] = []
        self._terms: list[MoveTerm] = []
        self.given = given
        self.candidates = candidates
        self._moves, self.resharder = prices, prices.resharder
        self._node_options = NodeOptions(given.mesh, candidates, given.pads, prices.options)
        self._times: dict[Node, int] = {}
        self._node_prices, self._lists = prices.work, prices.lists
        self._links = list(links(graph))
        self._joined = {value_use for link in self._links for value_use in self._ends(link)}
        self._arrives = {link.target for link in self._links}
        self._promised = _find_output_shardings(graph, given)
        self._space = space
        self._followed = {  # gradients, as a rule, with their parameters
            graph.outputs[name]: graph.input(layout.follows)
            for name, layout in given.outputs.items()
            if layout.follows is not None
        }
        self._resting = {value for value, layout in given.promises(graph) if layout.rests}
        parts = list(regions(graph))
        self._parts = parts
        for value, rests in self.rests.items():
            self._add_rest(value, rests)
        for part in parts:
            for node in part.graph.nodes:
                if not node.op.bodies:
                    self._add_node(node, part.times)
        uses = [_uses(part.graph, candidates.rules) for part in parts]
        for part, used in zip(parts, uses, strict=True):
            self._collect_homes(part.graph, used)
        self._share_homes()
        for part, used in zip(parts, uses, strict=True):
            self._price_values(part.graph, used, part.times)
        for link in self._links:
            self._price_link(link)
        for name, layout in given.outputs.items():
            if layout.follows is not None:
                self._tie(graph.outputs[name], graph.input(layout.follows))

    def list_tables(self, hidden: float = 0.0) -> list[Table]:
        """Return what is summed: the work of nodes, then the moves of values.

        Args:
            hidden: the part of the seconds of moves that nobody waits for, which is left out.
        """
        return [*self.node_tables, *self.list_moves(hidden)]

    def list_moves(self, hidden: float = 0.0) -> list[Table]:
        """Return what the moves of values cost, without a part of those that nobody waits for."""
        idle = find_unawaited(self._parts, self._links, self.rests) if hidden else frozenset()
        return [term.tabulate(self._moves, idle, hidden) for term in self._terms]

    def list_issued(self) -> list[Table]:
        """Return the seconds of what nodes exchange themselves, which is part of their work."""
        found = []
        for node, options in self.options.items():
            rule = self.candidates.rules[node]
            if rule.special and len(options) > 1:
                seconds = [exchange_seconds(node, rule, o, self.resharder) for o in options]
                prices = np.round(np.array(seconds) * self._times[node] * PICOSECONDS) * PRICE_UNIT
                found.append(Table((self.variable[node],), prices))
        return found

    # -------------------------------------------------------------- nodes

    def _add_node(self, node: Node, times: int) -> None:
        options = self.options[node] = self._node_options.of(node)
        self._times[node] = times
        self._add(node, len(options))
        if len(options) == 1 and self.given.search is None:
            return  # a search tells what everything costs, and not what can be chosen
        if (id(options), times) not in self._node_prices:  # equal nodes share their options
            self._node_prices[id(options), times] = self._price_options(node, options, times)
        prices = self._node_prices[id(options), times]
        self.node_tables.append(Table((self.variable[node],), prices))

    def _price_options(self, node: Node, options: Sequence[Option], times: int) -> np.ndarray:
        work_seconds, prices = price_work(node, self.candidates.rules[node], self.resharder), []
        for option in options:
            seconds = times * work_seconds(option)
            tie = LINEAR_TIE * len(option.linear)
            is_out = math.isinf(seconds)
            price = FORBIDDEN if is_out else round(seconds * PICOSECONDS) * PRICE_UNIT + tie
            prices.append(price)
        return np.array(prices)

    def _add_rest(self, value: Value, rests: Sequence[Sharding]) -> None:
        self._add(value, len(rests))
        sizes = np.array([[MEMORY_TIE / s.mesh.product(s.split_axes) for s in rests]])
        self._relate(None, value, sizes, 1, value)

    def _add(self, item: Item, size: int) -> None:
        self.variable[item] = len(self.domains)
        self.domains.append(size)

    # -------------------------------------------------------------- where values may live

    def _collect_homes(self, graph: Graph, uses: Mapping[Value, list[Use]]) -> None:
        producers = graph.producers()
        for value in graph.values():
            for phase, users in self._phases(value, uses.get(value, [])):
                if users or self._has_home(value):
                    produced = self._list_produced(value, producers.get(value))
                    needs = [self._needs(use) for use in users]
                    found = self._home_candidates(value, produced, needs)
                    is_passed_on = (
                        len(produced) == len(users) == 1
                        and not produced[0].partial  # which is reduced on the way home
                        and produced[0] in found
                        and self._is_alone(value)
                    )
                    # From where it lies to its one user no other home is on a shorter way.
                    is_large = is_passed_on and len(found) * len(needs[0]) > LARGE
                    self.homes[value, phase] = produced if is_large else found
                elif (value, phase) in self._joined:
                    produced = self._list_produced(value, producers.get(value))
                    self.homes[value, phase] = self._home_candidates(value, produced, ())

    def _is_alone(self, value: Value) -> bool:
        """Whether nothing but its maker and its users cares how a value lies."""
        is_bound = self._promised.get(value) or (value, Phase.forward) in self._joined
        given = self.given.of(value)
        is_said = given.home is not None or given.is_free or self._is_kept(value)
        return not (is_bound or is_said or value in self._followed)

    def _has_home(self, value: Value) -> bool:
        """Whether a value has a home though no op uses it."""
        is_free = self.given.of(value).is_free and value not in self.rests
        return value in self._promised or is_free

    def _is_kept(self, value: Value) -> bool:
        """Whether a value lives at rest, and is fetched in each phase."""
        return value in self.rests or self.given.of(value).rests is not None

    def _phases(self, value: Value, uses: list[Use]) -> list[tuple[Phase, list[Use]]]:
        """Return the uses of a value by phase; one that is kept at rest is fetched in each."""
        if not self._is_kept(value):
            return [(Phase.forward, uses)]
        return [(phase, [use for use in uses if use[0].phase == phase]) for phase in Phase]

    def _needs(self, use: Use) -> tuple[Sharding, ...]:
        node, position = use
        return self._lists.of_operand(self.options[node], position)

    def _list_produced(self, value: Value, producer: Node | None) -> tuple[Sharding, ...]:
        if value in self.rests:
            return self.rests[value]
        if self.given.of(value).is_free:
            return self._lists.join((Sharding.replicated(self.given.mesh, value.type.rank),))
        if value in self._arrives:
            return ()
        if producer is None:
            arrival = self.given.of(value).arrival(self.given.mesh, value.type.rank)
            return self._lists.join((arrival,))
        return self._lists.of_result(self.options[producer], producer.outputs.index(value))

    def _home_candidates(
        self, value: Value, produced: tuple[Sharding, ...], needs: Sequence[tuple[Sharding, ...]]
    ) -> tuple[Sharding, ...]:
        given = self.given.of(value)
        if given.home is not None:
            return (given.home,)
        goals = self._lists.join((*self._promised.get(value, ()), *self._list_rests(value)))
        found = self._lists.list_homes(produced, needs, goals)
        if given.is_free:  # an array is never a partial sum, and exists for all micro-batches
            wished = filter(None, [given.computed])
            whole = (s.drop_partial() for s in (*found, *wished) if MICRO not in s.split_axes)
            found = self._lists.join(dict.fromkeys(whole))
        return self.given.list_admitted(value, found)

    def _list_rests(self, value: Value) -> tuple[Sharding, ...]:
        """Return where a gradient may be brought at once that its parameter rests in.

        Only where parameters rest split in any case: elsewhere it costs more than it seems, as what
        goes to different places does not travel together.
        """
        source = self._followed.get(value) if self._space == FULLY_SHARDED else None
        return () if source is None else self.rests.get(source, ())

    def _share_homes(self) -> None:
        """Let values on both sides of a loop's border live alike."""
        fixed = {v for v, given in self.given.layouts.items() if given.home or given.is_free}
        for link in self._links:
            fixed |= self._fix(link)
        size = -1
        # What may be a home on one side may be one on the other; through nested loops and carries
        # that goes on until no list grows. The lists are finite, so it ends.
        while (now := sum(map(len, self.homes.values()))) > size:
            size = now
            for link in self._links:
                ends = (link.source, link.target)
                there, here = (self._value_uses(value) for value in ends)
                outwards = [s for value_use in there for s in self.homes[value_use]]
                inwards = [s for value_use in here for s in self.homes[value_use]]
                if link.target not in fixed:
                    self._offer(here, _layouts_after(outwards, link.shift()))
                if link.source not in fixed:
                    self._offer(there, _layouts_after(inwards, -link.shift()))
        for value_use, homes in self.homes.items():
            if not homes:
                self.homes[value_use] = (
                    Sharding.replicated(self.given.mesh, value_use[0].type.rank),
                )

    def _fix(self, link: Link) -> set[Value]:
        """Keep what lives at rest there: it is fetched, and given back, slice by slice."""
        resting = self.given.of(link.source).resting or self._find_said_rest(link.source)
        if link.slices and resting is not None:
            self.homes[link.source, link.phase] = (resting,)
            resting_slice = split_slice(resting, link.source.type, self.given.pads)
            self.homes[link.target, Phase.forward] = (resting_slice,)
            return {link.source, link.target}
        followed = self._followed.get(link.target)
        goal = self.given.gradients.get(link.target) or self._find_said_rest(followed)
        if link.target in self._resting and len(set(self._promised[link.target])) == 1:
            goal = self._promised[link.target][0]
        if link.stacks and goal is not None:
            resting_slice = split_slice(goal, link.target.type, self.given.pads)
            self.homes[link.target, Phase.forward] = (goal,)
            self.homes[link.source, Phase.forward] = (resting_slice,)
            return {link.source, link.target}
        return set()

    def _find_said_rest(self, value: Value | None) -> Sharding | None:
        """Return where a parameter rests in a search by whose axes it has no choice."""
        search, rests = self.given.search, self.rests.get(value, ()) if value else ()
        is_said = search is not None and search.rest_axes is not None and len(rests) == 1
        return rests[0] if is_said else None

    def _value_uses(self, value: Value) -> list[ValueUse]:
        return [(value, phase) for phase in Phase if (value, phase) in self.homes]

    def _offer(self, value_uses: Iterable[ValueUse], more: Iterable[Sharding]) -> None:
        for value_use in value_uses:
            homes = dict.fromkeys((*self.homes[value_use], *more))
            self.homes[value_use] = self._lists.join(homes)

    # -------------------------------------------------------------- prices of values

    def _price_values(self, graph: Graph, uses: Mapping[Value, list[Use]], times: int) -> None:
        producers = graph.producers()
        for value in graph.values():
            for phase, users in self._phases(value, uses.get(value, [])):
                if (value, phase) in self.homes:
                    self._price_value((value, phase), producers.get(value), users, times)

    def _price_value(
        self, value_use: ValueUse, producer: Node | None, uses: list[Use], times: int
    ) -> None:
        value = value_use[0]
        homes = self.homes[value_use]
        self._add(value_use, len(homes))
        if value in self.rests:
            prices = self._moves.tabulate(value.type, self.rests[value], homes)
            self._relate(value, value_use, prices, 1, value)
        elif value not in self._arrives:
            produced = self._list_produced(value, producer)
            is_kept = not uses and self._is_alone(value)
            prices = self._arrival(value, produced, homes, is_kept=is_kept)
            self._relate(producer, value_use, prices, times, value)
        goals = self._promised.get(value)
        if goals is not None:
            leaving = self._lists.join(dict.fromkeys(goals))
            leave = self._moves.leave(value.type, homes, leaving)[None]
            self._relate(None, value_use, leave, 1, value)
        fixed: set[Sharding] = set()
        for use in uses:
            need = self._needs(use)
            if self._lists.is_single(need):
                if need[0] in fixed:
                    continue  # equal reshards of a value are shared
                fixed.add(need[0])
            prices = self._moves.tabulate_uses(value.type, homes, need)
            self._relate(use[0], value_use, prices, times, value, is_turned=True)

    def _arrival(
        self,
        value: Value,
        produced: tuple[Sharding, ...],
        homes: tuple[Sharding, ...],
        *,
        is_kept: bool,
    ) -> np.ndarray:
        if self.given.of(value).is_free:  # arrives where it is needed; the smaller the better
            return np.array([[MEMORY_TIE / h.mesh.product(h.split_axes) for h in homes]])
        if is_kept and len(produced) * len(homes) > LARGE:
            return self._moves.tabulate_kept(value.type, produced, homes)
        return self._moves.tabulate(value.type, produced, homes)

    # -------------------------------------------------------------- prices of links

    def _ends(self, link: Link) -> tuple[ValueUse, ValueUse]:
        there = link.phase if self._is_kept(link.source) else Phase.forward
        return (link.source, there), (link.target, Phase.forward)

    def _price_link(self, link: Link) -> None:
        there, here = self._ends(link)
        prices = self._cross(link, self.homes[there], self.homes[here])
        self._relate(there, here, prices, link.times, link.target)

    def _cross(
        self, link: Link, before: tuple[Sharding, ...], after: tuple[Sharding, ...]
    ) -> np.ndarray:
        if link.stacks:  # what leaves a loop may still be partial there, and is reduced once
            return self._moves.tabulate(link.target.type, self._lists.stack(before), after)
        if link.slices:
            stacked = self._lists.stack(after)
            return self._moves.tabulate_uses(link.source.type, before, stacked)
        if link.leaves:
            return self._moves.tabulate(link.source.type, before, after)
        return self._moves.tabulate_uses(link.source.type, before, after)

    def _tie(self, value: Value, source: Value) -> None:
        """Let an output leave in the home of an input: a gradient as its parameter lies.

        That home is chosen, too, so this is a table over both and no promise.
        """
        if value is source:
            return  # an input that leaves as it came
        here = (value, Phase.forward)
        there: Item = source if source in self.rests else (source, Phase.forward)
        goals = self.rests.get(source) or self.homes[source, Phase.forward]
        prices = self._moves.tabulate_exits(value.type, self.homes[here], goals)
        self._relate(there, here, prices, 1, value, is_turned=True)

    def _relate(
        self,
        one: Item | None,
        other: Item,
        prices: np.ndarray,
        times: int,
        value: Value,
        *,
        is_turned: bool = False,
    ) -> None:
        """Add moves of a value, without variables that have one possibility."""
        first, second = prices.shape[::-1] if is_turned else prices.shape
        rows = () if one is None or first == 1 else (self.variable[one],)
        columns = () if second == 1 else (self.variable[other],)
        self._terms.append(MoveTerm(rows + columns, prices, times, value, is_turned))


def _find_output_shardings(graph: Graph, given: Constraints) -> dict[Value, list[Sharding]]:
    """Return the outputs, with the shardings they must leave in."""
    promised: dict[Value, list[Sharding]] = {value: [] for value in graph.outputs.values()}
    for value, layout in given.promises(graph):
        if layout.leaves is not None:
            promised[value].append(layout.leaves)
    return promised


def _uses(graph: Graph, rules: Mapping[Node, Rule]) -> dict[Value, list[Use]]:
    """Return the operands each value is, without those whose layout does not matter."""
    return {
        value: [use for use in uses if use[0] in rules and use[1] not in rules[use[0]].ignored]
        for value, uses in graph.uses().items()
    }


def _layouts_after(shardings: Iterable[Sharding], shift: int) -> list[Sharding]:
    """Return shardings as said on the other side of a border, where they can be."""
    if shift > 0:
        return [add_leading_dim(sharding) for sharding in shardings]
    if shift < 0:
        return [drop_leading_dim(sharding) for sharding in shardings if not sharding.dims[0]]
    return list(shardings)
