"""The backends as rows, and what another process prints of them, which loads modules of plugins.

That one starts each time that backends are listed: no more is imported here than it needs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass

from mithril.plugins.discover import BackendEntry, Status, api_text, discover


@dataclass(frozen=True, slots=True)
class Row:
    """A backend in the list, as JSON has it; None is what is not known."""

    name: str
    package: str
    package_version: str
    framework: str | None
    framework_version: str | None
    api: str | None
    status: Status
    note: str
    entry_point: str

    @staticmethod
    def of(entry: BackendEntry) -> Row:
        """Return the row of a backend that was judged."""
        framework = entry.framework
        return Row(
            entry.name,
            entry.package,
            entry.package_version,
            framework.name if framework else None,
            framework.installed if framework else None,
            api_text(entry.spec.api) if entry.spec else None,
            entry.status,
            entry.note,
            entry.point.value,
        )

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table."""
        unknown = "?" if self.api is None else "-"
        framework = f"{self.framework} {self.framework_version}"
        return (
            self.name,
            f"{self.package} {self.package_version}",
            framework if self.framework and self.framework_version else unknown,
            self.api or unknown,
            self.status.value,
            self.note,
        )


def print_loaded() -> None:
    """Print the backends as JSON; what plugins print as they are loaded goes to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        rows = [asdict(Row.of(entry)) for entry in discover()]
        answer.write(f"{json.dumps(rows)}\n")
        answer.flush()
        os.dup2(answer.fileno(), 1)


__all__ = ["Row", "print_loaded"]
