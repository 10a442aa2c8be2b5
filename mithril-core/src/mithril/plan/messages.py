"""Messages: how long they are under way where each device runs its own steps of a timetable.

A device starts to send and receive where the timetable has it, and waits for what it receives where
that is used first. It learns that a message has arrived from the first answer that its receiver
sends after having waited for it; until then it keeps what it sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from mithril.plan.plan import Plan
from mithril.plan.timetable import Run, Send, Transfer

Message = tuple[int, int]
"""What a step sends to a device: the position of the step, and the flat index of the device."""


@dataclass(eq=False)
class Messages:
    """What devices send one another in a plan of several stages.

    Args:
        plan: which.
    """

    plan: Plan
    _uses: dict[int, dict[int, int]] = field(default_factory=dict)

    def list_steps(self, device: int) -> list[int]:
        """Return the positions of the steps that a device takes part in."""
        steps = self.plan.timetable.steps
        return [n for n, step in enumerate(steps) if self._involves(step, device)]

    def find_first_use(self, device: int, position: int) -> int:
        """Return the position of the step at which a device waits for what a step brings it."""
        if device not in self._uses:
            self._uses[device] = {brought: at for at, brought in self._list_waits(device)}
        return self._uses[device].get(position, len(self.plan.timetable.steps))

    def find_answered(self, device: int) -> dict[int, list[Message]]:
        """Return what a device knows to have arrived, by the step that brings it the answer.

        What is in no list is kept to the end.

        Args:
            device: its flat index.
        """
        found: dict[int, list[Message]] = {}
        under_way: list[Message] = []
        steps, waits = self.plan.timetable.steps, dict[int, list[int]]()
        for at, brought in self._list_waits(device):
            waits.setdefault(at, []).append(brought)
        for position in self.list_steps(device):
            for brought in waits.get(position, ()):
                senders = {c.sender for c in self._transfer(brought).chunks if c.receiver == device}
                known = [
                    (sent, to)
                    for sent, to in under_way
                    if to in senders and self.find_first_use(to, sent) <= brought
                ]
                under_way = [message for message in under_way if message not in known]
                found[brought] = known
            if isinstance(steps[position], Send):
                under_way += [(position, other) for other in self.list_receivers(device, position)]
        return found

    def find_early(self, device: int) -> dict[int, list[int]]:
        """Return the steps in which a device only receives, by the run right before them.

        Args:
            device: its flat index.
        """
        found: dict[int, list[int]] = {}
        latest: list[int] = []
        for position in self.list_steps(device):
            if isinstance(self.plan.timetable.steps[position], Run):
                latest = found[position] = []
            elif self._only_receives(device, position):
                latest.append(position)
        return found

    def list_receivers(self, device: int, position: int) -> list[int]:
        """Return the other devices to which a device sends something in a step."""
        chunks = self._transfer(position).chunks
        to = (c.receiver for c in chunks if c.sender == device != c.receiver)
        return list(dict.fromkeys(to))

    def _only_receives(self, device: int, position: int) -> bool:
        """Return whether all that a device has to do with a step is to receive from others."""
        own = [c for c in self._transfer(position).chunks if device in (c.sender, c.receiver)]
        return all(c.receiver == device != c.sender for c in own)

    def _list_waits(self, device: int) -> Iterator[tuple[int, int]]:
        """Yield the steps at which a device waits, with the one that brings what it waits for."""
        coming: dict[int, int] = {}
        for position in self.list_steps(device):
            step = self.plan.timetable.steps[position]
            for slot in step.inputs if isinstance(step, Run) else (step.source,):
                if slot in coming:
                    yield position, coming.pop(slot)
            if isinstance(step, Send):
                coming[step.target] = position

    def _transfer(self, position: int) -> Transfer:
        step = self.plan.timetable.steps[position]
        assert isinstance(step, Send), "only a step that sends has messages"
        return self.plan.timetable.transfers[step.transfer]

    def _involves(self, step: Run | Send, device: int) -> bool:
        if isinstance(step, Run):
            return device in self.plan.stages[step.stage].devices
        transfer = self.plan.timetable.transfers[step.transfer]
        is_sender = any(piece.sender == device for piece in transfer.chunks)
        return is_sender or device in transfer.target.mesh.flat


__all__ = ["Message", "Messages"]
