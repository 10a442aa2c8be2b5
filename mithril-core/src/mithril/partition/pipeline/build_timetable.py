"""Put the pieces of all parts into one order: the timetable of a plan.

What runs once before the micro-batches comes first, layer by layer; then the actions of the
schedule in the order in which they start; then what runs once after them. What one part makes for
another is sent as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.cost import Hardware, relayed, transfer_seconds
from mithril.errors import PlanError
from mithril.ir import Cause, Graph, Phase, Value
from mithril.mesh import Mesh, Sharding, coarse
from mithril.partition.naming import first_uses
from mithril.partition.pipeline.phases import When
from mithril.partition.pipeline.placement import Placement
from mithril.partition.pipeline.split import Parted
from mithril.partition.pipeline.stage_programs import Cutter, Piece, Seat
from mithril.partition.schedule import simulate
from mithril.plan import Port, Stage
from mithril.plan.schedule import Action, Work
from mithril.plan.timetable import Index, Run, Send, Timetable, Transfer

Key = tuple[Seat, int | None]


@dataclass(eq=False)
class Assembly:
    """Everything the timetable is made of.

    Args:
        placement: the parts and the schedule.
        graph: the whole graph.
        parted: what goes from part to part.
        cutters: the pieces' maker of each part.
        pieces: of all parts.
        arriving: how inputs of the plan arrive, where that is given.
        leaving: how outputs must leave, where that is promised.
        hardware: prices what is sent.
    """

    placement: Placement
    graph: Graph
    parted: Parted
    cutters: Mapping[int, Cutter]
    pieces: Sequence[Piece]
    arriving: Mapping[str, Sharding]
    leaving: Mapping[str, Sharding]
    hardware: Hardware
    _slots: dict[Key, int] = field(default_factory=dict)
    _given: dict[str, tuple[Port, int]] = field(default_factory=dict)
    _transfers: dict[tuple[str, Sharding, Sharding], int] = field(default_factory=dict)
    _sent: list[Transfer] = field(default_factory=list)
    _steps: list[Run | Send] = field(default_factory=list)
    _indices: dict[tuple[Mesh, int], Index] = field(default_factory=dict)
    _count: int = 0

    def timetable(self) -> tuple[tuple[Stage, ...], Timetable]:
        """Return the stages and when they run."""
        stages = tuple(self._stage(piece) for piece in self.pieces)
        for value in self.graph.inputs:
            self._given[value.name] = (self._input_port(value), self._slot())
        self._run_once(When.before)
        for action in self._actions():
            self._act(action)
        self._run_once(When.after)
        outputs = [self._output(name) for name in self.graph.outputs]
        return stages, Timetable(
            tuple(port for port, _ in self._given.values()),
            tuple(slot for _, slot in self._given.values()),
            tuple(port for port, _ in outputs),
            tuple(slot for _, slot in outputs),
            tuple(self._steps),
            tuple(self._sent),
            tuple(self._indices.values()),
            self.placement.schedule if self.placement.microbatches > 1 else None,
        )

    def _stage(self, piece: Piece) -> Stage:
        part = self.placement.parts[piece.of.part]
        when = {When.before: "before", When.after: "after"}.get(piece.of.when)
        name = f"{part.name} {piece.of.work.name.replace('_', ' ')}"
        if when is not None:
            name = f"{part.name} {when} {piece.of.layer}"
            if self.placement.microbatches == 1:
                name = f"{part.name} step {piece.of.layer}"
        return Stage(name, piece.program, part.mesh.flat)

    # -------------------------------------------------------------- order

    def _run_once(self, when: When) -> None:
        found = [
            (piece.of.layer, n) for n, piece in enumerate(self.pieces) if piece.of.when == when
        ]
        for _, number in sorted(found):
            self._run(number, None, None)

    def _actions(self) -> list[Action]:
        schedule = self.placement.schedule
        if schedule is None or self.placement.microbatches == 1:
            return []
        starts = simulate(schedule).starts
        row = schedule.devices
        return sorted(starts, key=lambda action: (starts[action], row[action.stage]))

    def _act(self, action: Action) -> None:
        halves = (Work.input_gradient, Work.weight_gradient)
        works = (action.work, *halves) if action.work == Work.backward else (action.work,)
        for number, piece in enumerate(self.pieces):
            stage = self.placement.parts[piece.of.part].stage
            if piece.of.when == When.during and stage == action.stage and piece.of.work in works:
                self._run(number, action.microbatch, action)

    def _run(self, number: int, m: int | None, action: Action | None) -> None:
        piece = self.pieces[number]
        inputs = tuple(self._incoming(seat, m, piece, action) for seat in piece.takes)
        outputs = []
        for seat in piece.gives:
            slot = self._slot()
            self._slots[self._key(seat, m)] = slot
            outputs.append(slot)
        self._steps.append(Run(number, inputs, tuple(outputs), action))
        for seat in piece.gives:
            if not seat.kind:
                for part, value in self._readers(seat):
                    self._resolve(Seat(part, value), m, action)

    def _readers(self, seat: Seat) -> Iterator[tuple[int, Value]]:
        """Yield where a value is needed on other parts."""
        own = self.cutters[seat.part]
        for name in own.names_of(seat):
            for part, cutter in self.cutters.items():
                value = cutter.arrivals.get(name)
                if value is not None and part != seat.part:
                    yield part, value

    # -------------------------------------------------------------- slots

    def _slot(self) -> int:
        self._count += 1
        return self._count - 1

    def _key(self, seat: Seat, m: int | None) -> Key:
        if seat.microbatch is not None:
            seat, m = replace(seat, microbatch=None), seat.microbatch
        varies = not seat.kind and self.cutters[seat.part].varies(seat.value)
        return seat, m if varies else None

    def _incoming(
        self, seat: Seat | None, m: int | None, piece: Piece, action: Action | None
    ) -> int:
        if seat is None:
            assert m is not None, "only what runs for a micro-batch takes its number"
            key = piece.program.mesh, m
            if key not in self._indices:
                self._indices[key] = Index(self._slot(), *key)
            return self._indices[key].slot
        if seat.kind == "sum" and self._key(seat, m) not in self._slots:
            return self._slots[Seat(seat.part, seat.value, "zeros"), None]
        return self._resolve(seat, m, action)

    def _resolve(self, seat: Seat, m: int | None, action: Action | None) -> int:
        """Return the slot of a value where it is needed, brought there if need be."""
        if not seat.kind and seat.microbatch is None:
            seat = self.cutters[seat.part].seat(seat.value)
        key = self._key(seat, m)
        if key not in self._slots:
            self._slots[key] = self._brought(seat, m, action)
        return self._slots[key]

    def _brought(self, seat: Seat, m: int | None, action: Action | None) -> int:
        cutter = self.cutters[seat.part]
        port = cutter.arriving_port(seat.value)
        name = seat.value.name
        if name not in self.parted.crossing:
            return self._moved(name, *self._given[name], port, seat.part, action)
        maker = self.cutters[self.parted.made_on[name]]
        source = maker.leaving(name)
        slot = self._resolve(source, m, action)
        return self._moved(name, maker.leaving_port(name), slot, port, seat.part, action)

    # -------------------------------------------------------------- transfers

    def _moved(
        self, name: str, held: Port, slot: int, wanted: Port, part: int, action: Action | None
    ) -> int:
        """Return the slot of a value as it is wanted; a transfer brings it there."""
        if held.sharding == wanted.sharding:
            return slot
        if held.type != wanted.type:
            raise _ragged(name, held, wanted)
        key = (name, held.sharding, wanted.sharding)
        if key not in self._transfers:
            self._transfers[key] = len(self._sent)
            self._sent.append(self._transfer(name, held, wanted, part))
        target = self._slot()
        self._steps.append(Send(self._transfers[key], slot, target, action))
        return target

    def _transfer(self, name: str, held: Port, wanted: Port, part: int) -> Transfer:
        value = self.parted.crossing.get(name)
        producers = self.graph.producers()
        node = None if value is None else producers.get(value)
        graph = self.cutters[part].graph if part in self.cutters else self.graph
        uses = {v.name: who for v, who in first_uses(graph).items() if v.name}
        cause = Cause(
            name,
            self._described(held.sharding),
            self._described(wanted.sharding),
            uses.get(name, f"output '{name}'"),
        )
        made = Transfer(
            held.type,
            held.sharding,
            wanted.sharding,
            cause,
            node.phase if node else Phase.forward,
            node.scope if node else name,
            str(node.source) if node and node.source else "",
        )
        seconds, instead = transfer_seconds(made, self.hardware), relayed(made, self.hardware)
        return replace(made, cause=replace(cause, seconds=seconds, emulated=instead))

    def _described(self, sharding: Sharding) -> str:
        on = coarse(sharding.mesh)
        names = [part.name for part in self.placement.parts if part.mesh == on]
        return f"{sharding.describe()} on {names[0] if names else on}"

    # -------------------------------------------------------------- ends

    def _input_port(self, value: Value) -> Port:
        """Return how an input of the plan arrives: as the first part that needs it takes it."""
        if value.name in self.arriving:
            return Port(value.name, value.type, self.arriving[value.name])
        for cutter in self.cutters.values():
            for own in cutter.graph.inputs:
                if own.name == value.name:
                    return cutter.arriving_port(own)
        rest = self.placement.parts[self.placement.rest].mesh
        return Port(value.name, value.type, Sharding.replicated(rest, value.type.rank))

    def _output(self, name: str) -> tuple[Port, int]:
        part = self.parted.made_on[name]
        cutter = self.cutters[part]
        port, slot = cutter.leaving_port(name), self._resolve(cutter.leaving(name), None, None)
        wanted = self.leaving.get(name)
        if wanted is None:
            return replace(port, name=name), slot
        goal = Port(name, port.type, wanted)
        return goal, self._moved(name, port, slot, goal, part, None)


def _ragged(name: str, held: Port, wanted: Port) -> PlanError:
    return PlanError(
        f"pipeline cannot hand on '{name}'; one stage makes micro-batches of {held.type.shape}, "
        f"the next takes {wanted.type.shape}: a layer there needs the whole batch at once, or the "
        f"batch does not divide; use one micro-batch, or a batch that is a multiple of "
        f"micro-batches and replicas"
    )
