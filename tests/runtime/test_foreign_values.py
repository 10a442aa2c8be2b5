"""Values of other libraries that NumPy cannot read are taken in all the same."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest


class Foreign:
    """An array of bfloat16 that NumPy cannot read, as PyTorch's: of a kind that DLPack knows."""

    def __init__(self, tensor: Any, gradient: bool = False) -> None:
        self.tensor, self.gradient = tensor, gradient

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError("this dtype is not known")

    def detach(self) -> Foreign:
        return Foreign(self.tensor)

    def __dlpack__(self) -> Any:
        return self.tensor.__dlpack__()


class Unreadable:
    """What says that it is an array, and is none."""

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise RuntimeError("no values")


def test_what_numpy_cannot_read_is_read_by_dlpack() -> None:
    torch = pytest.importorskip("torch")
    values = torch.arange(12.0).reshape(3, 4).bfloat16()
    for x in (values, values.T, values[:, ::2], values[0, 0], values[:0]):
        found = ml.NumpyBackend().array(Foreign(x, gradient=True))
        assert found.dtype == "bfloat16"
        np.testing.assert_array_equal(found.numpy().astype(np.float32), x.float().numpy())


def test_what_nobody_can_read_is_refused() -> None:
    text = "values are .*Unreadable that NumPy cannot read; no values; give an array of it"
    with pytest.raises(ml.ShapeError, match=text):
        ml.NumpyBackend().array(Unreadable())


def test_a_sparse_tensor_is_refused() -> None:
    torch = pytest.importorskip("torch")
    text = r"values are a torch\.Tensor that NumPy cannot read; .*to_dense"
    with pytest.raises(ml.ShapeError, match=text):
        ml.NumpyBackend().array(torch.eye(3).to_sparse())


@pytest.mark.parametrize(
    ("given", "dtype"), [(">f8", "float32"), (">i8", "int32"), (">f2", "float16")]
)
def test_dtypes_follow_whatever_the_order_of_bytes(given: str, dtype: str) -> None:
    found = ml.NumpyBackend().array(np.arange(3).astype(given))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy(), [0, 1, 2])


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_floats_become_narrower_ones_as_those_of_numpy_do() -> None:
    """A mask of -1e9 is -inf in float16."""
    values = [np.nan, np.inf, -1e9, 65519.0, 1e-300]
    found = ml.NumpyBackend().array(values, dtype="float16").numpy()
    np.testing.assert_array_equal(found, np.array([np.nan, np.inf, -np.inf, 65504, 0], np.float16))
    assert ml.NumpyBackend().array([1.7, -0.5], dtype="uint8").numpy().tolist() == [1, 0]
