"""Angles, inverse hyperbolic functions, logarithms and lengths: at the edges, with gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest

INF = np.inf
EDGES = np.array(
    [-INF, -1e30, -1e5, -50, -3, -1.0001, -1, -0.9999999, -0.5, -1e-5, -1e-30, -0.0, 0.0, 1e-30,
     1e-5, 0.3, 0.5, 0.9999999, 1, 1.0000001, 1.5, 3, 50, 1e5, 1e30, 3e38, INF, np.nan],
    np.float32,
)  # fmt: skip
INSIDE = np.array([-0.999, -0.5, -1e-4, 0, 1e-4, 0.3, 0.7, 0.999], np.float32)
WIDE = np.array([-1e30, -5e3, -4000, -1, 0, 1, 4000, 5e3, 1e30], np.float32)
ABOVE = np.array([1.0001, 1.5, 4000, 4097, 1e30], np.float32)
ENDS, ONE = np.array([-1, 1], np.float32), np.ones(1, np.float32)
PLACES = np.array([-3, -1, -1e-3, 0, 1e-3, 1, 2], np.float32)
UNARY = ["arccos", "arccosh", "arcsin", "arcsinh", "arctanh", "log10", "log2"]
BINARY = ["arctan2", "hypot"]


def check_ulps(found: np.ndarray, exact: np.ndarray) -> None:
    """Compare with results of float64: within three of the smallest steps, and signs of zeros."""
    with np.errstate(all="ignore"):
        wanted = exact.astype(found.dtype)
        steps = np.abs(found.astype(np.float64) - wanted) / np.spacing(np.abs(wanted))
    is_same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    assert np.all(is_same | (steps <= 3)), (found, wanted)
    known = ~np.isnan(wanted)
    np.testing.assert_array_equal(np.signbit(found)[known], np.signbit(wanted)[known])


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number_at_the_edges(name: str) -> None:
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(EDGES.astype(np.float64))
        check_ulps(getattr(mnp, name)(ml.NumpyBackend().array(EDGES)).numpy(), exact)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers_at_the_edges(name: str) -> None:
    backend = ml.NumpyBackend()
    with np.errstate(all="ignore"):
        exact = getattr(np, name)(EDGES.astype(np.float64)[:, None], EDGES.astype(np.float64))
        found = getattr(mnp, name)(backend.array(EDGES[:, None]), backend.array(EDGES)).numpy()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(exact))
    check_ulps(found, np.where(np.abs(exact) < 1e-37, found, exact))  # but what has fewer digits


SLOPES: list[tuple[str, np.ndarray, Callable[[Any], Any]]] = [
    ("arcsin", INSIDE, lambda x: 1 / np.sqrt(1 - x * x)),
    ("arcsin", ENDS, lambda x: np.full(2, INF)),
    ("arccos", INSIDE, lambda x: -1 / np.sqrt(1 - x * x)),
    ("arccos", ENDS, lambda x: np.full(2, -INF)),
    ("arctanh", INSIDE, lambda x: 1 / (1 - x * x)),
    ("arctanh", ENDS, lambda x: np.full(2, INF)),
    ("arcsinh", WIDE, lambda x: 1 / np.hypot(1, x)),
    ("arccosh", ABOVE, lambda x: 1 / (np.sqrt(x - 1) * np.sqrt(x + 1))),
    ("arccosh", ONE, lambda x: np.full(1, INF)),
    ("log2", ABOVE, lambda x: 1 / (x * np.log(2))),
    ("log10", ABOVE, lambda x: 1 / (x * np.log(10))),
]


@pytest.mark.parametrize(("name", "x", "slope"), SLOPES)
def test_gradients_of_functions_of_one_number(
    name: str, x: np.ndarray, slope: Callable[[Any], Any]
) -> None:
    found = ml.jit(ml.grad(lambda x: getattr(mnp, name)(x).sum()))(ml.NumpyBackend().array(x))
    np.testing.assert_allclose(found.numpy(), slope(x.astype(np.float64)), rtol=2e-6)


@pytest.mark.parametrize(
    ("name", "by_y", "by_x"),
    [
        ("arctan2", lambda y, x: x / (x * x + y * y), lambda y, x: -y / (x * x + y * y)),
        ("hypot", lambda y, x: y / np.hypot(x, y), lambda y, x: x / np.hypot(x, y)),
    ],
)
def test_gradients_of_functions_of_two_numbers(
    name: str, by_y: Callable[..., Any], by_x: Callable[..., Any]
) -> None:
    """On axes and diagonals, too, and at 0 they are finite."""
    y, x = (part.ravel() for part in np.meshgrid(PLACES, PLACES))
    backend = ml.NumpyBackend()
    slopes = ml.jit(ml.grad(lambda y, x: getattr(mnp, name)(y, x).sum(), argnums=(0, 1)))
    found = slopes(backend.array(y), backend.array(x))
    is_origin = (x == 0) & (y == 0)
    for some, exact in zip(found, (by_y, by_x), strict=True):
        with np.errstate(invalid="ignore"):
            wanted = exact(y.astype(np.float64), x.astype(np.float64))
        np.testing.assert_allclose(some.numpy()[~is_origin], wanted[~is_origin], rtol=1e-5)
        assert np.isfinite(some.numpy()[is_origin]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", UNARY)
def test_every_float_dtype_is_kept(name: str, dtype: str) -> None:
    backend = ml.NumpyBackend()
    x = backend.array([0.25, 0.5, 0.75], dtype=dtype) + float(name == "arccosh")
    found = getattr(mnp, name)(x)
    exact = getattr(np, name)(x.numpy().astype(np.float64))
    assert found.dtype == dtype
    steps = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-51}
    np.testing.assert_allclose(found.numpy().astype(np.float64), exact, rtol=steps[dtype])


def test_dtypes_of_two_are_promoted_and_numbers_meet_them() -> None:
    backend = ml.NumpyBackend()
    x = backend.array([0.5, 2.0], dtype="float16")
    assert mnp.arctan2(x, x.astype("float32")).dtype == "float32"
    assert mnp.hypot(x, 1.0).dtype == "float16"
    np.testing.assert_allclose(mnp.arctan2(1.0, x).numpy(), np.arctan2(1, [0.5, 2]), rtol=1e-3)
