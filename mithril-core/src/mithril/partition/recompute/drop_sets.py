"""Sets of a block's buffers that may be dropped, with what each saves and costs.

For a price of memory, in seconds a byte, the best set is a minimum cut. A buffer is needed (n) or
not, and made again (r) or not; a node runs again (R) or not. Keeping costs bytes times the price if
n and not r, running again costs seconds if R; r implies R, and R implies n of all that the node
reads. All of that is submodular, so that one cut finds the optimum. Prices between those at which
the answer changes give the lower convex hull of bytes and seconds; sets that differ from one of
them in one buffer, with what it is made of, fill the gaps in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mithril.partition.recompute.blocks import Block
from mithril.partition.recompute.buffers import Around, Flow
from mithril.partition.recompute.min_cut import INFINITE, Network
from mithril.partition.recompute.twins import Twin

UNIT = 1 << 50
"""In how many parts a second is counted, so that flows are exact."""
ROUNDS = 2
MOST = 64
"""How many sets of a block are compared with those that differ in one buffer."""
SMALL = 14
"""Of a block with as many buffers that may be dropped all sets are looked at."""


@dataclass(frozen=True, slots=True, eq=False)
class DropSet:
    """A set of buffers that are dropped.

    Args:
        dropped: those that are needed and not kept.
        needed: those that are kept.
        kept: bytes that stay in memory from forward to backward.
        seconds: that making the others again takes.
        held: bytes of the block's own in memory while things are made again for each of its nodes,
            and while that runs: nodes of the forward first, then those of the backward.
    """

    dropped: frozenset[int]
    needed: frozenset[int]
    kept: int
    seconds: float
    held: tuple[Around, ...]

    def working(self, around: Sequence[Around]) -> int:
        """Return the most bytes at once, with what the backward has of its own."""
        return max(add_held(self.held, around), default=0)


def add_held(held: Sequence[Around], around: Sequence[Around]) -> list[int]:
    """Return the most bytes at once for each node, of a block and of the backward together."""
    return [max(a + c, b + d) for (a, b), (c, d) in zip(held, around, strict=True)]


def find_drop_sets(block: Block, more: bool = True) -> list[DropSet]:
    """Return what may be dropped in a block: from nothing, which comes first, to all there is.

    Args:
        block: the one.
        more: whether to fill the gaps of the convex hull.
    """
    found = {drop_set.dropped: drop_set for drop_set in _find_hull(block)}
    for _ in range(ROUNDS if more else 0):
        ordered = sorted(found.values(), key=lambda drop_set: drop_set.seconds)
        for drop_set in ordered[:: max(len(ordered) // MOST, 1)]:
            for dropped in _list_neighbours(block, drop_set):
                if dropped not in found:
                    found[dropped] = weigh(block, dropped)
        found = {drop_set.dropped: drop_set for drop_set in _select(found.values(), block)}
    return sorted(found.values(), key=lambda drop_set: (drop_set.seconds, -drop_set.kept))


def is_small(flow: Flow) -> bool:
    """Return whether all sets of what a forward makes can be looked at, one by one."""
    return sum(not buffer.is_fixed for buffer in flow.buffers) <= SMALL


def list_all_drop_sets(block: Block) -> list[DropSet]:
    """Return all that may be dropped in a small block, each set once; nothing for a larger one."""
    droppable = sorted(list_droppable(block), reverse=True)
    if len(droppable) > SMALL:
        return []
    found = [weigh(block, dropped) for dropped in _list_sets(block, droppable)]
    return sorted(_select(found, block), key=lambda drop_set: (drop_set.seconds, -drop_set.kept))


def _list_sets(block: Block, droppable: Sequence[int]) -> Iterable[frozenset[int]]:
    """Yield the sets of buffers all of which are needed, by the backward or to make others again.

    Args:
        block: the one.
        droppable: its buffers, the last one that is made first.
    """
    waiting: list[tuple[int, frozenset[int]]] = [(0, frozenset())]
    while waiting:
        at, dropped = waiting.pop()
        if at == len(droppable):
            yield dropped
            continue
        waiting.append((at + 1, dropped))
        if droppable[at] in _find_needed(block, dropped):
            waiting.append((at + 1, dropped | {droppable[at]}))


def weigh(block: Block, dropped: Collection[int]) -> DropSet:
    """Return a set of buffers to drop, weighed; those that nobody needs do not count.

    What is dropped is made again directly before the first node of the backward that needs it, and
    stays until the last one.
    """
    return _Weighing(block, frozenset(dropped)).weigh()


def list_droppable(block: Block) -> frozenset[int]:
    """Return the buffers that need not be kept."""
    flow = block.flow
    return frozenset(
        n for n in block.buffers if not flow.buffers[n].is_fixed and n not in block.exits
    )


def find_bound(block: Block, price: float) -> float:
    """Return the least of seconds and price times bytes, if all that comes before is there.

    Args:
        block: the one; nothing says that its exits are kept.
        price: of memory, in seconds a byte.
    """
    return _cut(block, price, frozenset(), block.flow.least)[0]


# ------------------------------------------------------------------ the convex hull


def _find_hull(block: Block) -> list[DropSet]:
    most = weigh(block, ())
    least = weigh(block, _cut(block, None, block.exits, block.flow.likely)[1])
    found = {drop_set.dropped: drop_set for drop_set in (most, least)}
    waiting = [(most, least)] if least.kept < most.kept else []
    while waiting:
        left, right = waiting.pop()
        saved, cost = left.kept - right.kept, right.seconds - left.seconds
        if saved <= 0 or cost <= 0:
            continue
        drop_set = weigh(block, _cut(block, cost / saved, block.exits, block.flow.likely)[1])
        if drop_set.dropped not in found:
            found[drop_set.dropped] = drop_set
            waiting += [(left, drop_set), (drop_set, right)]
    return list(found.values())


def _cut(
    block: Block, price: float | None, exits: frozenset[int], seconds: Sequence[float]
) -> tuple[float, frozenset[int]]:
    """Return the cost of the cheapest set to drop, and that set.

    Args:
        block: the one.
        price: of memory, in seconds a byte; None for more than any time.
        exits: buffers that are kept in any case.
        seconds: that running each node of the flow again costs.
    """
    flow, numbers = block.flow, {n: i for i, n in enumerate(block.buffers)}
    droppable = list_droppable(block)
    count = len(numbers)
    network = Network(2 * count + block.end - block.start)
    rate = float(UNIT) if price is None else price * UNIT
    for number, at in numbers.items():
        buffer = flow.buffers[number]
        network.link(at, count + at, round(rate * buffer.bytes * flow.times))
        if number in block.residuals or number in exits:
            network.link_from_source(at)
        if number in droppable or (number in block.exits - exits and not buffer.is_fixed):
            network.link(count + at, 2 * count + buffer.maker - block.start, INFINITE)
        else:
            network.link_to_sink(count + at)
    for at in range(block.start, block.end):
        vertex = 2 * count + at - block.start
        network.link_to_sink(vertex, round(seconds[at] * (UNIT if price is not None else 1)))
        for number in flow.reads[at]:
            if number in numbers:
                network.link(vertex, numbers[number], INFINITE)
    cost, side = network.cut()
    dropped = frozenset(n for n, at in numbers.items() if at in side and count + at in side)
    return cost / UNIT, dropped


# ------------------------------------------------------------------ between its points


def _list_neighbours(block: Block, drop_set: DropSet) -> Iterable[frozenset[int]]:
    """Yield sets that differ in one buffer, and in what that is made of."""
    droppable = list_droppable(block)
    for number in drop_set.dropped:
        yield drop_set.dropped - {number}
    kept = _find_needed(block, drop_set.dropped) - drop_set.dropped
    for number in (kept & droppable) - drop_set.dropped:
        yield drop_set.dropped | {number}
        yield drop_set.dropped | _find_cone(block, number, kept | block.exits)


def _find_needed(block: Block, dropped: Collection[int]) -> frozenset[int]:
    """Return the buffers that the backward needs, for itself or to make others again."""
    flow, own = block.flow, set(block.buffers)
    waiting, found = [*block.residuals, *block.exits], set[int]()
    while waiting:
        number = waiting.pop()
        if number in found:
            continue
        found.add(number)
        if number in dropped:
            waiting += [n for n in flow.reads[flow.buffers[number].maker] if n in own]
    return frozenset(found)


def _find_cone(block: Block, number: int, kept: Collection[int]) -> frozenset[int]:
    """Return a buffer and all that it is made of, back to what is kept."""
    flow, own = block.flow, set(block.buffers)
    waiting, found = [number], set[int]()
    while waiting:
        at = waiting.pop()
        if at not in found and not flow.buffers[at].is_fixed:
            found.add(at)
            reads = flow.reads[flow.buffers[at].maker]
            waiting += [n for n in reads if n in own and n not in kept]
    return frozenset(found)


def _select(drop_sets: Iterable[DropSet], block: Block) -> list[DropSet]:
    """Return the sets of which no other is better in bytes, bytes at work, and seconds."""
    found: list[tuple[int, DropSet]] = []
    for drop_set in sorted(drop_sets, key=lambda drop_set: (drop_set.seconds, drop_set.kept)):
        most = drop_set.working(block.around)
        if all(other.kept > drop_set.kept or at_work > most for at_work, other in found):
            found.append((most, drop_set))
    return [drop_set for _, drop_set in found]


# ------------------------------------------------------------------ what a set saves and costs


class _Weighing:
    """Goes through the nodes of a block, and those that run again."""

    def __init__(self, block: Block, dropped: frozenset[int]) -> None:
        self._block, self._flow = block, block.flow
        self._own = set(block.buffers)
        self._dropped = _find_needed(block, dropped) & dropped & list_droppable(block)
        self._steps = list(range(block.end - block.start))  # of each moment, the place of its node
        self._workspaces: dict[int, int] = {}  # of what runs again, by the moment
        self._births: dict[int, int] = {}  # of what is made again, the moment
        self._deaths: dict[int, int] = {}
        self._kept: dict[int, int] = {}  # until when what is kept is needed
        self._made: set[int] = set()  # nodes that run again
        self._met: dict[int, Twin] = {}  # twins that are one with what is made again
        self._spared: list[tuple[int, int]] = []  # moments, and bytes of twins that begin or end

    def weigh(self) -> DropSet:
        block, flow = self._block, self._flow
        first = block.end - block.start
        read_at = dict(block.needed)
        for position in range(block.late_start, block.late_end):
            place = first + position - block.late_start
            read = read_at.get(position, ())
            self._make(read, place)
            self._steps.append(place)
            self._note(read)
            for at, twin in block.twins.get(position, ()):
                self._meet(at, twin)
            for at in block.ends.get(position, ()):
                self._part(at)
        needed = frozenset(self._kept) | block.exits
        kept = flow.times * sum(flow.buffers[n].bytes for n in needed)
        return DropSet(self._dropped, needed, kept, self._count_seconds(needed), self._find_held())

    def _make(self, read: Sequence[int], place: int) -> None:
        """Run again what makes some buffers, unless they are there."""
        waiting, nodes = list(read), set[int]()
        while waiting:
            number = waiting.pop()
            if number in self._dropped and number not in self._births:
                at = self._flow.buffers[number].maker
                if at not in nodes:
                    nodes.add(at)
                    waiting += self._flow.reads[at]
        for at in sorted(nodes):
            now = len(self._steps)
            self._steps.append(place)
            self._made.add(at)
            self._workspaces[now] = self._flow.workspaces[at]
            for number in self._flow.made[at]:
                self._births.setdefault(number, now)
                self._deaths.setdefault(number, now)
            self._note(self._flow.reads[at])

    def _meet(self, at: int, twin: Twin) -> None:
        """Leave a twin of a node out, or let it make what is dropped, if nothing has so far."""
        flow, now = self._flow, len(self._steps) - 1
        dropped = self._dropped.intersection(flow.made[at])
        if not dropped or not all(self._is_again(other) for other in twin.others):
            return
        self._met[at] = twin
        for number in dropped.difference(self._births):
            self._births[number] = self._deaths[number] = now
        self._spared.append((now, twin.bytes))

    def _part(self, at: int) -> None:
        """Take note that what needs the result of a twin ends at this moment."""
        if at in self._met:
            self._note(self._flow.made[at])
            self._spared.append((len(self._steps), -self._met[at].bytes))

    def _is_again(self, at: int) -> bool:
        made = self._flow.made[at]
        return not made or not self._dropped.isdisjoint(made)

    def _count_seconds(self, needed: frozenset[int]) -> float:
        """Return what running nodes again takes, without what need not run any more."""
        flow, block = self._flow, self._block
        seconds = sum(flow.seconds[at] for at in self._made if at not in self._met)
        stays = set(needed - self._dropped)
        for at in block.spare:
            if stays.isdisjoint(flow.made[at]):
                seconds -= flow.seconds[at]
            else:
                stays.update(flow.reads[at])
        return seconds

    def _note(self, read: Sequence[int]) -> None:
        """Take note that buffers are needed at this moment."""
        now = len(self._steps) - 1
        for number in read:
            if number in self._dropped:
                self._deaths[number] = now
            elif number in self._own:
                self._kept[number] = now

    def _find_held(self) -> tuple[Around, ...]:
        """Return the most bytes of the block's own while each of its nodes runs.

        In the body of a loop that is what is made again: slices are in the stacks.
        """
        block, flow = self._block, self._flow
        first, end = block.end - block.start, len(self._steps)
        changes = [0] * (end + 1)
        for number in () if flow.count else block.buffers:
            size, maker = flow.buffers[number].bytes, flow.buffers[number].maker
            birth = max(maker - block.start, 0)
            last = min(max(flow.last_reads[number], maker), block.end - 1) - block.start
            if number in self._kept or number in block.exits:
                last = max(self._kept.get(number, 0), first - 1)
            changes[birth] += size
            changes[max(last, birth) + 1] -= size
        for number, birth in self._births.items():
            changes[birth] += flow.buffers[number].bytes
            changes[self._deaths[number] + 1] -= flow.buffers[number].bytes
        for moment, size in self._spared:
            changes[moment] -= size
        count, alive = first + block.late_end - block.late_start, 0
        before, held = [0] * count, [0] * count
        for now, (place, change) in enumerate(zip(self._steps, changes, strict=False)):
            alive += change
            if now in self._workspaces:
                before[place] = max(before[place], alive + self._workspaces[now])
            else:
                held[place] = alive
        return tuple(zip(before, held, strict=True))


__all__ = [
    "DropSet",
    "add_held",
    "find_bound",
    "find_drop_sets",
    "is_small",
    "list_all_drop_sets",
    "list_droppable",
    "weigh",
]
