"""Schedules in files: tables as CSV."""

from __future__ import annotations

from pathlib import Path

from mithril.errors import OptionError
from mithril.plan.schedule import Schedule, read_table


def read_file(path: str) -> Schedule:
    """Return the schedule of a CSV file: a line for each device; its name is that of the file.

    Raises:
        OptionError: the file cannot be read, or is no text.
        PlanError: something else is in it.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise OptionError(f"schedule file '{path}' cannot be read; {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise OptionError(f"schedule file '{path}' is no text in UTF-8; save it as CSV") from error
    return read_table(Path(path).stem, lines)
