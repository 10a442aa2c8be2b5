"""Kernels that take a faster way than NumPy's own function give the same numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.engine.kernels.elementwise import erf_float32
from mithril.engine.kernels.rows import LONGEST, row_sum
from mithril.ir import Op
from mithril.types import TensorType, as_dtype

from tests.tolerances import TOLERANCE

ODD = [0.0, -0.0, 1.5, -2.5, np.inf, -np.inf, np.nan, 3.0]
DTYPES = ["bool", "int8", "uint16", "int32", "uint64", "bfloat16", "float16", "float32", "float64"]


def run(op: Op, *arrays: np.ndarray):
    types = [TensorType(x.shape, as_dtype(x.dtype)) for x in arrays]
    return KERNELS[op.name](op, types, np)(*arrays)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8)


def odd_values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    dtype = as_dtype(name)
    values = np.random.default_rng(seed).choice(ODD, shape)
    if not dtype.is_float:
        values = np.nan_to_num(np.abs(values), nan=7, posinf=100)
    return values.astype(dtype.numpy)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize(
    "shapes", [((6, 8),) * 3, ((6, 8), (8,), (6, 1)), ((6, 1), (6, 8), ()), ((8,), (), (6, 8))]
)
def test_where_chooses_the_very_bits(name: str, shapes: tuple[tuple[int, ...], ...]):
    condition = np.random.default_rng(0).random(shapes[0]) < 0.5
    x, y = odd_values(name, shapes[1], 1), odd_values(name, shapes[2], 2)
    found, expected = run(ops.Where(), condition, x, y), np.where(condition, x, y)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_where_with_zero_hides_what_is_not_finite_and_keeps_the_sign(zero: float):
    x, condition = np.array(ODD, np.float32), np.arange(len(ODD)) % 2 == 0
    other = np.asarray(zero, np.float32)
    found = run(ops.Where(), condition, x, other)
    np.testing.assert_array_equal(bits(found), bits(np.where(condition, x, other)))


def test_where_takes_views_with_any_strides():
    x, y = np.arange(12.0).reshape(3, 4).T, np.arange(24.0).reshape(4, 6)[:, ::2]
    condition = (np.arange(24) % 3 == 0).reshape(4, 6)[:, ::2]
    np.testing.assert_array_equal(run(ops.Where(), condition, x, y), np.where(condition, x, y))


def test_erf_is_as_near_as_float32_allows():
    near, far = np.linspace(-6, 6, 20001), np.geomspace(1e-30, 1e18, 200)
    x = np.concatenate([near, far, -far]).astype(np.float32)
    expected = np.array([math.erf(value) for value in x.astype(float)])
    with np.errstate(over="ignore"):  # as in a program
        found = erf_float32(x, np)
    assert np.abs(found - expected).max() < 2e-7
    small = np.abs(x) < 1
    worst = np.abs(found - expected)[small] / np.maximum(np.abs(expected[small]), 1e-30)
    assert worst.max() < 4e-7


def test_erf_of_what_is_not_finite():
    found = erf_float32(np.array([np.inf, -np.inf, np.nan, -0.0], np.float32), np)
    np.testing.assert_array_equal(found, np.array([1, -1, np.nan, -0.0], np.float32))


def test_cross_entropy_of_logits_laid_out_otherwise():
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((3, 4, 5))
    targets, g = rng.integers(0, 5, (3, 4)), rng.standard_normal((3, 4))
    turned = np.asfortranarray(plain)
    losses, total = run(ops.CrossEntropy(), turned, targets)
    expected, same = run(ops.CrossEntropy(), plain, targets)
    rtol, atol = TOLERANCE["float64"]
    np.testing.assert_allclose(losses, expected, rtol, atol)
    np.testing.assert_allclose(total, same, rtol, atol)
    slope = run(ops.CrossEntropyGradient(), turned, targets, total, g)
    chances = np.exp(plain - total[..., None]) - np.eye(5)[targets]
    np.testing.assert_allclose(slope, chances * g[..., None], rtol, atol)


@pytest.mark.parametrize("shape", [(3, 4, 5), (7,), (2, 0), (0, 3), (2, LONGEST + 1)])
def test_row_sum_is_the_sum(shape: tuple[int, ...]):
    x = np.random.default_rng(0).standard_normal(shape)
    found = row_sum(np)(x)
    assert found.shape == (*shape[:-1], 1)
    np.testing.assert_allclose(found, x.sum(axis=-1, keepdims=True), *TOLERANCE["float64"])


def test_row_sum_of_a_view():
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).transpose(2, 0, 1)
    found = row_sum(np)(x)
    np.testing.assert_allclose(found, x.sum(axis=-1, keepdims=True), *TOLERANCE["float64"])
