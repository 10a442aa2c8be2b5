"""Liveness: what a local program has in memory before, while and after each of its nodes runs.

A storage lives from the node that makes it to the last one that needs it. While an iteration of a
loop runs there are, besides what its body needs, the carries and the slices of stacks that the
iteration before has made; stacks are there from start to end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.cost.arena import fill, writing_by_name
from mithril.cost.compiled_form import to_compiled_form
from mithril.cost.inside import count_workspace
from mithril.cost.storages import Storage, Storages
from mithril.engine.arena import NO_ARENA, Arena, Writing
from mithril.ir import Graph, Node, Phase, Value
from mithril.ir.start import find_begun
from mithril.ops.collective import ReduceScatter, collective_of
from mithril.plan import Execution

ACTIVATIONS, COLLECTIVES, TEMPORARIES = "activations", "collectives", "temporaries"
ARENA = "arena"
HOST = "host"
"""The kind of what lies in the host arena, which no peak of a device counts."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Memory that something takes.

    Args:
        name: of a parameter or tensor, or the op that made it.
        scope: layer path of the op.
        kind: one of the parts of `DeviceMemory`.
        bytes: how much, padding included.
    """

    name: str
    scope: str
    kind: str
    bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class GraphMemory:
    """What a graph takes while it runs, without the inputs that its caller keeps.

    Args:
        peak: the most bytes at once.
        at: the node that runs then; None if it is the start.
        alive: what is there then.
        curve: bytes after each node.
        results: for each output the number of its storage: below the number of inputs, that of the
            input in whose memory it lies.
        made: the storages of results that are no inputs, by number.
        arena: where in one block lies what is put there; its bytes are counted in nothing above.
        host: the most bytes at once in the host arena, likewise.
    """

    peak: int
    at: Node | None
    alive: tuple[Holding, ...]
    curve: tuple[int, ...]
    results: tuple[int, ...]
    made: Mapping[int, Holding]
    arena: Arena = NO_ARENA
    host: int = 0


def arrange(execution: Execution, graph: Graph, writing: Writing) -> Arena:
    """Return where the values of a graph lie in an arena; see `mithril.engine.arena.Arrange`."""
    return Liveness(execution, writing).measure(graph).arena


@dataclass(eq=False)
class Liveness:
    """Reads memory off graphs; the body of a loop is gone through once.

    Args:
        execution: how the engine runs programs.
        writing: what its kernels write into an arena; by default what the execution says.
    """

    execution: Execution
    writing: Writing | None = None
    _bodies: dict[int, tuple[Graph, GraphMemory]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.writing is None and self.execution.in_arena:
            self.writing = writing_by_name(self.execution.in_arena)

    def measure(
        self,
        graph: Graph,
        kinds: Mapping[str, str] | None = None,
        owned: Mapping[int, Holding] | None = None,
        free: Collection[int] = (),
    ) -> GraphMemory:
        """Return what a graph takes.

        Args:
            graph: a local one.
            kinds: what tensors are, by name, where that is more than how they are used.
            owned: by position, inputs that the graph lets go of where they are last used.
            free: positions of inputs in whose memory outputs may be made.
        """
        if self.execution.lays_out:
            graph = to_compiled_form(graph, self.execution.scores_at_once)
        storages = Storages(graph, self.execution, {graph.inputs[position] for position in free})
        leaving = list(graph.outputs.values())
        return _Sweep(self, storages, kinds or {}, owned or {}, leaving).run()

    def measure_body(self, node: Node, body: Graph) -> GraphMemory:
        """Return what one iteration of a loop takes; what is stacked is copied at its end."""
        known = self._bodies.get(id(body))
        if known is None:
            storages = Storages(body, self.execution)
            leaving = list(body.outputs.values())
            if self.writing is not None and self.writing.results(node):
                leaving = leaving[: len(node.op.carries)]  # stacks are copies
            known = self._bodies[id(body)] = body, _Sweep(self, storages, {}, {}, leaving).run()
        return known[1]


class _Sweep:
    """Goes through one graph from its first node to its last.

    Args:
        parent: knows the bodies of loops.
        storages: of the graph.
        kinds: what outputs are, by name.
        owned: inputs that the graph lets go of.
        leaving: outputs that outlive a run.
    """

    def __init__(
        self,
        parent: Liveness,
        storages: Storages,
        kinds: Mapping[str, str],
        owned: Mapping[int, Holding],
        leaving: Sequence[Value],
    ) -> None:
        self._parent = parent
        self._how = parent.execution
        self._storages = storages
        self._graph = storages.graph
        # A sum begins as one zero; from its second part on it is as large as the program has it.
        self._holdings = {
            number: replace(held, bytes=storages.all[number].bytes)
            for number, held in owned.items()
        }
        self._borrowed = len(self._graph.inputs)
        self._positions = {node: at for at, node in enumerate(self._graph.nodes)}
        self._find_deaths()
        self._name(kinds)
        self._arena = NO_ARENA
        self._made = {storage.number for storage in storages.all[self._borrowed :]}
        if parent.writing is not None:
            self._fill_arena(parent.writing, leaving)

    def run(self) -> GraphMemory:
        births, deaths = self._by_position()
        live = sum(storage.bytes for storage in births[0])
        peak, at, curve = live, -1, []
        for position, node in enumerate(self._graph.nodes):
            live += sum(storage.bytes for storage in births[position + 1])
            during = live + self._count_inside(node)
            if during > peak:
                peak, at = during, position
            live -= sum(storage.bytes for storage in deaths[position])
            curve.append(live)
        outputs = self._storages.results
        return GraphMemory(
            peak,
            self._graph.nodes[at] if at >= 0 else None,
            tuple(self._list_alive(at)),
            tuple(curve),
            tuple(storage.number for storage in outputs),
            {s.number: self._holdings[s.number] for s in outputs if s.number in self._made},
            self._arena,
            self._count_host(),
        )

    def _fill_arena(self, writing: Writing, leaving: Sequence[Value]) -> None:
        """Put into the arena what can lie there; it is counted there and nowhere else."""
        bodies = {
            node: arena
            for node in self._graph.nodes
            for body in node.op.bodies
            if (arena := self._parent.measure_body(node, body).arena).size
        }
        self._arena, inside = fill(self._storages, writing, bodies, leaving)
        self._made -= inside
        for storage in self._storages.all:
            if storage.number in inside:
                storage.bytes = 0

    def _count_host(self) -> int:
        """Return the most bytes at once in the host arena; what a loop stacks is counted there."""
        births, deaths = self._by_position(is_on_host=True)
        live = most = sum(storage.bytes for storage in births[0])
        for position, node in enumerate(self._graph.nodes):
            live += sum(storage.bytes for storage in births[position + 1])
            inside = sum(self._count_host_inside(node, body) for body in node.op.bodies)
            most = max(most, live + inside)
            live -= sum(storage.bytes for storage in deaths[position])
        return most

    def _count_host_inside(self, node: Node, body: Graph) -> int:
        """Return what an iteration has in the host arena besides what its loop stacks."""
        memory = self._parent.measure_body(node, body)
        return memory.host - sum(held.bytes for held in memory.made.values() if held.kind == HOST)

    # ---------------------------------------------------------------- from when to when

    def _find_deaths(self) -> None:
        """Find out until when each storage is needed."""
        graph, of = self._graph, self._storages.of
        end = len(graph.nodes)
        read: dict[Value, Node] = {}  # by values inside kernels: what computes them
        seen = set()
        for storage in self._storages.all[: self._borrowed]:
            storage.death = end  # of an input that nobody reads, too
        for position, node in enumerate(graph.nodes):
            if node.outputs and node.outputs[0] in self._storages.fusion.inner:
                read[node.outputs[0]] = node
            if node.outputs and node.outputs[0] in self._storages.fusion.unmade:
                continue
            reading = self._list_read(node, read)
            waits = self._how.overlaps and node.op.is_collective
            until = self._find_wait(node) if waits else position
            if self._how.copies_parts and isinstance(collective_of(node.op), ReduceScatter):
                for value in node.outputs:  # copied out of what was reduced, where it is waited for
                    of[value].birth = min(until, end - 1)
            for storage in reading:
                is_first = storage.number < self._borrowed and storage not in seen
                storage.death = until if is_first else max(storage.death, until)
                seen.add(storage)
        outputs = dict.fromkeys(self._storages.results)
        for storage in outputs:
            storage.death = end
        if self._how.lays_out:
            made = [s for s in outputs if s.number >= self._borrowed and not s.is_on_host]
            self._lay_out(made)

    def _lay_out(self, outputs: Sequence[Storage]) -> None:
        """Put into the memory of each output what is needed before it is made, where it fits.

        As in XLA's buffer assignment, the largest buffers are placed first.
        """
        busy: dict[Storage, list[tuple[int, int]]] = {storage: [] for storage in outputs}
        hosts = sorted(outputs, key=lambda storage: storage.bytes)
        others = [
            s for s in self._storages.all[self._borrowed :] if s not in busy and not s.is_on_host
        ]
        for storage in sorted(others, key=lambda storage: -storage.bytes):
            for host in hosts:
                if host.bytes <= storage.bytes or host.birth <= storage.death:
                    continue
                taken = busy[host]
                if all(storage.death < start or end < storage.birth for start, end in taken):
                    taken.append((storage.birth, storage.death))
                    storage.bytes = 0
                    break
        for host in outputs:
            host.birth = -1

    def _list_read(self, node: Node, inside: Mapping[Value, Node]) -> list[Storage]:
        """Return the memory that the kernel of a node reads.

        Args:
            node: the last of the kernel so far.
            inside: by values inside kernels what computes them.
        """
        found: dict[Storage, None] = {}
        pending, met = [node], {node}
        for reader in pending:
            for value in reader.inputs:
                if self._storages.fusion.is_inside(value, reader):
                    maker = inside[value]
                    if maker not in met:
                        met.add(maker)
                        pending.append(maker)
                elif value in self._storages.of:
                    found[self._storages.of[value]] = None
        return list(found)

    def _find_wait(self, node: Node) -> int:
        """Return the position of the first node that needs what a collective makes."""
        uses = self._storages.uses
        users = (self._positions[user] for v in node.outputs for user, _ in uses.get(v, ()))
        return min(users, default=len(self._graph.nodes))

    def _by_position(
        self, *, is_on_host: bool = False
    ) -> tuple[list[list[Storage]], list[list[Storage]]]:
        """Return what is there from the start and from each node on, and what each ends."""
        count = len(self._graph.nodes)
        births: list[list[Storage]] = [[] for _ in range(count + 1)]
        deaths: list[list[Storage]] = [[] for _ in range(count + 1)]
        for storage in self._storages.all:
            is_own = storage.number >= self._borrowed or storage.number in self._holdings
            if is_own and storage.is_on_host == is_on_host:
                births[storage.birth + 1].append(storage)
                deaths[storage.death].append(storage)
        return births, deaths

    # ---------------------------------------------------------------- what it is

    def _name(self, kinds: Mapping[str, str]) -> None:
        """Find out what each storage is for."""
        crossing = {
            self._storages.of[value].number
            for node in self._graph.nodes
            if node.phase == Phase.backward
            for value in node.inputs
            if value in self._storages.of
        }
        for storage in self._storages.all[self._borrowed :]:
            node, kind = storage.node, TEMPORARIES
            if node is not None and node.op.is_collective:
                kind = COLLECTIVES
            if node is not None and node.phase == Phase.forward and storage.number in crossing:
                kind = ACTIVATIONS
            scope = node.scope if node else ""
            kind = HOST if storage.is_on_host else kinds.get(storage.name, kind)
            self._holdings[storage.number] = Holding(storage.name, scope, kind, storage.bytes)
        for name, storage in zip(self._graph.outputs, self._storages.results, strict=True):
            kind = kinds.get(name) or self._find_grown_kind(storage, kinds)
            if kind and storage.number >= self._borrowed and not storage.is_on_host:
                before = self._holdings[storage.number]
                named = name if name in kinds else before.name
                self._holdings[storage.number] = Holding(named, before.scope, kind, storage.bytes)

    @staticmethod
    def _find_grown_kind(storage: Storage, kinds: Mapping[str, str]) -> str:
        """Return what a sum is, by the accumulator that it is the next state of."""
        operands = storage.node.inputs if storage.node else ()
        return next((kinds[value.name] for value in operands if value.name in kinds), "")

    # ---------------------------------------------------------------- what a node takes inside

    def _count_inside(self, node: Node) -> int:
        """Return the bytes that a node needs besides operands and results while it runs."""
        if not node.op.bodies:
            return count_workspace(node, self._how, self._storages.strides)
        return sum(holding.bytes for holding in self._list_inside(node))

    def _list_inside(self, node: Node) -> list[Holding]:
        if not node.op.bodies:
            size = count_workspace(node, self._how, self._storages.strides)
            kind = COLLECTIVES if node.op.is_collective else TEMPORARIES
            name = f"workspace of {find_begun(node.op).name}"
            return [Holding(name, node.scope, kind, size)] if size else []
        found: list[Holding] = []
        for body in node.op.bodies:
            found += self._parent.measure_body(node, body).alive
            if node.op.iterations > 1 and not self._how.lays_out:
                found += self._list_handed_on(node, body)
        return found

    def _list_handed_on(self, node: Node, body: Graph) -> list[Holding]:
        """Return slices of stacks that the iteration before the one that runs has made."""
        memory, carried = self._parent.measure_body(node, body), len(node.op.carries)
        carries = set(memory.results[:carried])
        found = []
        for number in dict.fromkeys(memory.results[carried:]):
            if number in memory.made and memory.made[number].kind == HOST:
                continue
            if number in memory.made and number not in carries:
                found.append(memory.made[number])
            elif number < carried:
                value = body.inputs[number]
                found.append(Holding(value.name, node.scope, TEMPORARIES, value.type.nbytes))
        return found

    def _list_alive(self, position: int) -> list[Holding]:
        """Return what is there while a node runs."""
        found = [
            self._holdings[storage.number]
            for storage in self._storages.all
            if storage.number in self._holdings
            and storage.bytes
            and not storage.is_on_host
            and storage.birth <= position <= storage.death
        ]
        return found + (self._list_inside(self._graph.nodes[position]) if position >= 0 else [])


__all__ = [
    "ACTIVATIONS", "ARENA", "COLLECTIVES", "HOST", "TEMPORARIES", "GraphMemory", "Holding",
    "Liveness", "arrange",
]  # fmt: skip
