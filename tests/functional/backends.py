"""The backends these tests run on, each opened once for a mesh, and how numbers are compared."""

from __future__ import annotations

import numpy as np
import pytest

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE

EVERY = ["numpy", *BACKENDS]
__all__ = ["EVERY", "close", "every_backend", "floats", "opened"]
every_backend = pytest.mark.parametrize("name", EVERY)


def close(found: object, expected: object, dtype: str = "float32") -> None:
    """Compare numbers by the table of tolerances."""
    rtol, atol = TOLERANCE[dtype]
    np.testing.assert_allclose(np.asarray(found), expected, rtol=rtol, atol=atol)


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers, float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
