"""Has collectives start earlier: one block ahead of their use, if their operands are there.

A collective whose time nothing hides is issued where the block before the one that first uses its
result begins to compute, or as soon after that as its operands allow. What only brings a parameter
into its form (a cast, a view) goes with it. The same parameter is not gathered again before the
last use of what was gathered first, since two of it would be in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mithril.cost.hidden import Hiding
from mithril.ir import Graph, Node, Phase, Value
from mithril.ops.collective import collective_of
from mithril.ops.control import After
from mithril.partition.overlap.stretches import Stretches, find_stretches
from mithril.partition.sources import is_form, walk_back

LEAST_EXPOSED = 1e-3
"""The part of a collective's time that has to be exposed for it to be worth a move."""


def advance(
    graph: Graph, hiding: Hiding, room: Sequence[int] | None = None
) -> tuple[Graph, frozenset[Node]]:
    """Return a graph in which collectives stand where they are to start, and which were moved.

    Args:
        graph: a local one.
        hiding: what of its communication is hidden now.
        room: for each node the bytes that may be in memory besides what is there while it runs;
            None for any number.
    """
    finder = _Finder(graph, list(room) if room is not None else None)
    moved: dict[int, list[Node]] = {}
    taken: set[Node] = set()
    starts: set[Node] = set()
    for node in graph.nodes:
        found = finder.find(node) if _may_move(node, hiding) else None
        if found is not None:
            place, chain = found
            moved.setdefault(place, []).extend(n for n in (*chain, node) if n not in taken)
            taken.update((*chain, node))
            starts.add(node)
        finder.note(node)
    nodes: list[Node] = []
    for position, node in enumerate(graph.nodes):
        nodes += moved.get(position, ())
        if node not in taken:
            nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs), frozenset(starts)


def _may_move(node: Node, hiding: Hiding) -> bool:
    """Whether a collective has exposed time, and is no part of an update, which ends a step."""
    if collective_of(node.op) is None or node.phase == Phase.update:
        return False
    return hiding.find_exposed(node) > LEAST_EXPOSED * hiding.taken[node]


@dataclass(slots=True)
class _Finder:
    """Finds out where collectives of a graph may start.

    Args:
        graph: a local one.
        room: as of `advance`; what is given to one is no longer there for the next.
    """

    graph: Graph
    room: list[int] | None
    _stretches: Stretches = field(init=False)
    _positions: dict[Node, int] = field(init=False)
    _makers: dict[Value, Node] = field(init=False)
    _uses: dict[Value, list[tuple[Node, int]]] = field(init=False)
    _held: dict[object, int] = field(default_factory=dict)
    _placed: dict[Node, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._makers, self._uses = self.graph.producers(), self.graph.uses()
        self._stretches = find_stretches(self.graph)
        self._positions = {node: position for position, node in enumerate(self.graph.nodes)}

    def find(self, node: Node) -> tuple[int, list[Node]] | None:
        """Return the position before which a collective may start, and what goes with it.

        None where it cannot start before where it stands.
        """
        own = self._positions[node]
        stretch = self._stretches.of[self._find_first_use(node)]
        earliest = self._stretches.find_start(stretch - 1)
        earliest = max(earliest, self._held.get(self._describe(node), -1) + 1)
        if earliest >= own:
            return None
        ready, chain = self._find_ready(node, earliest)
        place = self._find_room(max(earliest, ready), own, node)
        if place >= own:
            return None
        along = [maker for maker in chain if self._positions[maker] >= place]
        self._placed |= dict.fromkeys(along, place)
        return place, sorted(along, key=self._positions.__getitem__)

    def note(self, node: Node) -> None:
        """Remember until when what a collective brings is used."""
        if collective_of(node.op) is not None:
            key = self._describe(node)
            self._held[key] = max(self._held.get(key, -1), self._find_last_use(node))

    def _find_first_use(self, node: Node) -> int:
        return min(self._list_uses(node), default=len(self.graph.nodes) - 1)

    def _find_last_use(self, node: Node) -> int:
        return max(self._list_uses(node), default=-1)

    def _list_uses(self, node: Node) -> Iterator[int]:
        users = (self._uses.get(value, ()) for value in node.outputs)
        return (self._positions[user] for found in users for user, _ in found)

    def _describe(self, node: Node) -> object:
        """Return what a collective brings: of which value of the program, and how."""
        return node.op, tuple(self._find_root(value) for value in node.inputs)

    def _find_root(self, value: Value) -> Value:
        for maker in walk_back(value, self._makers):
            value = maker.inputs[0] if is_form(maker) else value
        return value

    def _find_ready(self, node: Node, earliest: int) -> tuple[int, list[Node]]:
        """Return where the operands of a collective are there, and what then goes with it."""
        ready, chain = earliest, dict[Node, None]()
        for value in node.inputs:
            for maker in walk_back(value, self._makers):
                if self._positions[maker] < earliest:
                    break
                if maker in self._placed:
                    ready = max(ready, self._placed[maker])
                    break
                if not is_form(maker):
                    ready = max(ready, self._positions[maker] + 1)
                    break
                is_gate = isinstance(maker.op, After)
                if is_gate and (dependency := self._makers.get(maker.inputs[1])) is not None:
                    ready = max(ready, self._positions[dependency] + 1)
                chain[maker] = None
        return ready, list(chain)

    def _find_room(self, earliest: int, own: int, node: Node) -> int:
        """Return the first position from which on there is room for the results until their use."""
        if self.room is None:
            return earliest
        size, place = sum(value.type.nbytes for value in node.outputs), own
        while place > earliest and self.room[place - 1] >= size:
            place -= 1
        for position in range(place, own):
            self.room[position] -= size
        return place


__all__ = ["advance"]
