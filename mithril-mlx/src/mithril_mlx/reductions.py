"""Reductions of values that this process has, and of floats by libraries that lose a NaN."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx


def combine(parts: Sequence[mx.array], reduction: str) -> mx.array:
    """Return the reduction of values of this process; sums of 16-bit floats are in float32."""
    dtype = parts[0].dtype
    if reduction != "sum":
        choose = mx.maximum if reduction == "max" else mx.minimum
        total = parts[0]
        for part in parts[1:]:
            total = choose(total, part)
        return total
    small = dtype in (mx.bfloat16, mx.float16)
    total = parts[0].astype(mx.float32) if small else parts[0]
    for part in parts[1:]:
        total = total + part
    return total.astype(dtype)


_SIGNED = {2: mx.int16, 4: mx.int32, 8: mx.int64}


def reduce_as_integers(
    x: mx.array, reduction: str, reduce: Callable[[mx.array], mx.array]
) -> mx.array:
    """Reduce floats as integers of the same order where the extreme is asked for.

    The libraries compare floats as C does, and lose a NaN that is not the first; here it is the
    largest number of a max, and the least of a min.
    """
    is_float = mx.issubdtype(x.dtype, mx.floating)
    if reduction == "sum" or not is_float:
        return reduce(x)
    signed = _SIGNED[x.dtype.size]
    info = mx.iinfo(signed)
    extreme = mx.array(info.max if reduction == "max" else info.min, signed)
    bits = mx.where(mx.isnan(x), extreme, _flip_negatives(x.view(signed)))
    return _flip_negatives(reduce(bits)).view(x.dtype)


def _flip_negatives(bits: mx.array) -> mx.array:
    """Return the bits of floats in the order of integers, or back: negative ones are turned."""
    width = 8 * bits.dtype.size
    low = mx.array((1 << (width - 1)) - 1, bits.dtype)
    return bits ^ ((bits >> (width - 1)) & low)


def identity(dtype: mx.Dtype, reduction: str) -> Any:
    """Return what a reduction leaves alone; extremes are of integers here."""
    if reduction == "sum":
        return 0
    info = mx.iinfo(dtype)
    return info.min if reduction == "max" else info.max
