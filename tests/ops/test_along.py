"""Repeats, differences and grids take what NumPy's functions take, and say what NumPy's say."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.errors import ShapeError

X = np.array([[1, 4, 9], [2, 2, 5]], np.int32)
FLAGS = np.array([True, False, False, True])
ENDS: list[dict[str, Any]] = [
    {"prepend": 0}, {"append": -1}, {"prepend": 0, "append": 7}, {"prepend": 0, "axis": 0},
    {"prepend": [[7], [8]]}, {"append": np.int32(3)}, {"n": 2, "prepend": 0, "append": 1},
    {"n": 0, "prepend": 0},
]  # fmt: skip


@pytest.mark.parametrize("options", ENDS, ids=str)
def test_diff_takes_numbers_and_lists_at_its_ends(options: dict[str, Any]) -> None:
    x = ml.NumpyBackend().array(X)
    for found in (mnp.diff(x, **options), ml.jit(lambda x: mnp.diff(x, **options))(x)):
        np.testing.assert_array_equal(found.numpy(), np.diff(X, **options))
        assert found.dtype == "int32"


def test_diff_promotes_what_it_joins() -> None:
    x = ml.NumpyBackend().array(X)
    found = mnp.diff(x, prepend=0.5)
    assert found.dtype == "float32"
    np.testing.assert_array_equal(found.numpy(), np.diff(X, prepend=0.5))
    wide = mnp.diff(x, append=x[:, :1].astype("int64"))
    assert wide.dtype == "int64"


@pytest.mark.parametrize("n", [0, 1, 2])
def test_diff_of_booleans_is_whether_neighbours_differ(n: int) -> None:
    found = mnp.diff(ml.NumpyBackend().array(FLAGS), n)
    assert found.dtype == "bool"
    np.testing.assert_array_equal(found.numpy(), np.diff(FLAGS, n))


@pytest.mark.parametrize("repeats", [[], 2, 0])
def test_repeat_of_nothing(repeats: Any) -> None:
    found = mnp.repeat(ml.NumpyBackend().array(np.zeros((0, 2), np.float32)), repeats, 0)
    assert found.shape == (0, 2)


def test_repeat_takes_arrays_of_numbers_of_repeats() -> None:
    backend, counts = ml.NumpyBackend(), np.array([2, 0, 1], np.int64)
    x, expected = backend.array(X), np.repeat(X, counts, 1)
    for repeats in (counts, backend.array(counts.astype(np.int32)), tuple(counts)):
        np.testing.assert_array_equal(mnp.repeat(x, repeats, 1).numpy(), expected)
    one = backend.array(np.int32(2))
    np.testing.assert_array_equal(mnp.repeat(x, one, 0).numpy(), np.repeat(X, 2, 0))
    found = ml.jit(lambda x: mnp.repeat(x, counts.tolist(), 1))(x)
    np.testing.assert_array_equal(found.numpy(), expected)


def test_repeat_needs_repeats_that_are_known() -> None:
    x = ml.NumpyBackend().array(X[0])
    text = r"repeat's repeats are a traced int32\[3\], and its values decide the size of the result"
    with pytest.raises(ShapeError, match=text):
        ml.jit(mnp.repeat)(x, x)


@pytest.mark.parametrize("indexing", ["xy", "ij"])
def test_grids_of_vectors_lists_and_numbers(indexing: str) -> None:
    x = ml.NumpyBackend().array(X[0])
    found = mnp.meshgrid([1, 2], x, 3, indexing=indexing)
    expected = np.meshgrid([1, 2], X[0], 3, indexing=indexing)
    traced = ml.jit(lambda x: mnp.meshgrid([1, 2], x, 3, indexing=indexing))(x)
    for one, inside, other in zip(found, traced, expected, strict=True):
        np.testing.assert_array_equal(one.numpy(), other)
        np.testing.assert_array_equal(inside.numpy(), other)
        assert one.dtype == "int32"
    assert mnp.meshgrid(x, 0.5)[1].dtype == "float32"
