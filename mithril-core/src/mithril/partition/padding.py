"""Sizes that do not divide: padding behind the parts, cut off and masked where it could be seen.

A dimension is cut by ceil-division, axis after axis (see `mithril.mesh.Sharding`), so every device
holds parts of one shape, and the padding lies behind each part. Moves over the mesh add it
(`stretch`) and remove it (`trim`); a reduction over such a dimension first replaces it by the
identity of the reduction (`mask`): selecting, not multiplying, because 0 times infinity is no zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithril.ir import Op, Tensor
from mithril.ops import Iota, Pad, broadcast_to, less, maximum, minimum, reshape, where
from mithril.types import DType, Scalar


@dataclass(frozen=True, slots=True)
class Extent:
    """Where the part of this device starts in a dimension, and how much of it is no padding."""

    start: Tensor
    count: Tensor


def extent(indices: Sequence[Tensor], counts: Sequence[int], size: int) -> Extent:
    """Return the extent of this device's part.

    Args:
        indices: the device's index over each axis that cuts the dimension, major first.
        counts: devices along each of these axes.
        size: global size of the dimension.
    """
    builder = indices[0].builder
    start: Any = builder.constant(0, DType.int32)
    stop: Any = builder.constant(size, DType.int32)
    for index, local in zip(indices, _nest(size, counts)[1:], strict=True):
        start = start + index * local
        stop = minimum(start + local, stop)
    return Extent(start, maximum(stop - start, 0))


def stretch(x: Tensor, dimension: int, counts: Sequence[int]) -> Tensor:
    """Return x with padding where cutting a dimension into parts, level after level, needs it."""
    sizes = _nest(x.shape[dimension], counts)
    for level, count in enumerate(counts):
        missing = sizes[level + 1] * count - sizes[level]
        if missing:
            groups = _blocks(x, dimension, sizes[level])
            after = tuple(missing if i == dimension + 1 else 0 for i in range(groups.ndim))
            none = (0,) * groups.ndim
            x = _join(_apply(Pad(none, after, none), groups), dimension)
    return x


def trim(x: Tensor, dimension: int, size: int, counts: Sequence[int]) -> Tensor:
    """Return x, parts of a dimension of this size set side by side, without their padding."""
    sizes = _nest(size, counts)
    for level in reversed(range(len(counts))):
        padded = sizes[level + 1] * counts[level]
        if padded > sizes[level]:
            groups = _blocks(x, dimension, padded)
            kept = (slice(None),) * (dimension + 1) + (slice(sizes[level]),)
            x = _join(groups[kept], dimension)
    return x


def mask(x: Tensor, dimension: int, count: Tensor, fill: Scalar) -> Tensor:
    """Return x with everything behind `count` elements of a dimension replaced."""
    (position,) = x.builder.apply(Iota((x.shape[dimension],), 0, DType.int32))
    shape = [1] * x.ndim
    shape[dimension] = x.shape[dimension]
    inside = broadcast_to(reshape(less(position, count), shape), x.shape)
    masked: Tensor = where(inside, x, x.builder.constant(fill, x.dtype))
    return masked


def identity_of(reduction: str, dtype: DType) -> Scalar:
    """Return the element that changes nothing: what padding must hold in a reduction.

    That of `top`, the largest elements in order, is what comes last: NaN, if there is one.
    """
    if dtype == DType.bool_:
        return reduction in ("prod", "min")
    if reduction in ("sum", "prod"):
        return int(reduction == "prod")
    if dtype.is_float:
        return {"max": -np.inf, "min": np.inf, "top": np.nan}[reduction]
    limits = np.iinfo(str(dtype))
    return int(limits.max if reduction == "min" else limits.min)


def _nest(size: int, counts: Sequence[int]) -> list[int]:
    """Return the size of a part at every level of cutting, the whole first."""
    sizes = [size]
    for count in counts:
        sizes.append(-(-sizes[-1] // count))
    return sizes


def _blocks(x: Tensor, dimension: int, size: int) -> Tensor:
    """Return x with a dimension cut into (blocks, size)."""
    before, after = x.shape[:dimension], x.shape[dimension + 1 :]
    blocks = x.shape[dimension] // size if size else 0
    cut: Tensor = reshape(x, (*before, blocks, size, *after))
    return cut


def _join(x: Tensor, dimension: int) -> Tensor:
    """Return x with a dimension and the one behind it made one."""
    both = x.shape[dimension] * x.shape[dimension + 1]
    whole: Tensor = reshape(x, (*x.shape[:dimension], both, *x.shape[dimension + 2 :]))
    return whole


def _apply(op: Op, x: Tensor) -> Tensor:
    return x.builder.apply(op, x)[0]
