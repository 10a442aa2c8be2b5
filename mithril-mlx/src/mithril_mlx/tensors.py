"""NumPy arrays as MLX arrays and back, and the dtypes of both."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
from mithril.spi import DType, as_dtype


def mlx_dtype(dtype: DType | np.dtype[Any] | type) -> mx.Dtype:
    """Return MLX's dtype of the same meaning.

    >>> mlx_dtype(DType.bool_)
    mlx.core.bool
    """
    name = as_dtype(dtype).value
    found: mx.Dtype = mx.bool_ if name == "bool" else getattr(mx, name)
    return found


def dtype_of(array: mx.array) -> DType:
    """Return Mithril's dtype of the same meaning.

    Raises:
        ShapeError: there is none.
    """
    return as_dtype(str(array.dtype).removeprefix("mlx.core."))


def to_mlx(array: np.ndarray) -> mx.array:
    """Return a copy of an array of the host as MLX's, in the same dtype."""
    if array.dtype.name == "bfloat16":
        return mx.array(array.view(np.uint16)).view(mx.bfloat16)
    return mx.array(array, dtype=mlx_dtype(array.dtype))


@cache
def zero(dtype: DType) -> mx.array:
    """Return the scalar 0 of a dtype, always the same array."""
    return to_mlx(np.zeros((), dtype.numpy))


def to_numpy(array: mx.array | np.ndarray) -> np.ndarray:
    """Return an array as NumPy's, once it is computed; it shares memory on the host."""
    if isinstance(array, np.ndarray):  # what lies in the host arena
        return array
    if array.dtype == mx.bfloat16:
        return np.asarray(array.view(mx.uint16)).view(DType.bfloat16.numpy)
    return np.asarray(array)
