"""Every eager function of every installed backend, on split and on uneven arrays, against NumPy."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.testing.levels import first_of_each

from tests.conformance.engines import BACKENDS, PACKAGES, opened
from tests.profiles import quick
from tests.runtime.test_eager import CASES, ORACLE_ARGUMENTS, Case, check

EVEN, UNEVEN = {"a": 2, "b": 2}, {"a": 3, "b": 2}
FIRST = [id(case) for case in first_of_each(CASES, lambda case: case[0])]
"""Of each function, by identity: arrays are not compared."""


def in_quick(backend: str, mesh: dict[str, int], case: Case) -> bool:
    """Return whether it is the case's turn on a backend: kernels have tests of their own."""
    if id(case) not in FIRST or mesh != (EVEN if backend == "torch" else UNEVEN):
        return False
    return list(PACKAGES)[FIRST.index(id(case)) % len(PACKAGES)] == backend


def placed(backend: ml.Backend, x: object) -> object:
    """Return an array split along its first two dimensions, whether they divide or not."""
    if isinstance(x, np.ndarray):
        return backend.array(x, sharding=P(*backend.mesh.names[: x.ndim]))
    if isinstance(x, list) and any(isinstance(item, np.ndarray) for item in x):
        return [placed(backend, item) for item in x]
    return x


@quick(in_quick)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mesh", [EVEN, UNEVEN], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_eager_function(backend: str, mesh: dict[str, int], case: Case) -> None:
    name, expected, arguments, options = case
    on = opened(backend, **mesh)
    found = getattr(on, name)(*(placed(on, x) for x in arguments), **options)
    check(found, expected(*arguments[: ORACLE_ARGUMENTS.get(name)], **options))
