"""From a plan of several stages to one text: functions for the stages, and a `run` for each rank.

A rank does what the plan's timetable says, leaving out what is not its own. It starts to send and
receive where the timetable has it, and waits for what it receives where that is used first; until
then it goes on. What it sent it lets go of once an answer shows that it arrived. As all ranks keep
to one order, none waits for what is never started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from mithril.spi import (
    Box,
    Chunk,
    Kernel,
    Mesh,
    Message,
    Plan,
    Port,
    Segment,
    Shape,
    Sharding,
    StageRun,
    StageSend,
    Timetable,
    Transfer,
    issue_transfer,
)
from mithril.spi.ops import SEND

from mithril_torch.kernels.expression import dtype
from mithril_torch.program.codegen_options import CodegenOptions, in_range
from mithril_torch.program.emit import indent
from mithril_torch.program.module import Module, ProgramText
from mithril_torch.program.module_scope import Line
from mithril_torch.program.names import comment, one_a_line, port_comment
from mithril_torch.program.rank_steps import RankSteps
from mithril_torch.program.runtime_library.point_to_point import SENDS

BETWEEN = Segment("")
"""What is between stages and messages, and not told."""


def write_plan(
    plan: Plan, users: Mapping[str, Kernel], codegen: CodegenOptions, only: int | None = None
) -> ProgramText:
    """Write a plan of several stages as text.

    Args:
        plan: what runs.
        users: kernel factories of the ops that users defined, by op name.
        codegen: how it is written besides what it computes.
        only: the rank that the text is for; for all of them if left out.
    """
    module = Module(users, codegen)
    aliases = []
    for number, stage in enumerate(plan.stages):
        title = f"{stage.name}, on devices {', '.join(map(str, stage.devices))}"
        with module.on_devices(stage.program.mesh, title):
            donated = plan.timetable.find_donatable(number)
            aliases.append(module.write_stage(f"stage_{number}", stage.program, donated))
    rank_steps = RankSteps(plan, aliases, len(module.steps))
    module.steps += rank_steps.descriptions
    if rank_steps.is_sending:
        ranks = list(range(plan.mesh.size))
        module.groups.append(
            Line(f"{SENDS} = make_group({SENDS!r}, {[ranks]}, cross_memory=False)")
        )
    for rank in range(plan.mesh.size) if only is None else [only]:
        written = _RankEmitter(rank_steps, rank, codegen, module)
        body = [*map(Line, written.microbatch_indices()), Line(""), Line("def run(inputs):")]
        body += indent(list(written.lines()))
        start = 0 if written.microbatch_indices() else 1
        module.blocks.append([Line(f"if rank == {rank}:"), *indent(body[start:])])
    return module.render()


def transfer_plan(mesh: Mesh, transfer: Transfer) -> Plan:
    """Return a plan that does nothing but bring a value from some devices to others.

    Args:
        mesh: all devices.
        transfer: what goes where.
    """
    held = Port("x", transfer.type, transfer.source)
    wanted = Port("x", transfer.arriving, transfer.target)
    table = Timetable((held,), (0,), (wanted,), (1,), (StageSend(0, 0, 1),), (transfer,))
    return Plan(mesh, (), table)


class _RankEmitter:
    """Writes what one rank does.

    Args:
        rank_steps: what all of them do.
        rank: which.
        codegen: how it is written.
        module: the text that it is a part of.
    """

    def __init__(
        self, rank_steps: RankSteps, rank: int, codegen: CodegenOptions, module: Module
    ) -> None:
        self._module = module
        self._rank_steps = rank_steps
        self._rank = rank
        self._codegen = codegen
        messages = rank_steps.messages
        self._steps = messages.list_steps(rank)
        self._early = messages.find_early(rank) if codegen.early else {}
        self._answered = messages.find_answered(rank)
        self._in_flight: dict[int, int] = {}  # slots on their way, and the steps that bring them
        self._sent: list[Message] = []  # what may be under way
        self._same: dict[int, int] = {}  # slots, and those whose very tensors they have
        table = rank_steps.table
        own = {s for p, s in zip(table.inputs, table.given, strict=True) if self._has(p.sharding)}
        self._available = own | {i.slot for i in table.indices if rank in i.mesh.flat}
        self._kept = {*table.given, *table.made, *(index.slot for index in table.indices)}

    def microbatch_indices(self) -> list[str]:
        """Return the lines that make the numbers of micro-batches, once."""
        own = {i.value for i in self._rank_steps.table.indices if self._rank in i.mesh.flat}
        return [
            f"number_{n} = torch.tensor({n}, dtype=torch.int32, device=device)" for n in sorted(own)
        ]

    def lines(self) -> Iterator[Line]:
        """Yield the body of the function."""
        yield from map(Line, self._emit_inputs())
        dead = self._last_uses()
        started = {position for found in self._early.values() for position in found}
        for position in self._steps:
            step = self._rank_steps.table.steps[position]
            if isinstance(step, StageRun):
                for early in self._early.get(position, ()):
                    yield from self._emit_transfer(early)
                yield from self._emit_run(step, position, dead[position])
            else:
                if position not in started:
                    yield from self._emit_transfer(position)
                for slot in dead[position]:
                    yield from self._emit_wait(slot)
                names = [self._name(s) for s in dead[position] if s in self._available]
                yield from map(Line, [f"del {', '.join(names)}"] if names else ())
            self._available.difference_update(dead[position])
        yield from self._emit_outputs()

    # ---------------------------------------------------------------- ends

    def _emit_inputs(self) -> Iterator[str]:
        table = self._rank_steps.table
        pairs = list(zip(table.inputs, table.given, strict=True))
        shown = [
            (self._name(slot), port_comment(port, port.sharding.mesh))
            if slot in self._available
            else ("_", f"{port.name}, on others")
            for port, slot in pairs
        ]
        return one_a_line("(", shown, ") = inputs") if shown else iter(())

    def _emit_outputs(self) -> Iterator[Line]:
        table = self._rank_steps.table
        for slot in table.made:
            yield from self._emit_wait(slot)
        for position, rank in self._sent:
            yield from self._emit_progress(position)
            yield Line(f"sent_{position}_{rank}.wait()", self._rank_steps.first + position)
        made = []
        taken = set(table.given)  # whose tensors the caller has, or gets as other results
        for port, slot in zip(table.outputs, table.made, strict=True):
            if slot not in self._available:
                made.append(("None", f"{port.name}, on others"))
                continue
            name, source = self._name(slot), self._find_source(slot)
            shown = f"{name}.view_as({name})" if source in taken else name
            made.append((shown, f"{port.name}: {port_comment(port, port.sharding.mesh)}"))
            taken.add(source)
        yield from map(Line, one_a_line("return [", made, "]") if made else ["return []"])

    def _find_source(self, slot: int) -> int:
        """Return the slot whose very tensor a slot has: the first of them."""
        while slot in self._same:
            slot = self._same[slot]
        return slot

    # ---------------------------------------------------------------- stages

    def _emit_run(self, step: StageRun, position: int, dead: Sequence[int]) -> Iterator[Line]:
        for slot in step.inputs:
            yield from self._emit_wait(slot)
        yield Line(comment(self._rank_steps.descriptions[position]))
        given = f"[{', '.join(self._name(slot) for slot in step.inputs)}]"
        freed = [
            self._name(s) for s in dict.fromkeys(step.inputs) if s in dead and s in self._available
        ]
        if freed:
            yield Line(f"given = {given}")
            yield Line(f"del {', '.join(freed)}")
            given = "given"
        made = [self._name(slot) for slot in step.outputs]
        call = f"stage_{step.stage}({given})"
        yield from self._emit_progress(position)
        yield from self._emit_in_range(f"[{', '.join(made)}] = {call}" if made else call, position)
        self._available.update(step.outputs)
        for slot in step.outputs:
            if slot in self._rank_steps.aliased_slots:
                yield Line(f"{self._name(slot)} = {self._name(slot)}.clone()")
        unused = [self._name(slot) for slot in step.outputs if slot in dead]
        rest = [*unused, *(["given"] if freed and self._codegen.compiled else [])]
        if rest:
            yield Line(f"del {', '.join(rest)}")

    # ---------------------------------------------------------------- messages

    def _emit_transfer(self, position: int) -> Iterator[Line]:
        """Write what sends the parts that others need, and what makes this rank's own."""
        step = self._rank_steps.table.steps[position]
        assert isinstance(step, StageSend), "only a step that sends has messages"
        transfer = self._rank_steps.transfer(step)
        source, target = self._name(step.source), self._name(step.target)
        pieces = [p for p in transfer.chunks if self._rank in (p.sender, p.receiver)]
        away = [p for p in pieces if p.receiver != self._rank]
        mine = [p for p in pieces if p.receiver == self._rank]
        if any(p.sender == self._rank for p in pieces):
            yield from self._emit_wait(step.source)
        if any(p.sender != p.receiver for p in pieces):
            yield Line(comment(self._rank_steps.descriptions[position]))
            yield from self._emit_progress(position)
            yield from self._emit_mark(position, is_wait=False)
        held = transfer.source.local_shape(transfer.type.shape)
        for piece in away:
            cut = f"{source}{_format_slice(piece.held, held)}"
            call = f"send({SENDS}, {cut}, {piece.receiver}, {position})"
            yield from self._emit_in_range(f"sent_{position}_{piece.receiver} = {call}", position)
            self._sent.append((position, piece.receiver))
        if not self._has(transfer.target):
            return
        shape = transfer.target.local_shape(transfer.arriving.shape)
        kept = f"{source}{_format_slice(mine[0].held, held)}" if mine else ""
        if len(mine) == 1 and _fills(mine[0].place, shape) and mine[0].sender == self._rank:
            yield Line(f"{target} = {kept}", self._rank_steps.first + position)
            if kept == source:
                self._same[step.target] = step.source
        else:
            yield from self._emit_assembly(target, source, transfer, mine, position)
        self._available.add(step.target)

    def _emit_assembly(
        self, target: str, source: str, transfer: Transfer, mine: Sequence[Chunk], position: int
    ) -> Iterator[Line]:
        """Write what puts a tensor together from parts, some of which are under way."""
        held = transfer.source.local_shape(transfer.type.shape)
        shape = transfer.target.local_shape(transfer.arriving.shape)
        covered = sum(piece.size for piece in mine) == prod(shape)
        made = f"torch.{'empty' if covered else 'zeros'}"
        whole = f"{made}({list(shape)}, dtype={dtype(transfer.type)}, device=device)"
        if len(mine) == 1 and covered:
            (piece,) = mine
            call = f"receive({SENDS}, {whole}, {piece.sender}, {position})"
            yield from self._emit_in_range(f"coming_{position} = {call}", position)
        else:
            yield Line(f"{target} = {whole}")
            for piece in mine:
                if piece.sender == self._rank:
                    part = f"{source}{_format_slice(piece.held, held)}"
                    yield Line(f"{target}{_format_index(piece.place)} = {part}")
            parts = [
                f"receive({SENDS}, {target}{_format_index(piece.place)}, "
                f"{piece.sender}, {position})"
                for piece in mine
                if piece.sender != self._rank
            ]
            if not parts:
                return
            call = f"PendingAssembly({target}, [{', '.join(parts)}])"
            yield from self._emit_in_range(f"coming_{position} = {call}", position)
        step = self._rank_steps.table.steps[position]
        assert isinstance(step, StageSend), "only what is sent is on its way"
        self._in_flight[step.target] = position

    def _emit_wait(self, slot: int) -> Iterator[Line]:
        """Write what waits for a value, and lets go of what was sent and must have arrived."""
        position = self._in_flight.pop(slot, None)
        if position is None:
            return
        yield from self._emit_progress(position)
        statement = f"{self._name(slot)} = coming_{position}.wait()"
        yield from self._emit_in_range(statement, position, "end of ")
        yield Line(f"del coming_{position}")
        for message in self._answered.get(position, ()):
            before, rank = message
            self._sent.remove(message)
            yield Line(f"sent_{before}_{rank}.wait()", self._rank_steps.first + before)
            yield Line(f"del sent_{before}_{rank}")

    # ---------------------------------------------------------------- words

    def _name(self, slot: int) -> str:
        return self._rank_steps.names[slot]

    def _has(self, sharding: Sharding) -> bool:
        return self._rank in sharding.mesh.flat

    def _emit_progress(self, position: int) -> Iterator[Line]:
        number = self._rank_steps.first + position
        if self._codegen.tracks_steps:
            yield Line(f"step[0] = {number}", number)

    def _emit_mark(self, position: int, *, is_wait: bool) -> Iterator[Line]:
        """Write what takes the time as messages begin, or go on."""
        step = self._rank_steps.table.steps[position]
        if isinstance(step, StageSend):
            transfer = self._rank_steps.transfer(step)
            segment = Segment(SEND, transfer.scope, transfer.phase, issue_transfer(transfer))
            devices = sorted(transfer.devices)
            yield from map(Line, self._module.mark(segment, is_wait=is_wait, devices=devices))

    def _emit_in_range(self, statement: str, position: int, which: str = "") -> Iterator[Line]:
        number = self._rank_steps.first + position
        yield from self._emit_mark(position, is_wait=True)
        if self._codegen.ranges:
            yield Line(in_range(which + self._rank_steps.descriptions[position]))
            statement = f"    {statement}"
        yield Line(statement, number)
        yield from map(Line, self._module.mark(BETWEEN))

    def _last_uses(self) -> dict[int, list[int]]:
        """Return for each step the slots that this rank does not need after it."""
        kept, found = set(self._kept), {}
        for position in reversed(self._steps):
            used = self._rank_steps.table.steps[position].slots
            found[position] = [slot for slot in dict.fromkeys(used) if slot not in kept]
            kept.update(used)
        return found


def _fills(place: Box, shape: Shape) -> bool:
    return all(cut.start == 0 and cut.stop == size for cut, size in zip(place, shape, strict=True))


def _format_slice(box: Box, shape: Shape) -> str:
    """Return an index that cuts a box out of a tensor of a shape; nothing if it is all of it."""
    return "" if _fills(box, shape) else _format_index(box)


def _format_index(box: Box) -> str:
    """Return an index for a box, which leaves no dimension out."""
    return f"[{', '.join(f'{cut.start}:{cut.stop}' for cut in box) or '...'}]"
