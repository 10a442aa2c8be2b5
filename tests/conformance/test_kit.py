"""The kit on the backends of this repository: `basic` in the quick profile, `full` under `--all`."""

from __future__ import annotations

from functools import cache

import pytest
from mithril.testing.check import Check
from mithril.testing.checks import list_checks
from mithril.testing.levels import Level
from mithril.testing.report import describe_result
from mithril.testing.run import Run

from tests.conformance.engines import BACKENDS, LOCKSTEP, name_of, options_of
from tests.profiles import quick, runs_all

LEVEL = Level.full if runs_all() else Level.basic
CHECKS = [check for check in list_checks() if check.level.rank <= LEVEL.rank]
ON_ONE_DEVICE = ("ops", "gradients")
SLOW_ON_JAX = {
    "precision/bfloat16",
    "precision/float16",
    "arrays/reshard",
    "models/GPT on one device",
}
"""Checks for which XLA compiles dozens of programs."""


@cache
def run_on(backend: str) -> Run:
    mesh = {"a": 2, "b": 2} if backend == "torch" else None  # a process for each device
    return Run(name_of(backend), LEVEL, mesh, options=options_of(backend))


@quick(lambda backend, check: backend != "jax" or check.id not in SLOW_ON_JAX)
@quick(lambda check: check.group != "leaks")
@quick(lambda backend, check: backend != LOCKSTEP or check.group not in ON_ONE_DEVICE)
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.id)
def test_kit(backend: str, check: Check) -> None:
    result = run_on(backend)(check)
    assert result.is_good, describe_result(result)
