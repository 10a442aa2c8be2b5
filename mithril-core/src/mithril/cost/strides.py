"""Strides of views: whether another shape or order of elements needs memory of its own.

A view shares the memory of what it was made of. Its strides say how far apart in memory, in
elements, neighbours along each dimension are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from mithril.ir import Op
from mithril.ops.collective import TakeShard
from mithril.ops.shape import Broadcast, Reshape, Transpose
from mithril.ops.slicing import Slice
from mithril.types import Shape, TensorType

Strides = tuple[int, ...]


def in_order(shape: Shape) -> Strides:
    """Return the strides of elements that lie in row-major order.

    >>> in_order((2, 3, 4))
    (12, 4, 1)
    """
    products = accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)
    return tuple(products)[::-1] if shape else ()


def view(op: Op, x: TensorType, strides: Strides, result: TensorType) -> Strides | None:
    """Return the strides of the result of an op as a view of its operand; None if it is a copy.

    Args:
        op: one whose result may be a view.
        x: type of the operand.
        strides: of the operand.
        result: type of the result.

    >>> from mithril.types import DType
    >>> x, y = TensorType((2, 3), DType.float32), TensorType((3, 2), DType.float32)
    >>> view(Transpose((1, 0)), x, (3, 1), y), view(Reshape((3, 2)), x, (1, 2), y)
    ((1, 3), None)
    """
    if isinstance(op, Transpose):
        return tuple(strides[i] for i in op.order)
    if isinstance(op, Slice):
        return tuple(stride * step for stride, step in zip(strides, op.step, strict=True))
    if isinstance(op, Broadcast):
        new = len(result.shape) - len(x.shape)
        grown = zip(x.shape, strides, result.shape[new:], strict=True)
        return (0,) * new + tuple(s if size == wide else 0 for size, s, wide in grown)
    if isinstance(op, TakeShard):
        return strides
    if isinstance(op, Reshape):
        return lay_out(x.shape, strides, result.shape)
    return None


def lay_out(shape: Shape, strides: Strides, wanted: Shape) -> Strides | None:
    """Return strides for the same elements in another shape; None if that takes a copy.

    Args:
        shape: sizes of the dimensions.
        strides: their strides.
        wanted: other sizes of as many elements.
    """
    if 0 in shape:
        return in_order(wanted)
    joined: list[tuple[int, int]] = []  # size and stride, dimensions of size 1 left out
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if joined and joined[-1][1] == size * stride:
            joined[-1] = (joined[-1][0] * size, stride)
        else:
            joined.append((size, stride))
    return _cut(joined, wanted)


def _cut(joined: Sequence[tuple[int, int]], wanted: Shape) -> Strides | None:
    """Return strides of dimensions cut out of blocks, each of which is used up by some of them."""
    found: list[int] = []
    blocks = iter(reversed(joined))
    left, stride = 1, 1
    for size in reversed(wanted):
        if size > 1 and left == 1:
            left, stride = next(blocks)
        if left % size:
            return None
        found.append(stride)
        left, stride = left // size, stride * size
    return tuple(reversed(found))
