"""What the functions over more primitive ops promise beyond the cases of their ops."""

from __future__ import annotations

import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from mithril import P, ops
from mithril.ir import Builder
from mithril.testing.arrays import floats, integers
from mithril.testing.evaluate import assert_close, type_of
from mithril.types import DType, TensorType

from tests.ops.test_gradients import gradient_by
from tests.ops.test_properties import call
from tests.tolerances import DIFFERENCES

CUBE = floats(2, 4, 6)
SEED = np.asarray(np.uint32(9))


# ------------------------------------------------------------------ variance


@pytest.mark.parametrize("axis", [None, 1, (0, -1)])
@pytest.mark.parametrize("correction", [0, 1])
def test_variance_is_numpys(axis, correction: int) -> None:
    options = {"axis": axis, "keepdims": True}
    for ours, numpys in ((ops.var, np.var), (ops.std, np.std)):
        found = call(lambda x, f=ours: f(x, correction=correction, **options), CUBE)
        assert_close(found, np.asarray(numpys(CUBE, ddof=correction, **options)))


def test_variance_of_integers_is_float32() -> None:
    found = call(ops.var, np.array([1, 2, 4], np.int32))
    assert_close(found, np.asarray(np.float32(14 / 9)))


def test_deviation_of_float16_does_not_overflow() -> None:
    x = (300 * floats(64)).astype(np.float16)  # squares are out of the range of float16
    assert (x.astype(np.float32) ** 2).max() > np.finfo(np.float16).max
    assert_close(call(ops.std, x), np.asarray(x.astype(np.float64).std()).astype(np.float16))


@pytest.mark.parametrize("function", [ops.var, ops.std])
def test_gradient_of_the_variance_is_its_slope(function) -> None:
    x, step = floats(5), 1e-6
    (found,) = gradient_by(function, x)
    slopes = [
        (call(function, x + step * unit) - call(function, x - step * unit)) / (2 * step)
        for unit in np.eye(5)
    ]
    rtol, atol = DIFFERENCES
    np.testing.assert_allclose(found, np.array(slopes), rtol=rtol, atol=atol)


# ------------------------------------------------------------------ products, bounds, order


@pytest.mark.parametrize(
    ("x", "expected"),
    [([2.0, 3.0, 4.0], [12, 8, 6]), ([0.0, 3.0, 4.0], [12, 0, 0]), ([0.0, 3.0, 0.0], [0, 0, 0])],
)
def test_gradient_of_a_product_is_that_of_the_others(x, expected) -> None:
    (found,) = gradient_by(ops.prod, np.array(x))
    assert_close(found, np.array(expected, float))


def test_clip_holds_between_bounds_and_lets_gradients_through_within() -> None:
    x = np.array([-2.0, -1.0, 0.5, 1.0, 3.0])
    for low, high in ((-1.0, 1.0), (None, 1.0), (-1.0, None), (2.0, 1.0)):
        found = call(lambda t, a=low, b=high: ops.clip(t, a, b), x)
        assert_close(found, np.clip(x, low, high))
    (found,) = gradient_by(lambda t: ops.clip(t, -1.0, 1.0), x)
    assert_close(found, np.array([0.0, 1.0, 1.0, 1.0, 0.0]))


def test_clip_keeps_what_is_not_a_number() -> None:
    assert np.isnan(call(lambda x: ops.clip(x, -1.0, 1.0), np.array([np.nan]))[0])


def test_sigmoid_is_finite_far_out() -> None:
    x = np.array([-1e4, 0.0, 1e4])
    assert_close(call(ops.sigmoid, x), np.array([0.0, 0.5, 1.0]))
    (found,) = gradient_by(ops.sigmoid, x)
    assert_close(found, np.array([0.0, 0.25, 0.0]))


def test_first_of_equal_elements_is_at_the_top() -> None:
    x = np.array([1.0, 3.0, 3.0, 2.0, 3.0])
    found = call(lambda t: ops.top_k(t, 3)[1], x)
    np.testing.assert_array_equal(found, np.array([1, 2, 4], np.int32))
    (found,) = gradient_by(lambda t: ops.top_k(t, 2)[0], x)
    assert_close(found, np.array([0.0, 1.0, 1.0, 0.0, 0.0]))


@pytest.mark.parametrize("dtype", ["float64", "float16", ml_dtypes.bfloat16], ids=str)
def test_not_a_number_is_sorted_last_in_both_orders(dtype: object) -> None:
    x = np.array([1.0, np.nan, 3.0], dtype)
    for descending, first in ((False, [1.0, 3.0]), (True, [3.0, 1.0])):
        found = call(lambda t, d=descending: ops.sort(t, descending=d), x)
        np.testing.assert_array_equal(found.astype(float), np.array([*first, np.nan]))


def test_k_may_be_a_numpy_integer() -> None:
    builder = Builder()
    x = builder.input(type_of(CUBE), "x")
    values, _ = ops.top_k(x, np.int64(2))
    assert [type(size) for size in values.shape] == [int, int, int]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_take_picks_along_any_dimension(axis: int) -> None:
    ids = np.array([[1, 0], [1, 1]], np.int32)
    found = call(lambda x, i: ops.take(x, i, axis), CUBE, ids)
    assert_close(found, np.take(CUBE, ids, axis))


# ------------------------------------------------------------------ dtypes and indices


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x // 2,
        lambda x: x % 2,
        lambda x: 7 // x,
        lambda x: 7 % x,
        lambda x: x**2,
        abs,
        lambda x: +x,
    ],
)
def test_operators_take_the_arrays_dtype_as_in_numpy(function, dtype: str) -> None:
    x = np.array([1, 2, 3], dtype)
    assert_close(call(function, x), function(x))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x & 6,
        lambda x: 6 | x,
        lambda x: x ^ 5,
        lambda x: ~x,
        lambda x: x << 2,
        lambda x: x >> 1,
        lambda x: 1 << x,
    ],
)
def test_bit_operators_take_the_arrays_dtype_as_in_numpy(function, dtype: str) -> None:
    x = np.array([0, 1, 3], dtype)
    assert_close(call(function, x), function(x))


@pytest.mark.parametrize(
    "index",
    [
        np.int64(1),
        (slice(None), np.int32(-1)),
        slice(np.int64(0), np.int64(2)),
        (Ellipsis, slice(None, None, np.int64(-1))),
        (None, slice(None, None, -2)),
    ],
    ids=str,
)
def test_indices_may_be_numpy_integers(index) -> None:
    x = integers(2, 4, below=9)
    assert_close(call(lambda t: t[index], x), x[index])


# ------------------------------------------------------------------ ids in padded parts


@pytest.mark.parametrize(
    ("mesh", "table", "ids"),
    [((4,), P(), P("data")), ((2, 4), P("data"), P("model")), ((2, 4), P(), P(("data", "model")))],
)
@pytest.mark.parametrize("shifted", [lambda i: i - 1, lambda i: 6 - i])
def test_ids_that_are_computed_are_in_range_in_the_padding(mesh, table, ids, shifted) -> None:
    """Six ids over four devices leave padding, whose ids become -1 or 6: no row has them."""
    x, at = floats(6, 5).astype(np.float32), np.array([1, 3, 5, 1, 2, 4], np.int32)
    backend = ml.NumpyBackend(device_mesh=mesh)
    found = ops.take(backend.array(x, sharding=table), shifted(backend.array(at, sharding=ids)))
    np.testing.assert_array_equal(found.numpy(), x[shifted(at)])


# ------------------------------------------------------------------ random numbers


def test_normal_numbers_have_the_moments_of_the_normal_distribution() -> None:
    found = call(lambda seed: ops.normal(seed, (400, 500)), SEED)
    assert found.dtype == np.float32
    wide = found.astype(np.float64)
    # Five standard deviations of each moment of 200000 numbers.
    for power, moment, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((wide**power).mean() - moment) < 5 * (spread / wide.size) ** 0.5
    assert np.isfinite(found).all()


def test_normal_numbers_depend_on_seed_and_salt() -> None:
    first = call(lambda seed: ops.normal(seed, (64,)), SEED)
    assert (first == call(lambda seed: ops.normal(seed, (64,)), SEED)).all()
    assert (first != call(lambda seed: ops.normal(seed, (64,), 1), SEED)).all()
    assert (first != call(lambda seed: ops.normal(seed, (64,)), SEED + np.uint32(1))).all()


def test_randint_is_even_over_its_range() -> None:
    found = call(lambda seed: ops.randint(seed, (700, 100), -3, 4), SEED)
    assert found.dtype == np.int32
    values, counts = np.unique(found, return_counts=True)
    np.testing.assert_array_equal(values, np.arange(-3, 4))
    assert abs(counts - 10000).max() < 500  # 5 standard deviations


@pytest.mark.parametrize(("low", "high"), [(-(2**31), -1), (0, 2**31 - 1), (5, 6)])
def test_randint_reaches_no_further_than_its_range(low: int, high: int) -> None:
    found = call(lambda seed: ops.randint(seed, (10000,), low, high), SEED).astype(np.int64)
    assert low <= found.min()
    assert found.max() < high
    assert found.max() - found.min() >= 0.99 * (high - 1 - low)


def test_random_functions_take_a_seed_that_is_traced() -> None:
    builder = Builder()
    seed = builder.input(TensorType((), DType.uint32), "seed")
    assert ops.normal(seed, (3,)).type == TensorType((3,), DType.float32)
    assert ops.randint(seed, (3,), 0, 2).type == TensorType((3,), DType.int32)
