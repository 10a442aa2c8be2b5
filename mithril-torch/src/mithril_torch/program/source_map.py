"""What steps and lines of a generated program are, in the user's words."""

from __future__ import annotations

from dataclasses import dataclass

from mithril_torch.program.module import ProgramText


@dataclass(frozen=True)
class ProgramSourceMap:
    """Names steps and lines of a program; see `executors.pool.faults.SourceMap`."""

    generated: ProgramText

    def step(self, number: int) -> str:
        """Return what a step is."""
        return f"step {number} ({self.generated.steps[number]})"

    def line(self, number: int) -> str:
        """Return what a line of the text does."""
        step = self.generated.lines.get(number)
        return f"line {number} of the program" if step is None else self.step(step)


__all__ = ["ProgramSourceMap"]
