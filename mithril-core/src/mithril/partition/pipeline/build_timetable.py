"""Put the stage programs of all parts into one order: the timetable of a plan.

What runs once before the micro-batches comes first, layer by layer; then the actions of the
schedule in the order in which they start; then what runs once after them. What one part makes for
another is sent as soon as it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mithril.cost import Hardware, describe_relay, transfer_seconds
from mithril.cost.timeline import simulate
from mithril.errors import PlanError
from mithril.ir import Cause, Graph, Phase, Value
from mithril.mesh import Mesh, Sharding, coarse
from mithril.partition.naming import first_uses
from mithril.partition.pipeline.phases import When
from mithril.partition.pipeline.placement import Placement
from mithril.partition.pipeline.split import StageGraphs
from mithril.partition.pipeline.stage_programs import SlotRef, StageBuilder, StageProgram
from mithril.plan import Port, Stage
from mithril.plan.schedule import HALVES, Action, Work
from mithril.plan.timetable import Index, Run, Send, Timetable, Transfer
from mithril.sharding import UNSAID, Layout

Key = tuple[SlotRef, int | None]


@dataclass(eq=False)
class TimetableBuilder:
    """Everything the timetable is made of.

    Args:
        placement: the parts and the schedule.
        graph: the whole graph.
        stage_graphs: what goes from part to part.
        stage_builders: the stage programs' maker of each part.
        stage_programs: of all parts.
        layouts: what is said of inputs and outputs of the plan, by name.
        hardware: prices what is sent.
    """

    placement: Placement
    graph: Graph
    stage_graphs: StageGraphs
    stage_builders: Mapping[int, StageBuilder]
    stage_programs: Sequence[StageProgram]
    layouts: Mapping[str, Layout]
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
        stages = tuple(self._stage(stage_program) for stage_program in self.stage_programs)
        for value in self.graph.inputs:
            self._given[value.name] = (self._input_port(value), self._slot())
        for port in self._own_inputs():
            self._given[port.name] = (port, self._slot())
        self._run_once(When.before)
        for action in self._actions():
            self._act(action)
        self._run_once(When.after)
        outputs = [self._output(name) for name in self.graph.outputs]
        outputs += self._own_outputs()
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

    def _stage(self, stage_program: StageProgram) -> Stage:
        part = self.placement.parts[stage_program.of.part]
        when = {When.before: "before", When.after: "after"}.get(stage_program.of.when)
        name = f"{part.name} {stage_program.of.work.name.replace('_', ' ')}"
        if when is not None:
            name = f"{part.name} {when} {stage_program.of.layer}"
            if self.placement.microbatches == 1:
                name = f"{part.name} step {stage_program.of.layer}"
        return Stage(name, stage_program.program, part.mesh.flat)

    # -------------------------------------------------------------- order

    def _run_once(self, when: When) -> None:
        found = [
            (stage_program.of.layer, n)
            for n, stage_program in enumerate(self.stage_programs)
            if stage_program.of.when == when
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
        works = (action.work, *HALVES) if action.work == Work.backward else (action.work,)
        for number, stage_program in enumerate(self.stage_programs):
            stage = self.placement.parts[stage_program.of.part].stage
            if (
                stage_program.of.when == When.during
                and stage == action.stage
                and stage_program.of.work in works
            ):
                self._run(number, action.microbatch, action)

    def _run(self, number: int, m: int | None, action: Action | None) -> None:
        stage_program = self.stage_programs[number]
        inputs = tuple(self._incoming(ref, m, stage_program, action) for ref in stage_program.takes)
        outputs = []
        for ref in stage_program.gives:
            slot = self._slot()
            self._slots[self._key(ref, m)] = slot
            outputs.append(slot)
        self._steps.append(Run(number, inputs, tuple(outputs), action))
        for ref in stage_program.gives:
            if not ref.kind:
                for part, value in self._readers(ref):
                    self._resolve(SlotRef(part, value), m, action)

    def _readers(self, ref: SlotRef) -> Iterator[tuple[int, Value]]:
        """Yield where a value is needed on other parts."""
        own = self.stage_builders[ref.part]
        for name in own.names_of(ref):
            for part, stage_builder in self.stage_builders.items():
                value = stage_builder.received_inputs.get(name)
                if value is not None and part != ref.part:
                    yield part, value

    # -------------------------------------------------------------- slots

    def _slot(self) -> int:
        self._count += 1
        return self._count - 1

    def _key(self, ref: SlotRef, m: int | None) -> Key:
        if ref.microbatch is not None:
            ref, m = replace(ref, microbatch=None), ref.microbatch
        varies = not ref.kind and self.stage_builders[ref.part].varies(ref.value)
        return ref, m if varies else None

    def _incoming(
        self, ref: SlotRef | None, m: int | None, stage_program: StageProgram, action: Action | None
    ) -> int:
        if ref is None:
            assert m is not None, "only what runs for a micro-batch takes its number"
            key = stage_program.program.mesh, m
            if key not in self._indices:
                self._indices[key] = Index(self._slot(), *key)
            return self._indices[key].slot
        if ref.kind == "sum" and self._key(ref, m) not in self._slots:
            return self._slots[SlotRef(ref.part, ref.value, "zeros"), None]
        return self._resolve(ref, m, action)

    def _resolve(self, ref: SlotRef, m: int | None, action: Action | None) -> int:
        """Return the slot of a value where it is needed, brought there if need be."""
        if not ref.kind and ref.microbatch is None:
            ref = self.stage_builders[ref.part].ref(ref.value)
        key = self._key(ref, m)
        if key not in self._slots:
            self._slots[key] = self._bring(ref, m, action)
        return self._slots[key]

    def _bring(self, ref: SlotRef, m: int | None, action: Action | None) -> int:
        stage_builder = self.stage_builders[ref.part]
        port = stage_builder.arriving_port(ref.value)
        name = ref.value.name
        if name not in self.stage_graphs.crossing:
            return self._move(name, *self._given[name], port, ref.part, action)
        maker = self.stage_builders[self.stage_graphs.made_on[name]]
        source = maker.leaving(name)
        slot = self._resolve(source, m, action)
        return self._move(name, maker.leaving_port(name), slot, port, ref.part, action)

    # -------------------------------------------------------------- transfers

    def _move(
        self, name: str, held: Port, slot: int, wanted: Port, part: int, action: Action | None
    ) -> int:
        """Return the slot of a value as it is wanted; a transfer brings it there."""
        if held.sharding == wanted.sharding:
            return slot
        if held.type != wanted.type:
            raise _shape_error(name, held, wanted)
        key = (name, held.sharding, wanted.sharding)
        if key not in self._transfers:
            self._transfers[key] = len(self._sent)
            self._sent.append(self._transfer(name, held, wanted, part))
        target = self._slot()
        self._steps.append(Send(self._transfers[key], slot, target, action))
        return target

    def _transfer(self, name: str, held: Port, wanted: Port, part: int) -> Transfer:
        value = self.stage_graphs.crossing.get(name)
        producers = self.graph.producers()
        node = None if value is None else producers.get(value)
        graph = self.stage_builders[part].graph if part in self.stage_builders else self.graph
        uses = {v.name: who for v, who in first_uses(graph).items() if v.name}
        cause = Cause(
            name,
            self._describe(held.sharding),
            self._describe(wanted.sharding),
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
        seconds, instead = (
            transfer_seconds(made, self.hardware),
            describe_relay(made, self.hardware),
        )
        return replace(made, cause=replace(cause, seconds=seconds, emulated=instead))

    def _describe(self, sharding: Sharding) -> str:
        on = coarse(sharding.mesh)
        names = [part.name for part in self.placement.parts if part.mesh == on]
        return f"{sharding.describe()} on {names[0] if names else on}"

    # -------------------------------------------------------------- ends

    def _input_port(self, value: Value) -> Port:
        """Return how an input of the plan arrives: as the first part that needs it takes it."""
        existing = self.layouts.get(value.name, UNSAID).existing
        if existing is not None:
            return Port(value.name, value.type, existing)
        for stage_builder in self.stage_builders.values():
            for own in stage_builder.graph.inputs:
                if own.name == value.name:
                    return stage_builder.arriving_port(own)
        rest = self.placement.parts[self.placement.rest].mesh
        return Port(value.name, value.type, Sharding.replicated(rest, value.type.rank))

    def _output(self, name: str) -> tuple[Port, int]:
        part = self.stage_graphs.made_on[name]
        stage_builder = self.stage_builders[part]
        port, slot = (
            stage_builder.leaving_port(name),
            self._resolve(stage_builder.leaving(name), None, None),
        )
        wanted = self._leaving(name)
        if wanted is None:
            return replace(port, name=name), slot
        goal = Port(name, port.type, wanted)
        return goal, self._move(name, port, slot, goal, part, None)

    def _own_inputs(self) -> Iterator[Port]:
        """Yield what parts take that is no value of the graph: a state of theirs."""
        known = {value.name for value in self.graph.inputs}
        for maker in self.stage_builders.values():
            for value in maker.graph.inputs:
                if value.name not in known | maker.item.local.crossing:
                    yield maker.arriving_port(value)

    def _own_outputs(self) -> Iterator[tuple[Port, int]]:
        """Yield what parts make that is no value of the graph."""
        for maker in self.stage_builders.values():
            for name in maker.graph.outputs:
                if name not in self.graph.outputs and name not in maker.item.local.crossing:
                    slot = self._resolve(maker.leaving(name), None, None)
                    yield maker.leaving_port(name), slot

    def _leaving(self, name: str) -> Sharding | None:
        """Return how an output leaves: as asked for, or as the input arrives that it follows."""
        if any(name in terms for terms in self.placement.joined.values()):
            return None  # it is put into a stack from where it is made
        layout = self.layouts.get(name, UNSAID)
        if layout.follows is not None:
            return self._given[layout.follows][0].sharding
        return layout.leaves


def _shape_error(name: str, held: Port, wanted: Port) -> PlanError:
    return PlanError(
        f"pipeline cannot hand on '{name}'; one stage makes micro-batches of {held.type.shape}, "
        f"the next takes {wanted.type.shape}: a layer there needs the whole batch at once, or the "
        f"batch does not divide; use one micro-batch, or a batch that is a multiple of "
        f"micro-batches and replicas"
    )
