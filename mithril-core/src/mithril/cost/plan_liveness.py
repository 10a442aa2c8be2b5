"""Liveness of a whole plan: its stages in the order of the timetable, as one device sees them.

Values that stages hand on, micro-batches in flight among them, lie in slots between runs. A slot is
let go of when nobody needs it any more; the stage that reads it last may do so as soon as it has
read it, where the engine frees memory while a program runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mithril.cost.devices import local_bytes, stays
from mithril.cost.liveness import (
    ACTIVATIONS,
    ARENA,
    COLLECTIVES,
    HOST,
    TEMPORARIES,
    GraphMemory,
    Holding,
    Liveness,
)
from mithril.engine.arena import NO_ARENA, Arena
from mithril.engine.reuse import reuse_donated
from mithril.ir import Node, Phase
from mithril.ir.start import find_begun
from mithril.mesh import Sharding
from mithril.ops.host import find_on_host
from mithril.plan import Execution, Plan
from mithril.plan.messages import Message, Messages
from mithril.plan.names import GRADIENT, NEXT
from mithril.plan.timetable import Run, Send

ACCUMULATOR = " accumulator"
"""How names of gradients start, and those of sums over micro-batches end."""


@dataclass(slots=True)
class DeviceLiveness:
    """What one device holds while a plan runs.

    Args:
        peak: the most bytes at once.
        at: the op that runs then, and its layer.
        alive: what is there then.
        curve: bytes after each node.
        arena: of the program that needs the largest one; it is there all the time.
        host: the most bytes at once in the host arena.
    """

    peak: int = 0
    at: str = "the start"
    alive: tuple[Holding, ...] = ()
    curve: list[int] = field(default_factory=list)
    arena: Arena = NO_ARENA
    host: int = 0


@dataclass(eq=False)
class Replay:
    """Goes through the timetable of a plan for one device after another.

    Args:
        plan: what runs.
        execution: how the engine runs programs.
        donated: names of the plan's inputs that are given up.
    """

    plan: Plan
    execution: Execution
    donated: frozenset[str] = frozenset()
    _known: dict[tuple[int, frozenset[int]], GraphMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._liveness = Liveness(self.execution)

    def run(self, device: int) -> DeviceLiveness:
        """Return what a device holds."""
        return _Walk(self, device).run()

    def measure(self, stage: int, owned: Mapping[int, Holding]) -> GraphMemory:
        """Return what a run of a stage takes.

        Args:
            stage: which.
            owned: by position, inputs that nobody needs after it.
        """
        key = stage, frozenset(owned)
        known = self._known.get(key)
        if known is None:
            free, program = self._find_free(stage), self.plan.stages[stage].program
            graph = (reuse_donated(program, free) if self.donated else program).graph
            known = self._liveness.measure(graph, self._kinds, owned, free)
            self._known[key] = known
        return known

    def find_arena(self, stages: Iterable[int]) -> Arena:
        """Return the largest of the arenas of some stages, which share its memory."""
        if not self.execution.in_arena:
            return NO_ARENA
        found = (self.measure(stage, {}).arena for stage in dict.fromkeys(stages))
        return max(found, key=lambda arena: arena.size, default=NO_ARENA)

    def _find_free(self, stage: int) -> Sequence[int]:
        """Return the inputs of a stage in whose memory its outputs may be made."""
        if not self.plan.timetable.runs_once:
            return self.plan.timetable.find_donatable(stage)
        inputs = self.plan.stages[stage].program.inputs
        return [i for i, port in enumerate(inputs) if port.name in self.donated]

    def kind_of_input(self, name: str) -> str:
        """Return what an input of the plan is."""
        if name in self._parameters:
            return "parameters"
        return "optimizer" if name in self._optimizer else "inputs"

    def kind_of_output(self, name: str) -> str:
        """Return what an output of the plan is; nothing for what stages hand on."""
        if name not in self._made:
            return ""
        kept = name.removeprefix(NEXT)
        if name.startswith(NEXT) and (kept in self._parameters or kept in self._optimizer):
            return self.kind_of_input(kept)
        is_gradient = name.startswith(GRADIENT) and name.removeprefix(GRADIENT) in self._parameters
        return "gradients" if is_gradient else "outputs"

    @cached_property
    def on_host(self) -> frozenset[str]:
        """The inputs of the plan that lie in the host arena."""
        table, found = self.plan.timetable, set()
        names = {slot: port.name for port, slot in zip(table.inputs, table.given, strict=True)}
        hosts = [find_on_host(stage.program.graph) for stage in self.plan.stages]
        for step in table.steps if any(hosts) else ():
            if isinstance(step, Run):
                values = self.plan.stages[step.stage].program.graph.inputs
                lies = zip(step.inputs, values, strict=True)
                found |= {names[s] for s, x in lies if s in names and x in hosts[step.stage]}
        return frozenset(found)

    @cached_property
    def messages(self) -> Messages:
        """How long messages are under way."""
        return Messages(self.plan)

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return frozenset(self.plan.parameters)

    @cached_property
    def _optimizer(self) -> frozenset[str]:
        return frozenset(self.plan.optimizer)

    @cached_property
    def _kinds(self) -> Mapping[str, str]:
        """What tensors are that become outputs of the plan, by name."""
        found = {f"{GRADIENT}{name}": "gradients" for name in self.plan.parameters}
        found |= {port.name: self.kind_of_output(port.name) for port in self.plan.outputs}
        return found | {f"{name}{ACCUMULATOR}": kind for name, kind in found.items()}

    @cached_property
    def _made(self) -> frozenset[str]:
        return frozenset(port.name for port in self.plan.outputs)

    @cached_property
    def slots(self) -> Mapping[int, tuple[str, str]]:
        """Name and kind of what lies in each slot, by those who read it."""
        table = self.plan.timetable
        given_back = self._find_given_back()
        made = {s: port.name for port, s in zip(table.outputs, table.made, strict=True)}
        found = {slot: (name, self.kind_of_output(name)) for slot, name in made.items()}
        for step in reversed(table.steps):
            if isinstance(step, Send):
                transfer = table.transfers[step.transfer]
                found.setdefault(step.source, (transfer.cause.value, COLLECTIVES))
                continue
            inputs = self.plan.stages[step.stage].program.inputs
            ends = [made[slot] for slot in step.outputs if slot in made]
            for port, slot in zip(inputs, step.inputs, strict=True):
                kind = self._kinds.get(port.name) if port.name.endswith(ACCUMULATOR) else ""
                if step.stage in self._backward and slot not in given_back:
                    kind = kind or ACTIVATIONS
                elif len(ends) == len(step.outputs) > 0:
                    kind = kind or self.kind_of_output(ends[0])
                if found.get(slot, ("", ""))[1] != ACTIVATIONS:
                    found[slot] = port.name.removesuffix(ACCUMULATOR), kind or TEMPORARIES
        return found

    def _find_given_back(self) -> set[int]:
        """Return the slots of gradients that go from stage to stage, and of what runs once gives.

        Parameters that are gathered before the micro-batches are for their forwards, too.
        """
        found: set[int] = set()
        is_cut = self.plan.timetable.schedule is not None
        for step in self.plan.timetable.steps:
            if isinstance(step, Send):
                found |= {step.target} if step.source in found else set()
            elif step.stage in self._backward or (is_cut and step.action is None):
                found.update(step.outputs)
        return found

    @cached_property
    def _backward(self) -> frozenset[int]:
        """The stages that compute gradients."""
        return frozenset(
            number
            for number, stage in enumerate(self.plan.stages)
            if any(node.phase == Phase.backward for node in stage.program.graph.nodes)
        )


class _Walk:
    """One device goes through a timetable.

    Args:
        replay: what all devices have in common.
        device: its flat index.
    """

    def __init__(self, replay: Replay, device: int) -> None:
        self._replay = replay
        self._plan = replay.plan
        self._table = replay.plan.timetable
        self._device = device
        self._slots: dict[int | Message, _Held] = {}  # and what is under way
        self._users: Counter[_Held] = Counter()  # how many slots a thing in memory lies in
        self._live = 0
        self._host = 0  # bytes in the host arena
        self._found = DeviceLiveness()
        self._stages = [device in set(stage.devices) for stage in self._plan.stages]
        self._steps = [n for n, step in enumerate(self._table.steps) if self._is_mine(step)]
        self._dead = self._find_last_uses()

    def run(self) -> DeviceLiveness:
        """Return what the device holds."""
        table = self._table
        for port, slot in zip(table.inputs, table.given, strict=True):
            if self._has(port.sharding):
                is_on_host = port.name in self._replay.on_host
                kind = HOST if is_on_host else self._replay.kind_of_input(port.name)
                self._put(slot, _Held(port.name, kind, local_bytes(port.type, port.sharding)))
        runs = (table.steps[position] for position in self._steps)
        arena = self._replay.find_arena(step.stage for step in runs if isinstance(step, Run))
        if arena.size:
            self._found.arena = arena
            held = _Held("arena", ARENA, arena.size)
            self._users[held] += 1
            self._live += held.bytes
        self._note(self._live, None, "", [])
        self._go()
        return self._found

    def _go(self) -> None:
        """Take all steps."""
        table, started = self._table, set[int]()
        execution, messages = self._replay.execution, self._replay.messages
        early = messages.find_early(self._device) if execution.receives_early else {}
        arrived = self._find_arrived() if execution.sends_beside else {}
        for position in self._steps:
            step, dead = table.steps[position], self._dead[position]
            for message in arrived.get(position, ()):
                self._drop(message)
            if isinstance(step, Run):
                for other in early.get(position, ()):
                    self._send(table.steps[other])
                    started.add(other)
                self._run(step, dead)
            elif position not in started:
                self._send(step)
                if execution.sends_beside:
                    for receiver in messages.list_receivers(self._device, position):
                        self._put((position, receiver), self._slots[step.source])
            for slot in dead:
                self._drop(slot)
            self._found.curve.append(self._live)

    def _find_arrived(self) -> dict[int, list[Message]]:
        """Return the messages that the device knows to have arrived, by where it learns that."""
        messages, found = self._replay.messages, dict[int, list[Message]]()
        for brought, sent in messages.find_answered(self._device).items():
            found.setdefault(messages.find_first_use(self._device, brought), []).extend(sent)
        return found

    # ---------------------------------------------------------------- steps

    def _run(self, step: Run, dead: Sequence[int]) -> None:
        given = [self._slots.get(slot, _NOTHING) for slot in step.inputs]
        owned = {} if self._replay.execution.lays_out else self._find_owned(given, step, dead)
        memory = self._replay.measure(step.stage, owned)
        base = self._live - sum(holding.bytes for holding in owned.values())
        self._found.host = max(self._found.host, self._host + memory.host)
        if base + memory.peak > self._found.peak:
            mine = {given[position] for position in owned}
            others = [held.holding for held in self._on_device() if held not in mine]
            stage = self._plan.stages[step.stage].name
            label = f" of {step.action} ({stage})" if step.action else ""
            self._note(base + memory.peak, memory.at, label, [*others, *memory.alive])
        self._found.curve += [base + size for size in memory.curve[:-1]]
        made: dict[int, _Held] = dict(enumerate(given))
        for slot, number in zip(step.outputs, memory.results, strict=True):
            if number not in made:
                holding = memory.made[number]
                name, kind = self._replay.slots.get(slot, (holding.name, holding.kind))
                kind = HOST if holding.kind == HOST else kind
                made[number] = _Held(name, kind, holding.bytes, holding.scope)
            self._put(slot, made[number])

    def _find_owned(
        self, given: Sequence[_Held], step: Run, dead: Sequence[int]
    ) -> dict[int, Holding]:
        """Return the inputs that nobody needs after a run, by position."""
        leaving = Counter(self._slots[slot] for slot in dead if slot in self._slots)
        first = {held: position for position, held in reversed(list(enumerate(given)))}
        return {
            position: held.holding
            for held, position in first.items()
            if held is not _NOTHING and held.kind != HOST and leaving[held] == self._users[held]
        }

    def _send(self, step: Run | Send) -> None:
        assert isinstance(step, Send), "only what is sent arrives"
        transfer = self._table.transfers[step.transfer]
        if not self._has(transfer.target):
            return
        source = self._slots.get(step.source)
        if source is not None and stays(transfer, self._device):
            self._put(step.target, source)
            return
        name, kind = self._replay.slots.get(step.target, (transfer.cause.value, COLLECTIVES))
        size = local_bytes(transfer.arriving, transfer.target)
        self._put(step.target, _Held(name, kind, size, transfer.scope))
        if self._live > self._found.peak:  # what is held is listed for new peaks alone
            label = f"send of '{transfer.cause.value}'"
            self._note(self._live, None, label, [held.holding for held in self._on_device()])

    def _note(self, size: int, node: Node | None, label: str, alive: list[Holding]) -> None:
        """Remember a moment if more is held than before."""
        if size <= self._found.peak:
            return
        self._found.peak, self._found.alive = size, tuple(alive) or self._all()
        where = "" if node is None else find_begun(node.op).name
        where += f" in {node.scope}" if node is not None and node.scope else ""
        self._found.at = f"{where}{label}".strip() or "the start"

    def _all(self) -> tuple[Holding, ...]:
        return tuple(held.holding for held in self._on_device())

    def _on_device(self) -> Iterator[_Held]:
        return (held for held in self._users if held.kind != HOST)

    # ---------------------------------------------------------------- slots

    def _put(self, slot: int | Message, held: _Held) -> None:
        self._drop(slot)
        self._slots[slot] = held
        if held is not _NOTHING and not self._users[held]:
            self._count(held, held.bytes)
        self._users[held] += 1

    def _drop(self, slot: int | Message) -> None:
        held = self._slots.pop(slot, _NOTHING)
        if held is _NOTHING:
            return
        self._users[held] -= 1
        if not self._users[held]:
            del self._users[held]
            self._count(held, -held.bytes)

    def _count(self, held: _Held, size: int) -> None:
        if held.kind == HOST:
            self._host += size
            self._found.host = max(self._found.host, self._host)
        else:
            self._live += size

    def _find_last_uses(self) -> dict[int, list[int]]:
        """Return for each step of the device the slots that it does not need after it."""
        table = self._table
        kept, found = {*table.given, *table.made}, {}
        for position in reversed(self._steps):
            used = table.steps[position].slots
            found[position] = [slot for slot in dict.fromkeys(used) if slot not in kept]
            kept.update(used)
        return found

    def _is_mine(self, step: Run | Send) -> bool:
        if isinstance(step, Run):
            return self._stages[step.stage]
        transfer = self._table.transfers[step.transfer]
        return self._has(transfer.source) or self._has(transfer.target)

    def _has(self, sharding: Sharding) -> bool:
        """Return whether the device is one of a mesh."""
        return not sharding.mesh.devices or self._device in sharding.mesh.devices


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Something in memory between runs, as `Holding` has it."""

    name: str
    kind: str
    bytes: int
    scope: str = ""

    @property
    def holding(self) -> Holding:
        return Holding(self.name, self.scope, self.kind, self.bytes)


_NOTHING = _Held("", TEMPORARIES, 0)
"""What lies in a slot of numbers that are made once, such as that of a micro-batch."""
