"""History: what a training said of itself, by step; numbers of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mithril.errors import OptionError, ShapeError, UnknownNameError, kind_of, listing, nearest

STEP, SECONDS, RATE = "step", "seconds", "samples_per_second"
OWN = (STEP, SECONDS, RATE)
"""Columns that are not metrics."""
End = Literal["steps", "batches", "callback", "interrupt"]
"""Why a training ended: after `steps`, with its batches, by a callback, by Ctrl-C."""


@dataclass(frozen=True)
class History:
    """The rows that a training logged.

    Args:
        rows: figures by name, each with its `step`.
        step: how many steps are done at the end, those before this training included.
        seconds: how long it took.
        end: why it ended: after `steps`, with its `batches`, by a `callback`, or an `interrupt`.

    >>> history = History(({"step": 10, "loss": 2.5}, {"step": 20, "loss": 2.0}), 20, 1.5, "steps")
    >>> history["loss"]
    {10: 2.5, 20: 2.0}
    """

    rows: tuple[Mapping[str, float], ...]
    step: int
    seconds: float
    end: End

    @property
    def names(self) -> tuple[str, ...]:
        """The figures that there are, in the order in which they were first seen."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row if name != STEP))

    def __getitem__(self, name: str) -> dict[int, float]:
        """Return a figure by step."""
        if name not in self.names:
            raise UnknownNameError(
                f"history has no '{name}'{nearest(name, self.names)}; names: {listing(self.names)}"
            )
        return {int(row[STEP]): row[name] for row in self.rows if name in row}

    def __repr__(self) -> str:
        return f"<history of {len(self.rows)} rows up to step {self.step}: {listing(self.names)}>"


def fetch(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return metrics as numbers; that waits for the devices.

    Args:
        metrics: numbers and arrays of one element, by name.
        prefix: what stands before each name.

    Raises:
        OptionError: one has the name of a column that is there anyway, or is no number.
        ShapeError: one has several elements.
    """
    return {f"{prefix}{name}": _fetch(f"{prefix}{name}", metrics[name]) for name in metrics}


def _fetch(name: str, value: Any) -> float:
    if name in OWN:
        raise OptionError(
            f"metric '{name}' has the name of a figure that every training has; give it another"
        )
    if getattr(value, "size", 1) != 1 and hasattr(value, "shape"):
        raise ShapeError(
            f"metric '{name}' has shape {tuple(value.shape)}; give one number, such as a mean"
        )
    try:
        return float(value.item() if getattr(value, "ndim", 0) else value)
    except (TypeError, ValueError):
        raise OptionError(
            f"metric '{name}' is {kind_of(value)}; give a number, or an array of one element"
        ) from None
