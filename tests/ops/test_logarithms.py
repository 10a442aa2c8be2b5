"""log2 and log10 of powers are their exponents, exactly; logaddexp of infinities has halves."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest

from tests.functional.backends import every_backend, opened

LOGARITHMS: dict[str, tuple[int, Any, Any]] = {
    "log2": (2, mnp.log2, np.log2), "log10": (10, mnp.log10, np.log10),
}  # fmt: skip


def powers(base: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the exponents of all powers of a base that are normal numbers, and the powers."""
    bounds = np.finfo(dtype)
    exact = {n: Fraction(base) ** n for n in range(-1100, 1100)}
    known = {
        n: x for n, x in exact.items() if Fraction(float(bounds.tiny)) <= x <= float(bounds.max)
    }
    return np.array(list(known)), np.array([float(x) for x in known.values()]).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_of_powers_are_their_exponents(name: str, dtype: Any) -> None:
    base, ours, _ = LOGARITHMS[name]
    exponents, x = powers(base, dtype)
    assert len(x) > 75
    np.testing.assert_array_equal(
        ours(ml.NumpyBackend().array(x, dtype=x.dtype)).numpy(), exponents
    )


@every_backend
@pytest.mark.parametrize("case", LOGARITHMS)
def test_backends_have_whole_logarithms_of_whole_powers(case: str, name: str) -> None:
    base, ours, _ = LOGARITHMS[case]
    exponents = np.arange(24 if base == 2 else 11)
    x = (float(base) ** exponents).astype(np.float32)
    backend = opened(name, x=2)
    np.testing.assert_array_equal(ours(backend.array(x)).numpy(), exponents)
    np.testing.assert_array_equal(ml.jit(ours)(backend.array(x)).numpy(), exponents)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_are_within_three_of_the_smallest_steps(name: str, dtype: Any) -> None:
    _, ours, exact = LOGARITHMS[name]
    rng, bounds = np.random.default_rng(0), np.finfo(dtype)
    low, high = np.log(np.float64(bounds.smallest_subnormal)), np.log(np.float64(bounds.max))
    x = np.concatenate([np.exp(rng.uniform(low, high, 4000)), rng.uniform(0.3, 4, 4000)])
    x = x.astype(dtype)
    found, wanted = (
        ours(ml.NumpyBackend().array(x, dtype=x.dtype)).numpy(),
        exact(x.astype(np.longdouble)),
    )
    steps = np.abs(found - wanted) / np.spacing(np.abs(wanted.astype(dtype)))
    assert steps.max() <= 3


def test_logaddexp_of_equal_infinities_has_half_of_the_gradient_for_each() -> None:
    backend, x = ml.NumpyBackend(), np.array([-np.inf, np.inf, 3.0], np.float32)
    slopes = ml.grad(lambda x, y: mnp.logaddexp(x, y).sum(), argnums=(0, 1))
    for slope in ml.jit(slopes)(backend.array(x), backend.array(x)):
        np.testing.assert_array_equal(slope.numpy(), [0.5, 0.5, 0.5])
