"""From a plan of several stages to one text: functions for the stages, and a `run` for each rank.

A rank does what the plan's timetable says, leaving out what is not its own. It starts to send and
receive where the timetable has it, and waits for what it receives where that is used first; until
then it goes on. What it sent it lets go of once an answer shows that it arrived. As all ranks keep
to one order, none waits for what is never started.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from mithril.engine.kernels.registry import Kernel
from mithril.mesh import Box, Mesh, Sharding
from mithril.plan import Plan, Port
from mithril.plan.timetable import Chunk, Run, Send, Timetable, Transfer
from mithril.types import Shape

from mithril_torch.acts import Acts, table_of
from mithril_torch.kernels.registry import dtype
from mithril_torch.labels import comment, one_a_line, port_comment
from mithril_torch.prelude.transfer import SENDS
from mithril_torch.source import Module, Written
from mithril_torch.style import Style, in_range
from mithril_torch.writer import Line, indented


def write_plan(
    plan: Plan, users: Mapping[str, Kernel], style: Style, only: int | None = None
) -> Written:
    """Write a plan of several stages as text.

    Args:
        plan: what runs.
        users: kernel factories of the ops that users defined, by op name.
        style: how it is written besides what it computes.
        only: the rank that the text is for; for all of them if left out.
    """
    module = Module(users, style)
    growths = []
    for number, stage in enumerate(plan.stages):
        said = f"{stage.name}, on devices {', '.join(map(str, stage.devices))}"
        with module.on_devices(stage.program.mesh, said):
            given_up = table_of(plan).given_up(number)
            growths.append(module.write_stage(f"stage_{number}", stage.program, given_up))
    acts = Acts(plan, growths, len(module.steps))
    module.steps += acts.described
    if acts.is_sending:
        ranks = list(range(plan.mesh.size))
        module.groups.append(Line(f"{SENDS} = make_group({SENDS!r}, {[ranks]})"))
    for rank in range(plan.mesh.size) if only is None else [only]:
        written = _Rank(acts, rank, style)
        body = [*map(Line, written.numbers()), Line(""), Line("def run(inputs):")]
        body += indented(list(written.lines()))
        start = 0 if written.numbers() else 1
        module.blocks.append([Line(f"if rank == {rank}:"), *indented(body[start:])])
    return module.finished()


def moving_plan(mesh: Mesh, transfer: Transfer) -> Plan:
    """Return a plan that does nothing but bring a value from some devices to others.

    Args:
        mesh: all devices.
        transfer: what goes where.
    """
    held = Port("x", transfer.type, transfer.source)
    wanted = Port("x", transfer.arriving, transfer.target)
    table = Timetable((held,), (0,), (wanted,), (1,), (Send(0, 0, 1),), (transfer,))
    return Plan(mesh, (), timetable=table)


class _Rank:
    """Writes what one rank does.

    Args:
        acts: what all of them do.
        rank: which.
        style: how it is written.
    """

    def __init__(self, acts: Acts, rank: int, style: Style) -> None:
        self._acts = acts
        self._rank = rank
        self._style = style
        self._steps = acts.of_rank(rank)
        self._coming: dict[int, int] = {}  # slots on their way, and the steps that bring them
        self._begun: set[int] = set()  # steps that are started before their place
        self._sent: list[tuple[int, int]] = []  # steps whose messages may be under way, and to whom
        table = acts.table
        own = {s for p, s in zip(table.inputs, table.given, strict=True) if self._has(p.sharding)}
        self._held = own | {i.slot for i in table.indices if rank in i.mesh.flat}
        self._lasting = {*table.given, *table.made, *(index.slot for index in table.indices)}

    def numbers(self) -> list[str]:
        """Return the lines that make the numbers of micro-batches, once."""
        own = {i.value for i in self._acts.table.indices if self._rank in i.mesh.flat}
        return [
            f"number_{n} = torch.tensor({n}, dtype=torch.int32, device=device)" for n in sorted(own)
        ]

    def lines(self) -> Iterator[Line]:
        """Yield the body of the function."""
        yield from map(Line, self._unpacked())
        dead = self._last_uses()
        for place, position in enumerate(self._steps):
            step = self._acts.table.steps[position]
            if isinstance(step, Run):
                yield from self._early(place)
                yield from self._run(step, position, dead[position])
            else:
                if position not in self._begun:
                    yield from self._move(step, position)
                for slot in dead[position]:
                    yield from self._waited(slot)
                names = [self._name(s) for s in dead[position] if s in self._held]
                yield from map(Line, [f"del {', '.join(names)}"] if names else ())
            self._held.difference_update(dead[position])
        yield from self._end()

    # ---------------------------------------------------------------- ends

    def _unpacked(self) -> Iterator[str]:
        table = self._acts.table
        pairs = list(zip(table.inputs, table.given, strict=True))
        shown = [
            (self._name(slot), port_comment(port, port.sharding.mesh))
            if slot in self._held
            else ("_", f"{port.name}, on others")
            for port, slot in pairs
        ]
        return one_a_line("(", shown, ") = inputs") if shown else iter(())

    def _end(self) -> Iterator[Line]:
        table = self._acts.table
        for slot in table.made:
            yield from self._waited(slot)
        for position, rank in self._sent:
            yield from self._noted(position)
            yield Line(f"sent_{position}_{rank}.wait()", self._acts.first + position)
        made = [
            (self._name(slot), f"{port.name}: {port_comment(port, port.sharding.mesh)}")
            if slot in self._held
            else ("None", f"{port.name}, on others")
            for port, slot in zip(table.outputs, table.made, strict=True)
        ]
        yield from map(Line, one_a_line("return [", made, "]") if made else ["return []"])

    # ---------------------------------------------------------------- stages

    def _run(self, step: Run, position: int, dead: Sequence[int]) -> Iterator[Line]:
        for slot in step.inputs:
            yield from self._waited(slot)
        yield Line(comment(self._acts.described[position]))
        given = f"[{', '.join(self._name(slot) for slot in step.inputs)}]"
        freed = [self._name(s) for s in dict.fromkeys(step.inputs) if s in dead and s in self._held]
        if freed:
            yield Line(f"given = {given}")
            yield Line(f"del {', '.join(freed)}")
            given = "given"
        made = [self._name(slot) for slot in step.outputs]
        call = f"stage_{step.stage}({given})"
        yield from self._noted(position)
        yield from self._ranged(f"[{', '.join(made)}] = {call}" if made else call, position)
        self._held.update(step.outputs)
        for slot in step.outputs:
            if slot in self._acts.grown:
                yield Line(f"{self._name(slot)} = {self._name(slot)}.clone()")
        unused = [self._name(slot) for slot in step.outputs if slot in dead]
        rest = [*unused, *(["given"] if freed and self._style.compiled else [])]
        if rest:
            yield Line(f"del {', '.join(rest)}")

    # ---------------------------------------------------------------- messages

    def _early(self, place: int) -> Iterator[Line]:
        """Write what starts to receive, before a stage runs, what is needed right after it."""
        for position in self._steps[place + 1 :] if self._style.early else ():
            step = self._acts.table.steps[position]
            if isinstance(step, Run):
                return
            transfer = self._acts.transfer(step)
            pieces = [p for p in transfer.chunks if self._rank in (p.sender, p.receiver)]
            if all(p.receiver == self._rank != p.sender for p in pieces):
                self._begun.add(position)
                yield from self._move(step, position)

    def _move(self, step: Send, position: int) -> Iterator[Line]:
        """Write what sends the parts that others need, and what makes this rank's own."""
        transfer = self._acts.transfer(step)
        source, target = self._name(step.source), self._name(step.target)
        pieces = [p for p in transfer.chunks if self._rank in (p.sender, p.receiver)]
        away = [p for p in pieces if p.receiver != self._rank]
        mine = [p for p in pieces if p.receiver == self._rank]
        if any(p.sender == self._rank for p in pieces):
            yield from self._waited(step.source)
        if any(p.sender != p.receiver for p in pieces):
            yield Line(comment(self._acts.described[position]))
            yield from self._noted(position)
        held = transfer.source.local_shape(transfer.type.shape)
        for piece in away:
            cut = f"{source}{_cut(piece.held, held)}"
            call = f"send({SENDS}, {cut}, {piece.receiver}, {position})"
            yield from self._ranged(f"sent_{position}_{piece.receiver} = {call}", position)
            self._sent.append((position, piece.receiver))
        if not self._has(transfer.target):
            return
        shape = transfer.target.local_shape(transfer.arriving.shape)
        kept = f"{source}{_cut(mine[0].held, held)}" if mine else ""
        if len(mine) == 1 and _fills(mine[0].place, shape) and mine[0].sender == self._rank:
            yield Line(f"{target} = {kept}", self._acts.first + position)
        else:
            yield from self._joined(target, source, transfer, mine, position)
        self._held.add(step.target)

    def _joined(
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
            yield from self._ranged(f"coming_{position} = {call}", position)
        else:
            yield Line(f"{target} = {whole}")
            for piece in mine:
                if piece.sender == self._rank:
                    part = f"{source}{_cut(piece.held, held)}"
                    yield Line(f"{target}{_place(piece.place)} = {part}")
            parts = [
                f"receive({SENDS}, {target}{_place(piece.place)}, {piece.sender}, {position})"
                for piece in mine
                if piece.sender != self._rank
            ]
            if not parts:
                return
            call = f"Joined({target}, [{', '.join(parts)}])"
            yield from self._ranged(f"coming_{position} = {call}", position)
        step = self._acts.table.steps[position]
        assert isinstance(step, Send), "only what is sent is on its way"
        self._coming[step.target] = position

    def _waited(self, slot: int) -> Iterator[Line]:
        """Write what waits for a value, and lets go of what was sent and must have arrived."""
        position = self._coming.pop(slot, None)
        if position is None:
            return
        step = self._acts.table.steps[position]
        assert isinstance(step, Send), "only what is sent is on its way"
        yield from self._noted(position)
        statement = f"{self._name(slot)} = coming_{position}.wait()"
        yield from self._ranged(statement, position, "end of ")
        yield Line(f"del coming_{position}")
        senders = {
            p.sender for p in self._acts.transfer(step).chunks if p.receiver == self._rank
        } - {self._rank}
        for sent in list(self._sent):
            before, rank = sent
            if rank in senders and self._acts.use(rank, before) <= position:
                self._sent.remove(sent)
                yield Line(f"sent_{before}_{rank}.wait()", self._acts.first + before)
                yield Line(f"del sent_{before}_{rank}")

    # ---------------------------------------------------------------- words

    def _name(self, slot: int) -> str:
        return self._acts.names[slot]

    def _has(self, sharding: Sharding) -> bool:
        return self._rank in sharding.mesh.flat

    def _noted(self, position: int) -> Iterator[Line]:
        number = self._acts.first + position
        if self._style.watched:
            yield Line(f"step[0] = {number}", number)

    def _ranged(self, statement: str, position: int, which: str = "") -> Iterator[Line]:
        number = self._acts.first + position
        if self._style.ranges:
            yield Line(in_range(which + self._acts.described[position]))
            statement = f"    {statement}"
        yield Line(statement, number)

    def _last_uses(self) -> dict[int, list[int]]:
        """Return for each step the slots that this rank does not need after it."""
        kept, found = set(self._lasting), {}
        for position in reversed(self._steps):
            used = self._acts.table.steps[position].slots
            found[position] = [slot for slot in dict.fromkeys(used) if slot not in kept]
            kept.update(used)
        return found


def _fills(place: Box, shape: Shape) -> bool:
    return all(cut.start == 0 and cut.stop == size for cut, size in zip(place, shape, strict=True))


def _cut(box: Box, shape: Shape) -> str:
    """Return an index that cuts a box out of a tensor of a shape; nothing if it is all of it."""
    return "" if _fills(box, shape) else _place(box)


def _place(box: Box) -> str:
    """Return an index for a box, which leaves no dimension out."""
    return f"[{', '.join(f'{cut.start}:{cut.stop}' for cut in box) or '...'}]"
