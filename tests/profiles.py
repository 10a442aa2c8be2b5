"""The two test profiles: `quick`, which `make test` runs, and `all`, which `make test-all` runs.

A test that takes long, or proves more of what another one shows, bears the marker `slow` and runs
under `--all` only; where that depends on its parameters, it is `quick` on a condition. A property
test draws `scaled` numbers of examples. What XLA compiles it compiles as for users in the whole run
only (`conftest.py`).
Tolerances are the same. A whole run may be cut into parts, of which a test is in one (`--part`): CI
runs everything in `quick`, and one part of the whole run that changes from commit to commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from re import fullmatch
from zlib import crc32

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


@dataclass(frozen=True)
class Part:
    """One of the equal parts of a run, by which tests are chosen; cases of one test are apart.

    Args:
        number: from 0.
        count: of all parts.
    """

    number: int
    count: int

    @staticmethod
    def read(text: str) -> Part:
        """Return the part that is written as `1/4`, of 0/4 to 3/4.

        >>> Part.read("1/4")
        Part(number=1, count=4)
        """
        found = fullmatch(r"(\d+)/(\d+)", text)
        if not found or int(found[1]) >= int(found[2]):
            raise ValueError(f"part '{text}' is none; write 0/4, of 0/4 to 3/4")
        return Part(int(found[1]), int(found[2]))

    def has(self, name: str) -> bool:
        """Return whether a test is in it, in each process and on each machine alike.

        A document is in one part: its blocks go on with what those before them made.
        """
        unit, _, _ = name.partition("::line:")
        return crc32(unit.encode()) % self.count == self.number


def quick(condition: Callable[..., bool]) -> pytest.MarkDecorator:
    """Return a decorator by which a test is slow where a condition on its parameters is false.

    Args:
        condition: takes some of the parameters by their names.
    """
    return pytest.mark.quick.with_args(condition)


def is_slow(item: pytest.Function) -> bool:
    """Return whether a test runs under `--all` only: by itself, or with the parameters it has."""
    if item.get_closest_marker("slow"):
        return True
    conditions = [condition for mark in item.iter_markers("quick") for condition in mark.args]
    return not all(
        condition(*(item.callspec.params[name] for name in signature(condition).parameters))
        for condition in conditions
    )
