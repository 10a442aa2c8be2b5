"""How far a tuning is: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from mithril.option_checks import check_flag
from mithril.tuning.search import Candidate
from mithril.units import format_seconds


class Progress:
    """Shows how many configurations are done, the best so far, and what is measured.

    Args:
        wanted: whether a bar is shown; None for in a terminal.
    """

    def __init__(self, wanted: bool | None) -> None:
        self._is_shown = sys.stderr.isatty() if wanted is None else check_flag("progress", wanted)
        self._bar: Any = None
        self._task: Any = None
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the tuning has taken so far."""
        return time.monotonic() - self._start

    def __enter__(self) -> Self:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import Progress as RichProgress

            self._bar = RichProgress(console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("planning", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show_planned(self, total: int, done: int, best: Candidate | None) -> None:
        """Show how many configurations are planned or left out.

        Args:
            total: how many there are.
            done: how many of them.
            best: the best so far.
        """
        shown = "" if best is None or best.price is None else format_seconds(best.price.seconds)
        self._show(f"planning {shown}", total, done)

    def show_measured(self, total: int, done: int) -> None:
        """Show how many runs are measured."""
        self._show("measuring", total, done)

    def _show(self, what: str, total: int, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=what, total=total, completed=done)


__all__ = ["Progress"]
