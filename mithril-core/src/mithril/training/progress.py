"""How far a training is: a bar on a terminal, a line for each row elsewhere."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from mithril.training.history import OWN, RATE

REFRESH = 0.1
"""Seconds between two looks of the bar."""


class Progress(Protocol):
    """Shows how far a training is."""

    def advance(self, step: int) -> None:
        """Take note of a step that is done."""

    def show(self, row: Mapping[str, float], left: float | None) -> None:
        """Show a row.

        Args:
            row: figures by name.
            left: predicted seconds to the end, if they can be predicted.
        """


@dataclass(frozen=True)
class NoProgress:
    """Shows nothing."""

    def advance(self, step: int) -> None:
        """Take note of a step."""

    def show(self, row: Mapping[str, float], left: float | None) -> None:
        """Leave a row aside."""


@dataclass(frozen=True)
class Lines:
    """Prints a line for each row.

    Args:
        steps: the last step, if it is known.
    """

    steps: int | None

    def advance(self, step: int) -> None:
        """Wait for a row."""

    def show(self, row: Mapping[str, float], left: float | None) -> None:
        """Print a row."""
        place = f"{int(row['step'])}" + ("" if self.steps is None else f"/{self.steps}")
        print("  ".join([f"step {place}", *describe(row, left)]), flush=True)


@dataclass
class Bar:
    """A bar that redraws itself.

    Args:
        bar: of rich.
        task: its number in the bar.
    """

    bar: Any
    task: Any
    moment: float = -math.inf

    def advance(self, step: int) -> None:
        """Move the bar, but not more often than it is seen."""
        now = time.monotonic()
        if now - self.moment >= REFRESH:
            self.moment = now
            self.bar.update(self.task, completed=step)

    def show(self, row: Mapping[str, float], left: float | None) -> None:
        """Show a row behind the bar."""
        texts = "  ".join(describe(row, left))
        self.bar.update(self.task, completed=int(row["step"]), figures=texts)


def describe(row: Mapping[str, float], left: float | None) -> list[str]:
    """Return a row as texts: metrics, samples a second, time left.

    >>> describe({"step": 10, "loss": 2.34567, "samples_per_second": 1234.5}, 75.2)
    ['loss 2.346', '1,234 samples/s', '0:01:15 left']
    """
    found = [f"{name} {value:.4g}" for name, value in row.items() if name not in OWN]
    if RATE in row:
        rate = row[RATE]
        found.append(f"{rate:,.0f} samples/s" if rate >= 10 else f"{rate:.2g} samples/s")
    return found if left is None else [*found, f"{timedelta(seconds=round(left))} left"]


@contextmanager
def open_progress(is_shown: bool, start: int, steps: int | None) -> Iterator[Progress]:
    """Give what shows how far a training is.

    Args:
        is_shown: whether anything is shown here.
        start: how many steps were done before.
        steps: the last step, if it is known.
    """
    if not is_shown:
        yield NoProgress()
    elif not sys.stdout.isatty():
        yield Lines(steps)
    else:
        from rich import progress as rich

        columns = (
            rich.TextColumn("step"), rich.MofNCompleteColumn(), rich.BarColumn(),
            rich.TextColumn("{task.fields[figures]}"),
        )  # fmt: skip
        with rich.Progress(*columns) as bar:
            task = bar.add_task("", total=steps, completed=start, figures="")
            yield Bar(bar, task)


__all__ = ["Bar", "Lines", "NoProgress", "Progress", "describe", "open_progress"]
