"""Buffers: what the forward of a graph leaves in memory for its backward, with bytes and prices.

A value that an engine never puts into memory, and a view of another one, is no buffer: whoever
reads it reads the buffers below, its *sources*. A buffer that is dropped is made again by the node
that made it, from the sources of that node's operands; the node has a price, which is what its
kernel, or its collective, takes on the target. Some buffers are never dropped: what iterations of
a loop start from, what leaves the program, and the results of loops, whose bodies are read by
themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mithril.cost.communication import collective_seconds
from mithril.cost.hardware import Hardware
from mithril.cost.inside import count_workspace
from mithril.cost.kernels import OpCosts, find_kernels
from mithril.cost.liveness import Liveness
from mithril.cost.storages import Storages
from mithril.ir import Graph, Node, Value
from mithril.mesh import Mesh
from mithril.ops.collective import collective_of
from mithril.ops.dynamic_slicing import DynamicUpdateSlice
from mithril.partition.buckets import group_scatters
from mithril.partition.recompute.twins import Twin
from mithril.plan.program import describe_collective

Numbers = tuple[int, ...]
Around = tuple[int, int]
"""Bytes before a node runs, and while it does."""


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """A forward value that lies in memory.

    Args:
        value: the one.
        maker: position of the node that makes it, among those of the forward; -1 for a carry.
        bytes: how much, in one iteration.
        is_fixed: whether it can only be kept.
    """

    value: Value
    maker: int
    bytes: int
    is_fixed: bool


@dataclass(frozen=True, eq=False)
class Flow:
    """A forward and its backward, read as buffers, which are told by their numbers.

    Args:
        nodes: of the forward, in order.
        buffers: what they make, in order.
        made: for each node, the buffers it makes.
        reads: for each node, the buffers that it reads.
        seconds: that each node takes to run again, in all iterations.
        workspaces: bytes that each node takes while it runs, besides what it reads and makes.
        late: for each node of the backward, in order, the buffers that it reads.
        around: bytes that the backward has of its own before, and while, each node runs: those of
            the forward, then those of the backward.
        through: for each value that is no buffer, its sources.
        free: what takes nothing to make again, as it is never in memory, or a constant; with the
            positions of the nodes that make it.
        leaving: the buffers that the forward is for: outputs, and what iterations hand on; without
            any, what the backward reads first.
        twins: nodes of the backward that compute what a node of the forward does, by its position.
        count: how many iterations of a loop this is the body of; None if it is none.
    """

    nodes: Sequence[Node]
    buffers: Sequence[Buffer]
    made: Sequence[Numbers]
    reads: Sequence[Numbers]
    seconds: Sequence[float]
    workspaces: Sequence[int]
    late: Sequence[Numbers]
    around: Sequence[Around]
    through: Mapping[Value, Numbers]
    free: Mapping[Value, int]
    leaving: Numbers = ()
    twins: Mapping[int, Twin] = field(default_factory=dict)
    count: int | None = None

    @cached_property
    def spare(self) -> tuple[int, ...]:
        """The nodes that the forward runs for the backward alone, the last one first."""
        needed = set(self.leaving)
        used = {number for read in self.late for number in read}
        found = []
        for at in reversed(range(len(self.nodes))):
            if self.nodes[at].op.bodies or not needed.isdisjoint(self.made[at]):
                needed.update(self.reads[at])
            elif not used.isdisjoint(self.made[at]):
                used.update(self.reads[at])
                found.append(at)
        return tuple(found)

    @cached_property
    def least(self) -> Sequence[float]:
        """The seconds that a step takes longer at least if each node runs again.

        That is nothing if its twin is left out then, or if it need not run in the forward.
        """
        free = {*self.spare, *self.twins}
        return [0.0 if at in free else seconds for at, seconds in enumerate(self.seconds)]

    @cached_property
    def likely(self) -> Sequence[float]:
        """The same if all that the forward makes of its results is kept."""
        read = {number for reads in self.reads for number in reads}
        free = {at for at in self.spare if read.isdisjoint(self.made[at])}.union(self.twins)
        return [0.0 if at in free else seconds for at, seconds in enumerate(self.seconds)]

    @property
    def times(self) -> int:
        """How many of each buffer that is kept are there at once."""
        return self.count or 1

    @cached_property
    def handed_on(self) -> frozenset[int]:
        """The buffers that something else than a loop reads, which has what it starts from."""
        nodes = zip(self.nodes, self.reads, strict=True)
        return frozenset(n for node, read in nodes if not node.op.bodies for n in read)

    @cached_property
    def last_reads(self) -> Sequence[int]:
        """The last node of the forward that reads each buffer; its maker if none does."""
        last = [buffer.maker for buffer in self.buffers]
        for at, read in enumerate(self.reads):
            for number in read:
                last[number] = at
        return last

    def list_values(self, dropped: Collection[int], within: range) -> list[Value]:
        """Return the values that are not kept if some buffers are not: what lies in them, too.

        What is free is not kept, either: what is never in memory would be once something read it
        that is kept apart from the forward.

        In the body of a loop that is so of all views, of which there would be copies.

        Args:
            dropped: the buffers.
            within: positions of the nodes among which these are dropped.
        """
        gone = set(dropped)
        if self.count is not None:
            return [*(self.buffers[number].value for number in sorted(gone)), *self.through]
        if not gone:
            return []
        found = [self.buffers[number].value for number in sorted(gone)]
        found += [v for v, sources in self.through.items() if not gone.isdisjoint(sources)]
        return found + [value for value, at in self.free.items() if at in within]


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What nodes of a program take.

    Args:
        mesh: on which it runs.
        hardware: the profile to price with.
        moved: what it gathers and scatters, as of `count_moved`.
    """

    mesh: Mesh
    hardware: Hardware
    moved: Mapping[str, int]
    _costs: OpCosts = field(default_factory=OpCosts)

    def of(self, graph: Graph) -> dict[Node, float]:
        """Return the seconds of the nodes of a graph that run kernels, or exchange data."""
        execution = self.hardware.execution
        rounds = self.mesh.size if execution.in_turn else 1
        kernels = find_kernels(graph, execution, self._costs)
        found = {node: rounds * kernel.seconds(self.hardware) for node, kernel in kernels.items()}
        for node in graph.nodes:
            op = collective_of(node.op)
            if op is not None:
                kind, _, nbytes = describe_collective(node, self.mesh)
                found[node] = collective_seconds(kind, nbytes, op.axes, self.mesh, self.hardware)
        return found

    def count(self, node: Node) -> float:
        """Return the seconds of all iterations of a loop."""
        inside = [*node.op.bodies]
        seconds = sum(sum(self.of(body).values()) for body in inside)
        seconds += sum(self.count(inner) for body in inside for inner in body.nodes)
        return node.op.iterations * seconds


class FlowReader:
    """Reads the forward of a graph.

    Args:
        graph: that has it.
        early: its nodes, in order.
        prices: of the nodes.
        apart: values that count elsewhere: they leave, or are read with the body of a loop.
        kept: values that may not be dropped.
        loops: those whose results may be dropped, with the seconds that running again takes.
        carries: inputs that the iterations of a loop hand on; other inputs are always there.
        count: how many iterations that loop has, if the graph is the body of one.
    """

    def __init__(
        self, graph: Graph, early: Sequence[Node], prices: Prices, apart: Collection[Value],
        kept: Collection[Value], loops: Mapping[Node, float], carries: Collection[Value] = (),
        count: int | None = None,
    ) -> None:  # fmt: skip
        self._early, self._count, self._apart = early, count, frozenset(apart)
        self._kept, self._loops, self._prices = frozenset(kept), loops, prices
        self._execution = prices.hardware.execution
        self._seconds = prices.of(graph)
        self._storages = Storages(graph, self._execution)
        self._buffers: list[Buffer] = []
        self._sources: dict[Value, Numbers] = {}
        self._through: dict[Value, Numbers] = {}
        self._free: dict[Value, int] = {}
        for value in carries:
            self._add(value, -1, is_fixed=True)

    def read(
        self, late: Sequence[Sequence[Value]], around: Sequence[Around],
        leaving: Sequence[Value], twins: Mapping[int, Twin],
    ) -> Flow:  # fmt: skip
        """Return what is read.

        Args:
            late: the values of the forward that each node of the backward reads.
            around: as of `Flow`.
            leaving: the values that the forward is for.
            twins: as of `Flow`.
        """
        made: list[Numbers] = []
        reads: list[Numbers] = []
        for position, node in enumerate(self._early):
            reads.append(self._list_sources(node.inputs))
            made.append(self._place(node, position, reads[-1]))
        seconds = [self._count_seconds(node) * (self._count or 1) for node in self._early]
        strides = self._storages.strides
        workspaces = [
            0 if node.op.bodies else count_workspace(node, self._execution, strides)
            for node in self._early
        ]
        needed = [self._list_sources(values) for values in late]
        # Without results of its own a forward is for what the backward starts from: to make that
        # again there is the same as to make it in the forward.
        results = self._list_sources(leaving) or next(filter(None, needed), ())
        return Flow(
            self._early, self._buffers, made, reads, seconds, workspaces, needed, around,
            self._through, self._free, results, twins, self._count,
        )  # fmt: skip

    def _count_seconds(self, node: Node) -> float:
        if node.op.bodies:
            return self._loops[node] if node in self._loops else self._prices.count(node)
        return self._seconds.get(node, 0.0)

    def _place(self, node: Node, position: int, sources: Numbers) -> Numbers:
        """Give the results of a node their buffers; return these."""
        made = []
        for value in node.outputs:
            if self._lies_in_sources(node, value):
                self._sources[value] = self._through[value] = sources
                if value not in self._storages.of:
                    self._free[value] = position
            elif not node.inputs and value.type.rank == 0:
                self._sources[value] = ()
                self._free[value] = position
            else:
                made.append(self._add(value, position, is_fixed=self._is_fixed(node, value)))
        return tuple(made)

    def _lies_in_sources(self, node: Node, value: Value) -> bool:
        """Return whether who reads a value reads what that is made of."""
        of = self._storages.of
        if value in self._apart or node.op.bodies:
            return False
        if value not in of:
            return True
        if not (node.inputs and node.op.is_view and self._execution.has_views):
            return False
        # A stack of views is a copy, so that it may have less than that of what they are views of.
        is_less = self._count is not None and value.type.nbytes < node.inputs[0].type.nbytes
        return of.get(node.inputs[0]) is of[value] and not is_less

    def _is_fixed(self, node: Node, value: Value) -> bool:
        if value in self._kept or (node.op.bodies and node not in self._loops):
            return True
        return isinstance(node.op, DynamicUpdateSlice) and node.op.in_place

    def _add(self, value: Value, maker: int, *, is_fixed: bool) -> int:
        number = len(self._buffers)
        size = 0 if value in self._apart else value.type.nbytes
        self._buffers.append(Buffer(value, maker, size, is_fixed))
        self._sources[value] = (number,)
        return number

    def _list_sources(self, values: Sequence[Value]) -> Numbers:
        found = (number for value in values for number in self._sources.get(value, ()))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """What the nodes of a backward take of their own.

    Args:
        around: as of `Flow`.
        made: for each that makes something in memory, by position, the bytes, and the position of
            the last node that needs these.
    """

    around: Sequence[Around]
    made: Mapping[int, tuple[int, int]]


def read_backward(
    graph: Graph, early: Sequence[Node], late: Sequence[Node], prices: Prices,
    paired: Collection[Node] = (),
) -> Backward:  # fmt: skip
    """Return the bytes that the nodes of a backward have made, before and while each node runs.

    Args:
        graph: that has the nodes.
        early: those of the forward.
        late: those of the backward.
        prices: that say how programs run.
        paired: loops of the backward that are read by themselves.
    """
    execution = prices.hardware.execution
    storages, liveness = Storages(graph, execution), Liveness(execution)
    positions = {node: at for at, node in enumerate((*early, *late))}
    end, own = len(positions), set(late)
    deaths = {storage: positions.get(storage.node, 0) for storage in storages.all if storage.node}
    for value, storage in storages.of.items():
        if storage in deaths:
            users = [positions[user] for user, _ in storages.uses.get(value, ())]
            is_output = value in storages.outputs
            deaths[storage] = max([deaths[storage], *users, end - 1 if is_output else 0])
    for bucket in group_scatters(late, prices.mesh, prices.hardware, prices.moved):
        last = positions[bucket[-1]]  # what the others read stays whole until then
        read = [storages.of[x] for node in bucket for x in node.inputs if x in storages.of]
        deaths |= {storage: max(deaths[storage], last) for storage in read if storage in deaths}
    births, ends = [0] * end, [0] * (end + 1)
    made: dict[int, tuple[int, int]] = {}
    for storage, death in deaths.items():
        if storage.node in own:
            at = positions[storage.node]
            births[at] += storage.bytes
            ends[death + 1] += storage.bytes
            made[at - len(early)] = storage.bytes, death - len(early)
    found, alive = [], 0
    for at, node in enumerate((*early, *late)):
        alive -= ends[at]
        before = alive
        alive += births[at]
        inside = [] if node in paired else node.op.bodies
        size = sum(liveness.measure_body(node, body).peak for body in inside)
        size += 0 if node.op.bodies else count_workspace(node, execution, storages.strides)
        found.append((before, alive + size))
    return Backward(found, made)


__all__ = [
    "Around", "Backward", "Buffer", "Flow", "FlowReader", "Numbers", "Prices", "read_backward",
]  # fmt: skip
