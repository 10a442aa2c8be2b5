"""The conformance kit: shows whether a backend makes what the NumPy engine makes on one device.

`check_backend` runs it, as `mithril backends check NAME` and `pytest --mithril-backend NAME` do.
The oracle is the NumPy engine on one device; the tolerances are the one table of Mithril's own
tests. Names are resolved when they are first used; nothing but the plugin of pytest needs pytest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mithril.testing.check import Check, Outcome, Result, Status
    from mithril.testing.checks import list_checks
    from mithril.testing.levels import Level
    from mithril.testing.report import Report
    from mithril.testing.run import check_backend
    from mithril.testing.tolerances import DIFFERENCES, TOLERANCE

_HOMES = {
    "Check": "check", "Outcome": "check", "Result": "check", "Status": "check",
    "list_checks": "checks", "Level": "levels", "Report": "report", "check_backend": "run",
    "DIFFERENCES": "tolerances", "TOLERANCE": "tolerances",
}  # fmt: skip

__all__ = [
    "DIFFERENCES", "TOLERANCE", "Check", "Level", "Outcome", "Report", "Result", "Status",
    "check_backend", "list_checks",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'mithril.testing' has no attribute '{name}'")
    found: object = getattr(import_module(f"mithril.testing.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
