"""What tests of plugins share: values, backends, errors, and forgetting what was brought."""

from __future__ import annotations

import sys

import mithril as ml
import numpy as np
import pytest
from mithril.cost.profiles.registry import read_profiles
from mithril.errors import BackendError
from mithril.ops.own_kernel import list_kernels

from tests.tolerances import TOLERANCE

BACKENDS = ("numpy", "jax", "torch", "mlx")
X = np.linspace(-2, 3, 8, dtype=np.float32)


def forget() -> None:
    """Forget what plugins have brought into this process."""
    for backend in BACKENDS:
        for op in list_kernels(backend):
            ml.remove_kernel(op, backend=backend)
    read_profiles.cache_clear()
    for name in [name for name in sys.modules if name.startswith("acme_")]:
        del sys.modules[name]


def open_on(name: str, *mesh: int) -> ml.Backend:
    options = {"executor": "lockstep"} if name == "torch" and mesh else {}
    return ml.open_backend(name, mesh or None, **options)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found, expected, rtol, atol)


def raised(call, kind: type[Exception] = BackendError) -> str:
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)
