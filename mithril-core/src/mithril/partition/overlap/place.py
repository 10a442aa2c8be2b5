"""Places the collectives of a program: where each starts, and where it is waited for.

Each step is kept only if the program is predicted to take less time with it: `defer_uncritical` has
what nothing but a result waits for be done last, `advance` starts collectives one block ahead, and
`postpone` puts work behind those that cannot start earlier. Then what was moved becomes a start and
a wait right before the first use of the results. A collective that was not moved stays as it is: it
starts where it stands, and is waited for where it is first used. What is scattered keeps its
operands in memory until it is waited for; so that is done two blocks later, if it is predicted to
have ended by then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.cost import Hardware
from mithril.cost.hidden import Hiding, find_hiding
from mithril.cost.kernels import OpCosts, find_kernels
from mithril.ir import Graph, Node, Phase
from mithril.ir.rewrite import map_bodies
from mithril.ops.collective import ReduceScatter, collective_of
from mithril.partition.overlap.asked import BUCKET, NONE, Overlap
from mithril.partition.overlap.bucket import bucket_blocks
from mithril.partition.overlap.defer import defer_uncritical
from mithril.partition.overlap.describe import say_hidden
from mithril.partition.overlap.postpone import postpone
from mithril.partition.overlap.starts import advance
from mithril.partition.overlap.stretches import find_stretches
from mithril.partition.overlap.waits import place_waits, wait_at_once
from mithril.plan import Program

AHEAD = (2, 3, 4)
"""After so many blocks what is scattered is waited for: the first that costs no time."""
SLACK = 1e-6
"""The part of a program's time that a wait may cost."""


def place_collectives(
    program: Program,
    hardware: Hardware,
    asked: Overlap,
    costs: OpCosts,
    room: Sequence[int] | None = None,
) -> Program:
    """Return a program that computes the same with its collectives beside what computes.

    Each collective says in its cause how much of it is hidden, and behind what.

    Args:
        program: a local one.
        hardware: the profile that says what takes how long.
        asked: the strategy.
        costs: what is known of the costs of ops.
        room: for each node of the program the bytes that may be in memory besides what is there
            while it runs; None for any number. With it, loops stay as they are.
    """
    if asked.strategy == NONE:
        waiting = replace(program, graph=wait_at_once(program.graph))
        return _Trial.of(waiting, hardware, costs).tell_hidden().program
    best = _Trial.of(program, hardware, costs)
    if not best.hiding.taken:
        return program
    placing = _Placing(hardware, costs, is_forced=asked.strategy == BUCKET)
    if room is None:
        best = placing.defer(best)
    best = placing.advance(best, room)
    if room is None:
        best = placing.postpone(best)
    return placing.wait(best.tell_hidden())


def keep_collectives(program: Program, hardware: Hardware, costs: OpCosts) -> Program:
    """Return a program with its collectives where they are; each says how much of it is hidden.

    Args:
        program: a local one.
        hardware: the profile that says what takes how long.
        costs: what is known of the costs of ops.
    """
    return _Trial.of(program, hardware, costs).tell_hidden().program


@dataclass(frozen=True, slots=True, eq=False)
class _Trial:
    """A program with what of its communication is hidden, and the collectives that were moved."""

    program: Program
    hiding: Hiding
    moved: frozenset[Node] = frozenset()

    @staticmethod
    def of(
        program: Program, hardware: Hardware, costs: OpCosts, moved: Collection[Node] = ()
    ) -> _Trial:
        """Return a program, measured."""
        return _Trial(program, find_hiding(program, hardware, costs), frozenset(moved))

    def tell_hidden(self) -> _Trial:
        """Return it with collectives that say how much of each is hidden."""
        told: dict[Node, Node] = {}
        graph = say_hidden(self.program.graph, self.hiding, told)
        moved = frozenset(told[node] for node in self.moved)
        return replace(self, program=replace(self.program, graph=graph), moved=moved)


@dataclass(frozen=True, slots=True)
class _Placing:
    """The steps of placing.

    Args:
        hardware: the profile.
        costs: of ops.
        is_forced: whether starts are moved, and travel together, whatever that is to bring.
    """

    hardware: Hardware
    costs: OpCosts
    is_forced: bool

    def defer(self, before: _Trial) -> _Trial:
        """Have what only a result waits for be done last."""
        graph = defer_uncritical(before.program.graph)
        if graph.nodes == before.program.graph.nodes:
            return before
        after = self._measure(before, graph, ())
        return after if after.hiding.seconds < before.hiding.seconds else before

    def advance(self, before: _Trial, room: Sequence[int] | None) -> _Trial:
        """Start collectives one block ahead."""
        moved: set[Node] = set()

        def change(graph: Graph, is_body: bool = True) -> Graph:
            own = None if room is None or is_body else room
            if room is not None and is_body:
                return graph
            nodes = tuple(map_bodies(node, change) for node in graph.nodes)
            found, starts = advance(Graph(graph.inputs, nodes, graph.outputs), before.hiding, own)
            moved.update(starts)
            return found

        graph = change(before.program.graph, is_body=False)
        if self.is_forced:
            graph, started = bucket_blocks(graph, moved, before.program.mesh, self.hardware)
            return self._measure(before, graph, started)
        if not moved:
            return before
        after = self._measure(before, graph, moved)
        return after if after.hiding.seconds < before.hiding.seconds else before

    def postpone(self, before: _Trial) -> _Trial:
        """Put work behind collectives."""
        is_changed = False

        def change(graph: Graph) -> Graph:
            nonlocal is_changed
            found = postpone(graph, before.hiding, self._list_seconds(graph))
            is_changed = is_changed or found.nodes != graph.nodes
            nodes = tuple(map_bodies(node, change) for node in found.nodes)
            return Graph(graph.inputs, nodes, graph.outputs)

        graph = change(before.program.graph)
        if not is_changed:
            return before
        after = self._measure(before, graph, before.moved)
        return after if after.hiding.seconds < before.hiding.seconds else before

    def wait(self, before: _Trial) -> Program:
        """Make starts and waits of what was moved, and of what is waited for early."""
        limit = (1 + SLACK) * before.hiding.seconds
        for ahead in AHEAD:
            until = dict(_list_early(before.program.graph, ahead))
            if not until:
                break
            after = _with_waits(before, until)
            if find_hiding(after, self.hardware, self.costs).seconds <= limit:
                return after
        return _with_waits(before, {}) if before.moved else before.program

    def _measure(self, before: _Trial, graph: Graph, moved: Collection[Node]) -> _Trial:
        program = replace(before.program, graph=graph)
        return _Trial.of(program, self.hardware, self.costs, moved)

    def _list_seconds(self, graph: Graph) -> dict[Node, float]:
        kernels = find_kernels(graph, self.hardware.execution, self.costs)
        return {node: kernel.seconds(self.hardware) for node, kernel in kernels.items()}


def _with_waits(trial: _Trial, until: Mapping[Node, Node]) -> Program:
    def change(graph: Graph) -> Graph:
        made = place_waits(graph, trial.moved, until)
        nodes = tuple(map_bodies(node, change) for node in made.nodes)
        return Graph(graph.inputs, nodes, graph.outputs)

    return replace(trial.program, graph=change(trial.program.graph))


def _list_early(graph: Graph, ahead: int) -> Iterator[tuple[Node, Node]]:
    """Yield what is scattered, and the node that begins the stretch so many later, if unused."""
    stretches, uses = find_stretches(graph), graph.uses()
    positions = {node: position for position, node in enumerate(graph.nodes)}
    for position, node in enumerate(graph.nodes):
        number = stretches.of[position] + ahead
        if not _keeps_more(node) or number >= len(stretches.starts):
            continue
        used = (positions[user] for value in node.outputs for user, _ in uses.get(value, ()))
        place = stretches.starts[number]
        if place < min(used, default=len(graph.nodes)):
            yield node, graph.nodes[place]


def _keeps_more(node: Node) -> bool:
    """Whether a collective has more in memory while it is on its way than what it makes."""
    return isinstance(collective_of(node.op), ReduceScatter) and node.phase != Phase.update


__all__ = ["keep_collectives", "place_collectives"]
