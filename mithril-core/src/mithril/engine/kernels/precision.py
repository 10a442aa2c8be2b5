"""Which dtype a kernel computes in."""

from __future__ import annotations

from typing import Any

import numpy as np

from mithril.types import DType


def accumulator(dtype: DType) -> np.dtype[Any]:
    """Return the dtype to compute and to add up in: float32 for 16-bit floats.

    >>> accumulator(DType.bfloat16), accumulator(DType.int16)
    (dtype('float32'), dtype('int16'))
    """
    is_small = dtype.is_float and dtype.itemsize == 2
    return np.dtype(np.float32) if is_small else dtype.numpy
