"""A pipeline schedule as data: which device works on which stage and micro-batch, in which order.

The notation is that of PyTorch's pipelining: `2F0` is the forward of stage 2 for micro-batch 0, `B`
a whole backward, `I` and `W` its two halves, the gradients of the stage's input and of its weights.
A table has a line for each device, its actions separated by commas; transfers need not be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from mithril.errors import PlanError

_ACTION = re.compile(r"(?P<stage>\d+)(?P<work>F|B|I|W)(?P<microbatch>\d+)")
_OTHERS = re.compile(r"\d+((SEND|RECV)_[FB]\d+|UNSHARD|RESHARD|REDUCE_GRAD)")


class Work(StrEnum):
    """What a device does for a stage and a micro-batch."""

    forward = "F"
    backward = "B"
    input_gradient = "I"
    weight_gradient = "W"


HALVES = (Work.input_gradient, Work.weight_gradient)
"""What a backward is made of."""


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """A piece of work that a device does without a break.

    Args:
        stage: number of the stage, in the order of the model.
        work: what is done.
        microbatch: for which micro-batch.

    >>> str(Action(2, Work.forward, 0)), Action.read("3W1").work.name
    ('2F0', 'weight_gradient')
    """

    stage: int
    work: Work
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.work}{self.microbatch}"

    @staticmethod
    def read(text: str) -> Action:
        """Return the action that a text means.

        Raises:
            PlanError: it means none.
        """
        found = _ACTION.fullmatch(text)
        if found is None:
            raise PlanError(
                f"'{text}' is no action of a schedule; write stage, work and micro-batch, such as "
                f"0F3, 2B1, 2I1 or 3W1"
            )
        return Action(int(found["stage"]), Work(found["work"]), int(found["microbatch"]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """What each device does, in order.

    Args:
        name: of the schedule, for reports.
        rows: the actions of each device.
    """

    name: str
    rows: tuple[tuple[Action, ...], ...]

    @property
    def actions(self) -> Iterator[Action]:
        """Every action, one device after another."""
        return (action for row in self.rows for action in row)

    @property
    def stages(self) -> int:
        """How many stages there are."""
        return 1 + max((action.stage for action in self.actions), default=-1)

    @property
    def microbatches(self) -> int:
        """How many micro-batches there are."""
        return 1 + max((action.microbatch for action in self.actions), default=-1)

    @property
    def devices(self) -> dict[int, int]:
        """The device of each stage."""
        return {a.stage: device for device, row in enumerate(self.rows) for a in row}

    @property
    def lines(self) -> list[str]:
        """The actions of each device, as they stand in a table."""
        return [",".join(map(str, row)) for row in self.rows]

    def __str__(self) -> str:
        return "\n".join(self.lines)


def read_table(name: str, lines: Sequence[str]) -> Schedule:
    """Return the schedule of a table: a line for each device, its actions separated by commas.

    Transfers that PyTorch writes (`0SEND_F3`), and what it does to sharded parameters (`0UNSHARD`),
    are passed over: they follow from the actions. So are empty places, in which a device waits.

    Args:
        name: of the schedule, for reports.
        lines: of the table.

    Raises:
        PlanError: there is something else in it.

    >>> print(read_table("mine", ["0F0,0F1,,0B0,0B1", "1F0,1SEND_B0,1B0,1F1,1B1"]))
    0F0,0F1,0B0,0B1
    1F0,1B0,1F1,1B1
    """
    rows = []
    for number, line in enumerate(lines, start=1):
        cells = [cell.strip() for cell in line.split(",")]
        try:
            row = tuple(Action.read(c) for c in cells if c and not _OTHERS.fullmatch(c))
        except PlanError as error:
            raise PlanError(f"{error} (line {number} of schedule '{name}')") from error
        rows.append(row)
    return Schedule(name, tuple(rows))
