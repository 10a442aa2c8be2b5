"""What ops on matrices and on parts at positions mean: rows of `oracles.ORACLES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

MATRIX: dict[str, Callable[..., Any]] = {}


def oracle(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as the meaning of the op of its name."""
    MATRIX[function.__name__] = function
    return function


def _part(shape, part, axes, starts) -> tuple[slice, ...]:
    index = [slice(None)] * len(shape)
    for axis, start in zip(axes, starts, strict=True):
        first = max(0, min(int(start), shape[axis] - part[axis]))
        index[axis] = slice(first, first + part[axis])
    return tuple(index)


@oracle
def dynamic_slice(op, x, *starts):
    part = dict(zip(op.axes, op.sizes, strict=True))
    shape = [part.get(axis, size) for axis, size in enumerate(x.shape)]
    return x[_part(x.shape, shape, op.axes, starts)]


@oracle
def dynamic_update_slice(op, x, update, *starts):
    result = x.copy()
    result[_part(x.shape, update.shape, op.axes, starts)] = update
    return result
