"""Functions of NumPy take arrays, as `np.asarray` does, and give NumPy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened

VALUES = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": np.sum, "mean": lambda x: np.mean(x, axis=0), "max": lambda x: np.max(x, axis=(0, 1)),
    "std": np.std, "argmax": lambda x: np.argmax(x, 1), "reshape": lambda x: np.reshape(x, (2, 6)),
    "transpose": np.transpose, "dot": lambda x: np.dot(x.T, x), "norm": np.linalg.norm,
    "concatenate": lambda x: np.concatenate([x, x], axis=1), "stack": lambda x: np.stack((x, x)),
    "where": lambda x: np.where(x > 2, x, 0), "einsum": lambda x: np.einsum("ij,kj->ik", x, x),
    "split": lambda x: np.split(x, 2), "allclose": lambda x: np.allclose(x, x), "exp": np.exp,
    "clip": lambda x: np.clip(x, 2, 5), "cumsum": np.cumsum, "sort": lambda x: np.sort(x, axis=0),
    "out": lambda x: np.sum(x, axis=0, out=np.empty(3, np.float32)),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_those_of_numpy(name: str) -> None:
    x = ml.NumpyBackend(ml.Mesh(a=2)).array(VALUES, sharding=P("a"))
    found, expected = FUNCTIONS[name](x), FUNCTIONS[name](VALUES)
    assert type(found) is type(expected)
    for one, other in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_every_backend(backend: str) -> None:
    x = opened(backend, data=2).array(VALUES, sharding=P("data"))
    assert np.sum(x) == VALUES.sum()
    np.testing.assert_array_equal(np.concatenate([x, VALUES]), np.concatenate([VALUES, VALUES]))


def test_what_reads_no_values_brings_none_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    x = ml.NumpyBackend(ml.Mesh(a=2)).array(VALUES, dtype="bfloat16", sharding=P("a"))

    def refuse(self: object) -> None:
        raise AssertionError("nothing is to be copied")

    monkeypatch.setattr(ml.Array, "numpy", refuse)
    assert np.shape(x) == (4, 3)
    assert (np.ndim(x), np.size(x), np.size(x, 0)) == (2, 12, 4)
    assert np.zeros_like(x).dtype == x.dtype.numpy
    assert np.full_like(x, 3, dtype=np.int32).tolist() == [[3] * 3] * 4
    assert np.result_type(x) == x.dtype.numpy


def test_results_may_be_written_to_and_the_array_stays() -> None:
    x = ml.NumpyBackend().array(VALUES)
    for found in (np.transpose(x), np.reshape(x, -1), np.split(x, 2)[0]):
        found[...] = 0
    np.testing.assert_array_equal(x.numpy(), VALUES)


def test_nothing_is_written_to_an_array() -> None:
    x = ml.NumpyBackend().array(VALUES)
    with pytest.raises(ml.BackendError, match=r"np.sum cannot write to an array of Mithril, which"):
        np.sum(VALUES, axis=0, out=x[0])
    for write in (lambda: np.copyto(x, 1), lambda: np.fill_diagonal(x, 1), lambda: np.put(x, 0, 9)):
        with pytest.raises(ValueError, match=r"read-only|not writeable"):
            write()
    np.testing.assert_array_equal(x.numpy(), VALUES)


def test_of_several_arrays_and_numbers() -> None:
    x = ml.NumpyBackend(ml.Mesh(a=2)).array(VALUES, sharding=P("a"))
    assert isinstance(np.ones((4, 3), np.float32) + x, ml.Array), "operators stay on devices"
    assert np.array_equal(x, VALUES)
    assert np.sum([x[0, 0], x[1, 1]]) == 6
