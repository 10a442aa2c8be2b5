"""The two test profiles: `quick`, which `make test` runs, and `all`, which `make test-all` runs.

A test that proves more of what a quick one shows, or that takes long, bears the marker `slow` and
runs under `--all` only; a property test draws `scaled` numbers of examples. Nothing but the number
of cases differs: what a quick run tests it tests with the same tolerances.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

PROFILE = "MITHRIL_TEST_PROFILE"
"""The environment variable that names the profile; processes which tests start inherit it."""
EXAMPLES = {"quick": 25, "all": 100}
"""Examples of a property test that says no number."""
SHARE = EXAMPLES["all"] // EXAMPLES["quick"]


def runs_all() -> bool:
    """Return whether every test runs, with all of its examples."""
    return os.environ.get(PROFILE) == "all"


def scaled(examples: int) -> int:
    """Return how many examples a property test draws, which draws so many under `--all`."""
    return examples if runs_all() else max(1, examples // SHARE)


def slow(*values: Any, id: str | None = None) -> Any:
    """Return a case of a parametrized test that runs under `--all` only."""
    return pytest.param(*values, marks=pytest.mark.slow, id=id)


def first_of_each(cases: Iterable[Any], kind: Callable[[Any], Hashable]) -> list[Any]:
    """Return cases for a parametrized test: the first of each kind, and slow ones.

    Args:
        cases: what the test is given, one value or a tuple of values each.
        kind: what cases are equal in that show the same; the first of a kind runs in every profile.
    """
    met: set[Hashable] = set()
    found = []
    for case in cases:
        values = case if isinstance(case, tuple) else (case,)
        found.append(slow(*values) if kind(case) in met else pytest.param(*values))
        met.add(kind(case))
    return found
