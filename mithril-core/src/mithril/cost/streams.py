"""Streams: simulates a program on one device, kernel by kernel and collective by collective.

A device has three streams. Kernels are in the first, in the order of the program. Collectives are
in the second: each starts once the first stream has come to where it stands, and the one before has
ended. Copies to the host arena and back are in the third, likewise, where an engine copies beside
other work; elsewhere they are kernels. Where an engine does not overlap collectives, the first
stream waits for each at once; otherwise whoever reads the result waits, in a loop at the latest the
end of the iteration. Time in which the first stream waits while another is at work is *exposed*
communication.

A loop is simulated until an iteration starts with nothing on its way, as all later ones do; these
are not simulated again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mithril.cost.compiled_form import to_compiled_form
from mithril.cost.events import COMMUNICATION, COMPUTE, COPIES, Event, Item, Iterations
from mithril.cost.hardware import Hardware, hardware_within
from mithril.cost.kernels import Kernel, Known, OpCosts, find_kernels
from mithril.cost.pairs import exchange_seconds
from mithril.ir import Graph, Node, Value
from mithril.ir.start import Wait
from mithril.mesh import Mesh
from mithril.ops.collective import collective_of
from mithril.ops.control import After
from mithril.ops.host import FromHost, ToHost
from mithril.plan import Program
from mithril.plan.issued import Row
from mithril.plan.program import describe_collective

Found = TypeVar("Found")
Path = list[tuple[str, float]]
"""What followed on what, with the seconds that it took."""


def _start_sums() -> dict[str, float]:
    return defaultdict(float)


@dataclass(eq=False)
class Totals:
    """Sums over what a device does.

    Args:
        compute: seconds of compute.
        layers: the same by layer path.
        communication: seconds of communication by axes, and of sends.
        exposed: those of them that nothing hides.
        behind: for each collective the seconds of it beside which layers compute.
    """

    compute: float = 0.0
    layers: dict[str, float] = field(default_factory=_start_sums)
    communication: dict[str, float] = field(default_factory=_start_sums)
    exposed: dict[str, float] = field(default_factory=_start_sums)
    behind: dict[Node, dict[str, float]] = field(default_factory=dict)

    def add(self, other: Totals, times: float = 1) -> None:
        """Add what happens so many times."""
        for node, layers in other.behind.items():
            for layer, seconds in layers.items():
                self.hide(node, layer, seconds * times)
        self.compute += other.compute * times
        for own, more in (
            (self.layers, other.layers),
            (self.communication, other.communication),
            (self.exposed, other.exposed),
        ):
            for key, seconds in more.items():
                own[key] += seconds * times

    def hide(self, node: Node, layer: str, seconds: float) -> None:
        """Add seconds of a collective in which a layer computes."""
        layers = self.behind.setdefault(node, {})
        layers[layer] = layers.get(layer, 0.0) + seconds


@dataclass(slots=True, eq=False)
class Link:
    """A piece of a path, and what it had to wait for."""

    path: Path
    before: Link | None = None

    def trace(self, until: Link | None = None) -> Path:
        """Return the path up to here, from behind a link or from the start."""
        pieces = []
        link: Link | None = self
        while link is not None and link is not until:
            pieces.append(link.path)
            link = link.before
        return join(piece for path in reversed(pieces) for piece in path)


def join(pieces: Iterable[tuple[str, float]]) -> Path:
    """Return a path with neighbours of one name as one."""
    found: Path = []
    for name, seconds in pieces:
        if found and found[-1][0] == name:
            found[-1] = (name, found[-1][1] + seconds)
        elif seconds:
            found.append((name, seconds))
    return found


# ------------------------------------------------------------------ what a program consists of


@dataclass(slots=True, eq=False)
class Step:
    """What a stream is given: a kernel, a collective or a loop.

    Args:
        seconds: that it takes; of a loop 0.
        needs: results of collectives that it waits for.
        event: as it starts at 0; None for a loop, and for what only waits.
        makes: what is on its way from here on, of a collective.
        body: the steps of an iteration.
        count: how often they run.
        node: of a collective.
    """

    seconds: float
    needs: tuple[Value, ...]
    event: Event | None = None
    makes: tuple[Value, ...] = ()
    body: Sequence[Step] = ()
    count: int = 0
    node: Node | None = None


_Priced = tuple[Kernel, Event]
"""A kernel, and what it is as it starts at 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """What a program runs, priced.

    Args:
        steps: in order.
        overlaps: whether collectives go on beside kernels.
    """

    steps: Sequence[Step]
    overlaps: bool


def price_program(program: Program, hardware: Hardware, costs: OpCosts) -> Work:
    """Return what a program runs, with what each part takes on one device.

    Args:
        program: a local one.
        hardware: the profile to price with.
        costs: what is known of the costs of ops.
    """
    return Pricing(program.mesh, hardware, costs).price(program.graph)


class Pricing:
    """Says what parts of programs take on one device.

    Graphs of the same kernels in another order, and equal collectives, are priced once.

    Args:
        mesh: the devices.
        hardware: the profile to price with.
        costs: what is known of the costs of ops.
    """

    def __init__(self, mesh: Mesh, hardware: Hardware, costs: OpCosts) -> None:
        self.mesh, self.hardware = mesh, hardware_within(hardware, mesh.flat)
        self._costs = costs
        self._rounds = mesh.size if hardware.execution.in_turn else 1
        self._found: dict[Hashable, Any] = {}
        self._kernels: Known = {}

    def find_once(self, key: Hashable, find: Callable[[], Found]) -> Found:
        """Return what is found at these prices; what is asked for again is not searched again."""
        if key not in self._found:
            self._found[key] = find()
        return self._found[key]  # type: ignore[no-any-return]

    def price(self, graph: Graph) -> Work:
        """Return what a local graph runs."""
        execution = self.hardware.execution
        made = to_compiled_form(graph, execution.scores_at_once) if execution.lays_out else graph
        return Work(self._list_steps(made), self.hardware.hides_collectives)

    def list_seconds(self, graph: Graph) -> Mapping[Node, float]:
        """Return the seconds that kernels of a local graph take, by their last nodes."""
        return {node: event.seconds for node, (_, event) in self._price_kernels(graph).items()}

    def _list_steps(self, graph: Graph) -> list[Step]:
        kernels = self._price_kernels(graph)
        pending: dict[Value, Value] = {}  # what stands for the result of a collective
        steps: list[Step] = []
        for node in graph.nodes:
            if isinstance(node.op, ToHost | FromHost):
                steps.append(self._copy(node, _needs([node], pending)))
                pending.update((value, value) for value in steps[-1].makes)
            elif collective_of(node.op) is not None:
                steps.append(self._exchange(node, _needs([node], pending)))
                pending.update((value, value) for value in node.outputs)
            elif isinstance(node.op, Wait | After):
                steps.append(Step(0.0, _needs([node], pending)))
            elif node.op.bodies:
                (body,) = node.op.bodies
                needs, count = _needs([node], pending), node.op.iterations
                steps.append(Step(0.0, needs, body=self._list_steps(body), count=count))
            elif node in kernels:
                kernel, event = kernels[node]
                steps.append(Step(event.end, _needs(kernel.nodes, pending), event))
            elif node.op.is_view and node.inputs[0] in pending:
                pending[node.outputs[0]] = pending[node.inputs[0]]
        return steps

    def _price_kernels(self, graph: Graph) -> Mapping[Node, _Priced]:
        def price() -> Mapping[Node, _Priced]:
            found = find_kernels(graph, self.hardware.execution, self._costs, self._kernels)
            return {node: self._compute(kernel) for node, kernel in found.items()}

        return self.find_once(_find_kernel_key(graph), price)

    def _compute(self, kernel: Kernel) -> _Priced:
        node = kernel.nodes[-1]
        seconds = kernel.seconds(self.hardware) * self._rounds
        name, kind = "+".join(part.op.name for part in kernel.nodes), node.op.name
        event = Event(name, node.scope, node.phase, COMPUTE, 0.0, seconds, kind, bytes=kernel.bytes)
        return kernel, event

    def _copy(self, node: Node, needs: tuple[Value, ...]) -> Step:
        """Return a copy to the host arena or back, on a stream of its own where there is one."""
        nbytes = node.outputs[0].type.nbytes
        seconds = self.hardware.copy_seconds(nbytes) * self._rounds
        is_beside, name = self.hardware.execution.copies_beside, node.op.name
        stream = COPIES if is_beside else COMPUTE
        event = Event(name, node.scope, node.phase, stream, 0.0, seconds, name, bytes=nbytes)
        return Step(seconds, needs, event, node.outputs if is_beside else ())

    def _exchange(self, node: Node, needs: tuple[Value, ...]) -> Step:
        event = self.find_once(node, lambda: self._price_exchange(node))
        return Step(event.end, needs, event, node.outputs, node=node)

    def _price_exchange(self, node: Node) -> Event:
        op = collective_of(node.op)
        assert op is not None, "it is asked of collectives"

        def price() -> tuple[Row, float]:
            row = describe_collective(node, self.mesh)
            return row, exchange_seconds(op, row[2], self.mesh, self.hardware)

        key = op, tuple(value.type for value in node.inputs)
        (kind, axes, nbytes), seconds = self.find_once(key, price)
        name = f"{kind} over {'+'.join(axes)}"
        return Event(name, node.scope, node.phase, COMMUNICATION, 0.0, seconds, kind, axes, nbytes)


def _find_kernel_key(graph: Graph) -> Hashable:
    """Return what the kernels of a graph depend on: neither its order nor where it waits."""
    computing, read = set[Node](), set[Value]()
    for node in graph.nodes:
        if node.op.bodies or collective_of(node.op) is not None:
            read.update(node.inputs)
        elif not isinstance(node.op, Wait):
            computing.add(node)
    return frozenset(computing), frozenset(read), tuple(graph.outputs.values())


def _needs(nodes: Sequence[Node], pending: dict[Value, Value]) -> tuple[Value, ...]:
    if not pending:
        return ()
    found = (pending[value] for node in nodes for value in node.inputs if value in pending)
    return tuple(dict.fromkeys(found))


def _communicates(steps: Sequence[Step]) -> bool:
    return any(step.makes or _communicates(step.body) for step in steps)


# ------------------------------------------------------------------ the simulation


@dataclass(frozen=True, slots=True, eq=False)
class Simulated:
    """A run of a program that was simulated.

    Args:
        seconds: until all of it is done.
        items: its events, the first stream starting at 0.
        totals: sums over them.
        path: what followed on what from the start to the end.
        communicates: whether there is a collective in it.
    """

    seconds: float
    items: Sequence[Item]
    totals: Totals
    path: Path
    communicates: bool


def simulate_program(work: Work, *, tells_events: bool = True) -> Simulated:
    """Return when a program does what, its streams being idle before.

    Args:
        work: what it runs.
        tells_events: whether its events and path are asked for; without it takes half as long.
    """
    simulation = _Simulation(work.overlaps, tells_events)
    simulation.run(work.steps)
    path = simulation.link.trace()
    items, totals = simulation.items, simulation.totals
    return Simulated(simulation.now, items, totals, path, _communicates(work.steps))


@dataclass(frozen=True, slots=True, eq=False)
class _Arriving:
    """What is on its way: from when to when, between whom, and the collective that it is."""

    start: float
    end: float
    key: str
    node: Node | None


class _Simulation:
    def __init__(self, overlaps: bool, tells_events: bool) -> None:
        self._tells_events = tells_events
        self.now = 0.0
        self.link = Link([])
        self.items: list[Item] = []
        self.totals = Totals()
        self._overlaps = overlaps
        # By stream, when what was started so far has ended, and the last of it.
        self._ends: dict[str, float] = defaultdict(float)
        self._latest: dict[str, Link] = {}
        self._on_their_way: dict[str, deque[_Arriving]] = defaultdict(deque)

    def run(self, steps: Sequence[Step]) -> None:
        """Run some steps, and wait for what they started."""
        pending: dict[Value, tuple[float, Link]] = {}
        for step in steps:
            for value in step.needs:
                if value in pending:
                    self._wait(*pending.pop(value))
            if step.makes:
                arrival = self._exchange(step)
                if self._overlaps:
                    pending.update(dict.fromkeys(step.makes, arrival))
                else:
                    self._wait(*arrival)
            elif step.body:
                self._repeat(step)
            elif step.event is not None:
                self._compute(step.event, step.seconds)
        for arrival in pending.values():
            self._wait(*arrival)

    def _compute(self, event: Event, seconds: float) -> None:
        name = event.scope or event.kind
        if self._tells_events:
            self.items.append(event.shift(self.now))
            self.link = Link([(name, seconds)], self.link)
        self._hide(name, self.now + seconds)
        self.now += seconds
        self.totals.compute += seconds
        self.totals.layers[name] += seconds

    def _exchange(self, step: Step) -> tuple[float, Link]:
        event = step.event
        assert event is not None, "a collective has an event"
        stream = event.stream
        is_queued = self._ends[stream] > self.now
        start = self._ends[stream] if is_queued else self.now
        end, key = start + step.seconds, "+".join(event.axes) or event.stream
        link = self.link
        if self._tells_events:
            before = self._latest[stream] if is_queued else self.link
            link = Link([(event.name, step.seconds)], before)
            self.items.append(event.shift(start))
        self._ends[stream], self._latest[stream] = end, link
        self._on_their_way[stream].append(_Arriving(start, end, key, step.node))
        self.totals.communication[key] += step.seconds
        return end, link

    def _wait(self, end: float, link: Link) -> None:
        if end <= self.now:
            return
        for item, seconds in self._list_arriving(end):
            self.totals.exposed[item.key] += seconds
        self.now, self.link = end, link

    def _hide(self, layer: str, until: float) -> None:
        """Count what of the collectives on their way passes while a layer computes."""
        for item, seconds in self._list_arriving(until):
            if item.node is not None:
                self.totals.hide(item.node, layer, seconds)

    def _list_arriving(self, until: float) -> Iterator[tuple[_Arriving, float]]:
        """Yield what is on its way between now and then, with the seconds of it.

        In a stream one begins where the other has ended: behind the first later one are no more.
        """
        for items in self._on_their_way.values():
            while items and items[0].end <= self.now:
                items.popleft()
            for item in items:
                if item.start >= until:
                    break
                seconds = min(item.end, until) - max(item.start, self.now)
                if seconds > 0:
                    yield item, seconds

    def _repeat(self, step: Step) -> None:
        outer_items, outer_totals = self.items, self.totals
        communicates = _communicates(step.body)
        for number in range(step.count):
            is_steady = not communicates or max(self._ends.values(), default=0.0) <= self.now
            times = step.count - number if is_steady else 1
            self.items, self.totals = [], Totals()
            start, before, first = self.now, self.link, Link([], self.link)
            self.link = first
            self.run(step.body)
            period = self.now - start
            outer_items.append(Iterations(self.items, period, times))
            outer_totals.add(self.totals, times)
            if is_steady:
                self._skip(times, period, first, before, communicates)
                break
        self.items, self.totals = outer_items, outer_totals

    def _skip(
        self, times: int, period: float, first: Link, before: Link, communicates: bool
    ) -> None:
        """Go to the end of so many iterations, of which one was simulated."""
        path = [(name, seconds * times) for name, seconds in self.link.trace(first)]
        self.link = Link(path, before)
        self.now += (times - 1) * period
        if communicates:
            for stream in self._ends:
                self._ends[stream] += (times - 1) * period
