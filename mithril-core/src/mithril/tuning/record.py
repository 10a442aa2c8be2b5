"""A record of measurements: a line of JSON each, so that a tuning which was stopped can go on.

What is measured is known by the plan that ran, and by where: the same plan on the same backend is
not run again; if it could not be run, it is. A line that was cut off when a process died is left
aside.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from mithril.errors import OptionError

VERSION = 1


@dataclass(frozen=True, slots=True)
class Measurement:
    """What measuring a plan gave.

    Args:
        seconds: of each run, warm.
        error: why there are none; empty if there are.
    """

    seconds: tuple[float, ...] = ()
    error: str = ""

    @property
    def median(self) -> float:
        """The middle of the seconds; infinite if there are none."""
        ordered = sorted(self.seconds)
        return ordered[len(ordered) // 2] if ordered else float("inf")


@dataclass(frozen=True, slots=True)
class Record:
    """The measurements that a file keeps.

    Args:
        path: of the file; None to keep none.
    """

    path: Path | None

    def load(self) -> dict[str, Measurement]:
        """Return what was measured before, by key.

        Raises:
            OptionError: the file cannot be read, or is of a newer version.
        """
        if self.path is None or not self.path.exists():
            return {}
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"record '{self.path}' cannot be read; {error}") from error
        found: dict[str, Measurement] = {}
        for line in lines:
            row: Mapping[str, object] = {}
            with suppress(ValueError):
                row = json.loads(line)
            if not isinstance(row, dict) or "key" not in row:
                continue
            if row.get("version") != VERSION:
                raise OptionError(
                    f"record '{self.path}' has version {row.get('version')!r}, and this Mithril "
                    f"reads {VERSION}; give another file"
                )
            found[row["key"]] = Measurement(tuple(row["seconds"]), row["error"])
        return found

    def add(self, key: str, kind: str, measured: Measurement) -> None:
        """Keep a measurement; it is on the disk when this returns.

        Args:
            key: of what was measured.
            kind: what it was, for readers.
            measured: what that gave.
        """
        if self.path is None:
            return
        row = {"version": VERSION, "key": key, "kind": kind, **asdict(measured)}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())


def make_key(plan: str, *where: str) -> str:
    """Return the key of a plan on a backend.

    Args:
        plan: as JSON.
        where: what else a measurement depends on.
    """
    return hashlib.sha256("\n".join([plan, *where]).encode()).hexdigest()[:24]


__all__ = ["Measurement", "Record", "make_key"]
