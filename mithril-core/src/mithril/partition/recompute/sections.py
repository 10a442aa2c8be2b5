"""Sections: the blocks of local programs, one after another, with what may be dropped in each.

A loop is a section of its own, whose drop sets are those of its body: the answer is the same in
every iteration, and what it keeps it keeps in all of them. Equal blocks are solved once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.cost.hardware import Hardware
from mithril.cost.liveness import Liveness
from mithril.ir import Node, Value
from mithril.partition.bucket_limits import count_moved
from mithril.partition.recompute.blocks import Block, cut_blocks, join_blocks
from mithril.partition.recompute.buffers import Flow, FlowReader, Prices, read_backward
from mithril.partition.recompute.drop_sets import (
    DropSet,
    add_held,
    find_bound,
    find_drop_sets,
    is_small,
    list_all_drop_sets,
    list_droppable,
    weigh,
)  # fmt: skip
from mithril.partition.recompute.loop_pairs import Iterations, LoopPair, find_pairs
from mithril.partition.recompute.residuals import split_phases
from mithril.partition.recompute.rewrite import list_in_time
from mithril.partition.recompute.twins import find_twins
from mithril.plan import Program

FEW = 4
"""Of blocks that are equal more often the convex hull is enough: their answers may differ."""
LONGEST = 8
"""How many blocks, at most, may be made again from what enters the first of them."""


@dataclass(frozen=True, slots=True, eq=False)
class LocalPart:
    """A local program, and how often what it keeps is there.

    Args:
        program: forward and backward.
        hardware: the profile that prices it, on its devices.
        devices: that run it; parts on the same ones share their memory.
        in_flight: for how many micro-batches its forward has run, at most, before their backward.
        microbatches: how many there are.
        kept: values that may not be dropped.
        is_whole: whether a block is made again whole, or not at all.
        layers: what is dropped if every layer is computed again.
    """

    program: Program
    hardware: Hardware
    devices: tuple[int, ...] = ()
    in_flight: int = 1
    microbatches: int = 1
    kept: frozenset[Value] = frozenset()
    is_whole: bool = False
    layers: frozenset[Value] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Pick:
    """One way to run a section, or several one after another.

    Args:
        kept: bytes that stay in memory from forward to backward.
        working: bytes at most while the section runs, without what earlier sections keep.
        seconds: that making things again takes in a step.
        block: what it is of.
        drop_set: what is dropped there.
        stacks: what is dropped besides, of a loop that runs again.
    """

    kept: int
    working: int
    seconds: float
    block: Block
    drop_set: DropSet
    stacks: Sequence[Value] = ()

    def list_values(self) -> list[Value]:
        """Return what is dropped."""
        within = range(self.block.start, self.block.end)
        return [*self.stacks, *self.block.flow.list_values(self.drop_set.dropped, within)]


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """A block with its drop sets.

    Args:
        block: the one; of a loop, its body.
        picks: one for each drop set; the first one keeps everything.
        longer: ways to run this section and so many after it, of which only what enters is kept.
        bound: returns for a price of memory, in seconds a byte, the least of seconds and price
            times bytes that are kept.
        least: bytes that are in memory at some moment, whatever is dropped, without what is kept.
        entry: the same when its part of the backward begins, besides what it keeps itself.
    """

    block: Block
    picks: Sequence[Pick]
    longer: Mapping[int, Pick]
    bound: Callable[[float], float]
    least: int
    entry: int


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """The body of a loop of the backward, with that of the forward whose stacks it takes.

    Args:
        block: both.
        handed_on: bytes that an iteration takes besides, with what the one before it has made.
        stacks: for buffers of the body that the forward stacks up, the buffers of the stacks.
    """

    block: Block
    handed_on: int
    stacks: Mapping[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A local program as it is read.

    Args:
        part: the one.
        flow: of its graph; None if nothing can be made again.
        bodies: of its loops, by their positions in the backward.
        sections: one after another.
        kept: bytes that stay in memory from forward to backward if everything is kept.
        peak: the most bytes at once then.
    """

    part: LocalPart
    flow: Flow | None
    bodies: Mapping[int, Body]
    sections: Sequence[Section]
    kept: int = 0
    peak: int = 0

    @property
    def has_all(self) -> bool:
        """Whether all sets that may be dropped have been looked at."""
        if self.flow is None:
            return True
        return not self.part.is_whole and not self.bodies and is_small(self.flow)


def read_part(part: LocalPart) -> Reading:
    """Return a local program with its sections."""
    return _Sections(part).read()


@dataclass(eq=False)
class _Sections:
    part: LocalPart
    _solved: dict[Hashable, tuple[Block, list[DropSet]]] = field(default_factory=dict)
    _joined: dict[Hashable, tuple[Block, DropSet]] = field(default_factory=dict)
    _bounds: dict[tuple[Hashable, float], float] = field(default_factory=dict)
    _bodies: dict[int, Body] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._iterations = Iterations(Liveness(self.part.hardware.execution))

    def read(self) -> Reading:
        graph = self.part.program.graph
        prices = Prices(self.part.program.mesh, self.part.hardware, count_moved(graph))
        early, late = split_phases(graph)
        pairs = {p.forward: p for p in find_pairs(early, late, prices, self.part.kept)}
        stacks = {v for node in pairs for v in node.outputs[len(node.op.carries) :]}
        fixed = set(graph.outputs.values()) | self._list_once(early)
        loops = {node: pair.count_again() for node, pair in pairs.items()}
        reader = FlowReader(graph, early, prices, stacks | fixed, fixed | self.part.kept, loops)
        backward = read_backward(graph, early, late, prices, [p.backward for p in pairs.values()])
        leaving = list(graph.outputs.values())
        twins = find_twins(early, late, lambda value: value, backward.made)
        flow = reader.read([list(node.inputs) for node in late], backward.around, leaving, twins)
        if not flow.nodes or not flow.late:
            return Reading(self.part, None, {}, [])
        self._places = {node: at for at, node in enumerate(late)}
        blocks = (
            cut_blocks(flow) if pairs or not is_small(flow) else [join_blocks(cut_blocks(flow))]
        )
        counts = Counter(block.key for block in blocks)
        found = []
        for at, block in enumerate(blocks):
            pair = pairs.get(flow.nodes[block.start])
            if pair is not None:
                found.append(self._make_loop(block, pair))
            else:
                longer = self._find_longer(blocks[at : at + LONGEST], pairs)
                found.append(self._make(block, counts[block.key] <= FEW, longer))
        return Reading(self.part, flow, self._bodies, found, *self._keep_all(flow, blocks, pairs))

    def _keep_all(
        self, flow: Flow, blocks: Sequence[Block], pairs: Mapping[Node, LoopPair]
    ) -> tuple[int, int]:
        """Return the bytes that keeping everything leaves for the backward, and takes at most."""
        whole = join_blocks(blocks)
        outside = weigh(whole, ())
        held, kept = add_held(outside.held, whole.around), outside.kept
        for at, node in enumerate(flow.nodes):
            if node not in pairs:
                continue
            pair, place = pairs[node], self._places[pairs[node].backward]
            inside, late = weigh(pair.block, ()), whole.end + place - whole.late_start
            held[at] += self._iterations.measure_forward(
                pair, inside.needed
            ) - self._iterations.measure_once(pair.forward)
            held[late] += self._bodies[place].handed_on + inside.working(pair.block.around)
            held[at : late + 1] = [size + inside.kept for size in held[at : late + 1]]
            kept += inside.kept
        more = kept * (self.part.in_flight - 1)
        return kept + more, max(held) + more

    def _list_once(self, early: Sequence[Node]) -> set[Value]:
        """Return what is there once for all micro-batches, whatever else is kept of each."""
        in_time = list_in_time(self.part.program)
        if in_time is None:
            return set()
        return {value for node in early for value in node.outputs if value not in in_time}

    # ---------------------------------------------------------------- blocks

    def _make(self, block: Block, more: bool, longer: Mapping[int, Pick]) -> Section:
        if block.key not in self._solved:
            self._solved[block.key] = block, self._list_drop_sets(block, more)
        solved, drop_sets = self._solved[block.key]
        picks = [self._pick(block, _move(drop_set, solved, block)) for drop_set in drop_sets]
        late = block.around[block.end - block.start :]
        entry = late[0][0] if late else 0
        return Section(block, picks, longer, self._make_bound(block), _find_least(block), entry)

    def _list_drop_sets(self, block: Block, more: bool) -> list[DropSet]:
        if self.part.is_whole:
            return [weigh(block, ()), weigh(block, list_droppable(block))]
        return list_all_drop_sets(block) or find_drop_sets(block, more)

    def _find_longer(
        self, blocks: Sequence[Block], pairs: Mapping[Node, LoopPair]
    ) -> dict[int, Pick]:
        """Return the ways to make blocks again from what enters the first, by their number."""
        found: dict[int, Pick] = {}
        for count in range(2, len(blocks) + 1):
            some = blocks[:count]
            if some[-1].flow.nodes[some[-1].start] in pairs:
                break
            joined = join_blocks(some)
            key = tuple(block.key for block in some), joined.late_end - joined.late_start
            if key not in self._joined:
                self._joined[key] = joined, weigh(joined, list_droppable(joined))
            solved, drop_set = self._joined[key]
            found[count] = self._pick(joined, _move(drop_set, solved, joined))
        return found

    def _pick(self, block: Block, drop_set: DropSet) -> Pick:
        more = drop_set.kept * (self.part.in_flight - 1)
        return Pick(
            drop_set.kept + more,
            drop_set.working(block.around) + more,
            drop_set.seconds * self.part.microbatches,
            block,
            drop_set,
        )

    def _make_bound(self, block: Block) -> Callable[[float], float]:
        part = self.part

        def of(price: float) -> float:
            key = block.key, price
            if key not in self._bounds:
                # What is kept is there for each micro-batch in flight, and made again for all.
                inner = price * part.in_flight / part.microbatches
                self._bounds[key] = find_bound(block, inner) * part.microbatches
            return self._bounds[key]

        return of

    # ---------------------------------------------------------------- loops

    def _make_loop(self, block: Block, pair: LoopPair) -> Section:
        """Return the section of a loop: what its node holds, and the drop sets of its body."""
        outside, inside = weigh(block, ()), pair.block
        place = self._places[pair.backward]
        at = block.end - block.start + place - block.late_start
        handed_on = self._iterations.measure(pair.backward, pair.backward.op.bodies[0])
        handed_on -= self._iterations.liveness.measure_body(
            pair.backward, pair.backward.op.bodies[0]
        ).peak
        self._bodies[place] = Body(inside, handed_on, _match_stacks(block, pair))
        picks = []
        for drop_set in self._list_drop_sets(inside, True):
            found = self._weigh_loop(block, pair, outside, at, drop_set, handed_on)
            picks += found if not self.part.is_whole else found[:1]
        bound, again = self._make_bound(inside), self._count_again(block)
        least = _find_least(block)
        least = max(least, block.around[at][1] + handed_on + _find_least(inside))
        return Section(inside, picks, {}, lambda price: min(bound(price), again), least, least)

    def _count_again(self, block: Block) -> float:
        """Return the seconds that running a loop twice takes longer in a step."""
        return block.flow.seconds[block.start] * self.part.microbatches

    def _weigh_loop(
        self, block: Block, pair: LoopPair, outside: DropSet, at: int, drop_set: DropSet,
        handed_on: int,
    ) -> list[Pick]:  # fmt: skip
        """Return what a drop set of its body makes of a loop: with its stacks kept, and made again.

        Stacks are made again by the whole loop, right before that of the backward takes them; what
        it starts from is kept for it.
        """
        inside, flow = pair.block, block.flow
        held, stacked = add_held(outside.held, block.around), _match_stacks(block, pair)
        first = self._iterations.measure_once(pair.forward)
        there = flow.handed_on.union(*flow.late)
        read = (n for n in flow.reads[block.start] if n not in there)
        start = sum(flow.buffers[n].bytes for n in read)
        working = handed_on + drop_set.working(inside.around)
        whole = self._iterations.measure_forward(pair, drop_set.needed)
        picks: list[Pick] = []
        for gone in (frozenset[int](), drop_set.needed.intersection(stacked)):
            if picks and not gone:
                break
            left = drop_set.needed - gone
            waiting = inside.flow.times * sum(inside.flow.buffers[n].bytes for n in left)
            forward = held[0] - first + self._iterations.measure_forward(pair, left)
            most = max(forward + waiting, *(size + waiting for size in held[1:]))
            most = max(most, held[at] + drop_set.kept + max(working, whole if gone else 0))
            more, again = (start, self._count_again(block)) if gone else (0, 0.0)
            seconds = drop_set.seconds * self.part.microbatches + again
            stacks = tuple(flow.buffers[stacked[n]].value for n in sorted(gone))
            kept = outside.kept + waiting + more
            beside = kept * (self.part.in_flight - 1)
            picks.append(
                Pick(kept + beside, most + more + beside, seconds, inside, drop_set, stacks)
            )
        return picks


def _move(drop_set: DropSet, of: Block, to: Block) -> DropSet:
    """Return the same drop set of an equal block."""
    if of is to:
        return drop_set
    dropped, needed = (
        frozenset(of.translate(numbers, to)) for numbers in (drop_set.dropped, drop_set.needed)
    )
    return replace(drop_set, dropped=dropped, needed=needed)


def _match_stacks(block: Block, pair: LoopPair) -> dict[int, int]:
    """Return for buffers of a loop's body that it stacks up the buffers of these stacks."""
    numbers = {buffer.value: n for n, buffer in enumerate(pair.block.flow.buffers)}
    made = ((block.flow.buffers[n].value, n) for n in block.buffers)
    return {
        numbers[pair.stacks[value]]: n
        for value, n in made
        if value in pair.stacks and pair.stacks[value] in numbers
    }


def _find_least(block: Block) -> int:
    """Return the bytes that some node of the backward needs at once, whatever is dropped."""
    flow, first = block.flow, block.end - block.start
    sizes = dict.fromkeys(range(block.late_start, block.late_end), 0)
    if not flow.count:
        sizes |= {at: sum(flow.buffers[n].bytes for n in read) for at, read in block.needed}
    late = (size + block.around[first + at - block.late_start][1] for at, size in sizes.items())
    return max(late, default=0)


__all__ = ["Body", "LocalPart", "Pick", "Reading", "Section", "read_part"]
