"""The steps of a plan of several stages, as far as they are the same for all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mithril.spi import Messages, Plan, StageRun, StageSend, Timetable, Transfer

from mithril_torch.program.module import Aliases
from mithril_torch.program.names import Names


@dataclass(eq=False)
class RankSteps:
    """What the ranks of a plan do, as far as it is the same for all of them.

    Args:
        plan: what runs.
        aliases: of each stage the inputs in whose memory outputs are made.
        first: number of the first step of the timetable among those of the text.
    """

    plan: Plan
    aliases: Sequence[Aliases]
    first: int

    @cached_property
    def table(self) -> Timetable:
        """The timetable."""
        return self.plan.timetable

    @cached_property
    def descriptions(self) -> list[str]:
        """What each step is, in the user's words."""
        return [self._describe(step) for step in self.table.steps]

    @cached_property
    def is_sending(self) -> bool:
        """Whether anything goes from one rank to another."""
        used = {step.transfer for step in self.table.steps if isinstance(step, StageSend)}
        return any(self.table.transfers[number].bytes for number in used)

    @cached_property
    def names(self) -> dict[int, str]:
        """The variable of each slot."""
        table, free = self.table, Names()
        found = {
            slot: free.reserve(port.name, slot)
            for port, slot in zip(table.inputs, table.given, strict=True)
        }
        wanted = {slot: port.name for port, slot in zip(table.inputs, table.given, strict=True)}
        for step in table.steps:
            if isinstance(step, StageSend):
                made = {step.target: wanted[step.source]}
            else:
                ports = self.plan.stages[step.stage].program.outputs
                made = {s: p.name for s, p in zip(step.outputs, ports, strict=True)}
            for slot, name in made.items():
                wanted[slot] = name if name.strip("%0123456789") else "part"
                found[slot] = free.reserve(wanted[slot], slot)
        return found | {index.slot: f"number_{index.value}" for index in table.indices}

    @cached_property
    def aliased_slots(self) -> frozenset[int]:
        """Slots that a stage lets grow, and that lie in memory which is not theirs alone."""
        accumulated: set[int] = set()
        own: set[int] = set()
        for step in self.table.steps:
            if isinstance(step, StageRun):
                stage_aliases = self.aliases[step.stage]
                accumulated.update(step.inputs[position] for position in stage_aliases)
                own.update(step.outputs[position] for position in stage_aliases.values())
        return frozenset(accumulated - own)

    @cached_property
    def messages(self) -> Messages:
        """Who takes which steps, and how long messages are under way."""
        return Messages(self.plan)

    def transfer(self, step: StageSend) -> Transfer:
        """Return what a step sends."""
        return self.table.transfers[step.transfer]

    def _describe(self, step: StageRun | StageSend) -> str:
        if isinstance(step, StageRun):
            name = self.plan.stages[step.stage].name
            return name if step.action is None else f"{step.action}, {name}"
        transfer = self.transfer(step)
        after = "" if step.action is None else f" of {step.action}"
        where = f" ({transfer.place})" if transfer.place else ""
        return f"send{after} of '{transfer.cause.value}'{where}"
