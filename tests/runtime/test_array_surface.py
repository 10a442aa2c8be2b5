"""What an array offers Python: operators, indexing, iteration, conversion, printing."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

CLOSE = dict(zip(("rtol", "atol"), TOLERANCE["float32"], strict=True))
VALUES = np.arange(48, dtype=np.float32).reshape(4, 12) + 1


@pytest.fixture
def x() -> ml.Array:
    return ml.NumpyBackend(device_mesh=(2, 2)).array(VALUES, sharding=P("data", "model"))


ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv]
RELATIONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


@pytest.mark.parametrize("operation", [*ARITHMETIC, *RELATIONS])
def test_operators_are_elementwise_from_both_sides(
    operation: Callable[..., Any], x: ml.Array
) -> None:
    other = VALUES[::-1].copy()
    expected = operation(VALUES, other)
    np.testing.assert_allclose(operation(x, x.backend.array(other)).numpy(), expected, **CLOSE)
    np.testing.assert_allclose(operation(x, other).numpy(), expected, **CLOSE)
    np.testing.assert_allclose(operation(7, x).numpy(), operation(7, VALUES), **CLOSE)
    np.testing.assert_allclose(operation(x, 7).numpy(), operation(VALUES, 7), **CLOSE)


INTEGERS = [
    operator.floordiv, operator.mod, operator.and_, operator.or_, operator.xor, operator.lshift,
    operator.rshift,
]  # fmt: skip


@pytest.mark.parametrize("operation", INTEGERS)
def test_operators_of_integers(operation: Callable[..., Any]) -> None:
    left, right = np.arange(-6, 6, dtype=np.int32), np.tile(np.int32([1, 2, 3]), 4)
    backend = ml.NumpyBackend(device_mesh=(2,))
    x, y = (backend.array(a, tensor_split=(0,)) for a in (left, right))
    np.testing.assert_array_equal(operation(x, y).numpy(), operation(left, right))
    np.testing.assert_array_equal(operation(x, 3).numpy(), operation(left, 3))
    np.testing.assert_array_equal(operation(7, y).numpy(), operation(7, right))
    np.testing.assert_array_equal(operation(x, right).numpy(), operation(left, right))


def test_operators_of_one_operand(x: ml.Array) -> None:
    np.testing.assert_array_equal((-x).numpy(), -VALUES)
    np.testing.assert_array_equal((+x).numpy(), VALUES)
    np.testing.assert_array_equal(abs(-x).numpy(), VALUES)
    np.testing.assert_array_equal((~(x > 9)).numpy(), VALUES <= 9)
    np.testing.assert_array_equal(
        ((x > 9) & (x < 20) | (x == 1)).numpy(), (VALUES > 9) & (VALUES < 20) | (VALUES == 1)
    )
    np.testing.assert_array_equal((x**2).numpy(), VALUES**2)
    np.testing.assert_allclose((x @ x.T).numpy(), VALUES @ VALUES.T, **CLOSE)


PLACES = np.array([2, 0, 1, 2])
INDICES = [
    1, -2, slice(1, 3), slice(None, None, 2), slice(None, None, -1), slice(3, 0, -2), ..., None,
    (1, 5), (..., -1), (slice(None), None, 3), (slice(0, 0),), PLACES, (slice(None), PLACES),
    (..., PLACES), (slice(1, None), PLACES.reshape(2, 2)),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_that_of_numpy(index: Any, x: ml.Array) -> None:
    def put(item: Any) -> Any:
        return x.backend.array(item) if isinstance(item, np.ndarray) else item

    given = tuple(map(put, index)) if isinstance(index, tuple) else put(index)
    np.testing.assert_array_equal(x[given].numpy(), VALUES[index])


def test_a_numpy_array_may_be_the_index(x: ml.Array) -> None:
    np.testing.assert_array_equal(x[PLACES].numpy(), VALUES[PLACES])
    np.testing.assert_array_equal(x[:, PLACES].numpy(), VALUES[:, PLACES])


def test_numpy_on_the_left_gives_way(x: ml.Array) -> None:
    found = VALUES - x
    assert isinstance(found, ml.Array)
    assert found.sharding == x.sharding
    assert not found.numpy().any()


def test_arithmetic_in_place_binds_anew(x: ml.Array) -> None:
    before, y = x, x
    y += 1
    y *= 2
    y -= x
    assert y is not before
    np.testing.assert_array_equal(before.numpy(), VALUES)
    np.testing.assert_array_equal(y.numpy(), VALUES + 2)


def test_facts(x: ml.Array) -> None:
    assert (x.shape, x.ndim, x.size, len(x), x.dtype) == ((4, 12), 2, 48, 4, "float32")
    assert x.sharding.spec == P("data", "model")
    first = x.addressable_shards[0]
    assert first.device == "simulated cpu 0"
    assert first.index == (slice(0, 2), slice(0, 6))
    np.testing.assert_array_equal(first.data, VALUES[:2, :6])


def test_transposes(x: ml.Array) -> None:
    np.testing.assert_array_equal(x.T.numpy(), VALUES.T)
    np.testing.assert_array_equal(x.transpose().numpy(), VALUES.T)
    np.testing.assert_array_equal(x.transpose(0, 1).numpy(), VALUES)
    assert x.T.sharding.spec == P("model", "data")


def test_iteration_yields_rows_split_as_the_array_is(x: ml.Array) -> None:
    rows = list(x)
    assert len(rows) == 4
    for row, expected in zip(rows, VALUES, strict=True):
        assert isinstance(row, ml.Array)
        assert row.sharding.spec == P("model")
        np.testing.assert_array_equal(row.numpy(), expected)
    assert [int(n) for n in x.backend.arange(3)] == [0, 1, 2]
    with pytest.raises(ml.ShapeError, match=r"float32\[\] has no length; it is a scalar"):
        list(x.sum())


def test_an_array_is_equal_elementwise_and_hashed_by_identity(x: ml.Array) -> None:
    twin = x.backend.array(VALUES, sharding=x.sharding)
    assert (x == twin).numpy().all()
    assert len({x, x, twin}) == 2
    assert {x: "first"}[x] == "first"


def test_scalars_convert(x: ml.Array) -> None:
    backend = x.backend
    three = backend.array(3)
    assert (int(three), float(three), bool(three), three.item()) == (3, 3.0, True, 3)
    assert range(5)[three] == 3
    assert [0, 1, 2, 9][three] == 9
    assert not backend.zeros(1)
    with pytest.raises(ml.ShapeError, match=r"array bool\[4, 12\] has 48 elements; item\(\)"):
        bool(x > 1)


def test_numpy_reads_arrays(x: ml.Array) -> None:
    np.testing.assert_array_equal(np.asarray(x), VALUES)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, copy=True).flags.writeable


@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (7,), (100,), (6, 30), (2, 3, 40), (9, 8, 7)])
@pytest.mark.parametrize("sharding", [P(), P("data")])
def test_printing_shows_what_numpy_shows(shape: tuple[int, ...], sharding: P) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    backend = ml.NumpyBackend(device_mesh=(3,))
    x = backend.array(values, sharding=sharding if shape else P(), dtype="int32")
    shown = np.array2string(
        values.astype(np.int32), separator=", ", threshold=20, edgeitems=3
    ).replace(" ", "")
    text = repr(x).replace(" ", "")
    assert text.startswith(f"Array({shown},int32[")
    assert text.endswith(f"{x.sharding.describe()})".replace(" ", ""))
