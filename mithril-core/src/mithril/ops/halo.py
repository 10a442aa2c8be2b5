"""Rows of a split dimension that other devices have: what a window that slides over it needs.

A window at the edge of a part reaches into the parts beside it. Devices send one another what it
meets there (a halo exchange), from as many devices as it reaches; where there are none, as at both
ends, stands a fill, as in the padding of a convolution or a pool.
"""

from __future__ import annotations

from typing import Any

from mithril.ir.op import Group
from mithril.ir.operand import apply_one
from mithril.ops.choice import greater_equal, less, where
from mithril.ops.dynamic_slicing import DynamicSlice
from mithril.ops.shape import broadcast_to, concatenate, reshape
from mithril.types import DType, Scalar, Shape

HALO = "rows beside the part"


def fetch(
    x: Any, axis: int, group: Group, bounds: tuple[int, int], operand: int, fill: Scalar = 0
) -> Any:
    """Return rows of a split dimension around those of this device.

    Args:
        x: the part of this device, with the fill in its padding.
        axis: the dimension.
        group: the devices that share it; a number of rows of x belongs to each of its positions.
        bounds: from and to which row, counted from the first one of this part.
        operand: for `explain`: which operand of the op x is.
        fill: what stands before the first row of all devices, and behind the last one.
    """
    low, high = bounds
    rows, count = x.shape[axis], len(group.parts)
    if not _is_regular(group):
        return _fetch_from_whole(x, axis, group, bounds, operand, fill)
    pieces = []
    for away in range(low // rows, (high - 1) // rows + 1):
        start = away * rows
        piece = _cut(x, axis, max(low - start, 0), min(high - start, rows))
        if away:
            pairs = tuple((i, i - away) for i in range(count) if 0 <= i - away < count)
            piece = _send(piece, group, pairs, away, operand, fill)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else concatenate(pieces, axis)


def _send(
    piece: Any,
    group: Group,
    pairs: tuple[tuple[int, int], ...],
    away: int,
    operand: int,
    fill: Scalar,
) -> Any:
    """Return the piece of the device that is so many away, the fill where there is none."""
    empty = piece._constant(fill, piece.dtype)
    if not pairs:
        return broadcast_to(empty, piece.shape)
    found = group.permute(piece, pairs, HALO, (operand,))
    if not fill:
        return found  # who gets nothing has zeros
    index: Any = group.index
    gets = less(index, len(group.parts) - away) if away > 0 else greater_equal(index, -away)
    return where(gets, found, empty)


def _is_regular(group: Group) -> bool:
    """Return whether a part begins where a whole one before it ends, but for parts without rows.

    Parts of parts need not: ten rows over two devices, and those of each over two, are 3, 2, 3, 2.
    """
    size, total = max(group.parts), sum(group.parts)
    expected = (max(0, min(size, total - i * size)) for i in range(len(group.parts)))
    return tuple(expected) == tuple(group.parts)


def _fetch_from_whole(
    x: Any, axis: int, group: Group, bounds: tuple[int, int], operand: int, fill: Scalar
) -> Any:
    """Return the rows out of those of all devices."""
    (low, high), rows, count = bounds, x.shape[axis], len(group.parts)
    gathered = group.gather(x, HALO, (operand,))
    order = (*range(1, axis + 1), 0, *range(axis + 1, gathered.ndim))
    joined = gathered.transpose(*order)
    joined = reshape(joined, (*x.shape[:axis], count * rows, *x.shape[axis + 1 :]))
    whole = group.trim(joined, axis)
    before, after = max(0, -low), max(0, high)
    shapes = [(*x.shape[:axis], width, *x.shape[axis + 1 :]) for width in (before, after)]
    first, last = (broadcast_to(x._constant(fill, x.dtype), shape) for shape in shapes)
    padded = concatenate([first, whole, last], axis)
    return apply_one(DynamicSlice((axis,), (high - low,)), padded, _start(x, group) + low + before)


def windows_beside(extent: int, step: int, before: int) -> tuple[int, int]:
    """Return how many windows before a part, and behind it, meet its rows.

    Row s is met by windows t with 0 <= s + before - t * step < extent.

    Args:
        extent: over how many rows a window reaches.
        step: rows between windows.
        before: rows of padding before the first one.
    """
    return max(0, (extent - 1 - before) // step), -(-before // step)


def widen_gradient(
    x: Any, i: int, extent: int, step: int, before: int, group: Group
) -> tuple[Any, tuple[int, int]]:
    """Return all windows that meet rows of a part, and the padding that its rows then have.

    Args:
        x: the windows [batch, channels, *spatial] of a part; the operand 0 of the op.
        i: the spatial dimension.
        extent: see `windows_beside`.
        step: see `windows_beside`.
        before: see `windows_beside`.
        group: the devices that share the dimension.
    """
    low, high = windows_beside(extent, step, before)
    pads = before + low * step, max(0, (high - 1) * step + extent - before)
    return fetch(x, i + 2, group, (-low, x.shape[i + 2] + high), 0), pads


def spatial_dims(
    sizes: Shape, results: Shape, stride: Shape
) -> tuple[list[str], list[str], dict[str, int], list[str]]:
    """Return the factors of spatial dimensions of an input and of the windows over it.

    Where each window steps over rows of its own, and all rows are stepped over, device i has the
    windows `t` of its part of the input, each with the `r` rows of a step. Other dimensions are
    whole.

    Args:
        sizes: spatial sizes of the input.
        results: numbers of windows.
        stride: of the windows.

    Returns:
        How a rule names the dimensions of both, sizes that it has to be told, and whole factors.
    """
    before: list[str] = []
    after: list[str] = []
    told: dict[str, int] = {}
    whole: list[str] = []
    for i, (size, count, step) in enumerate(zip(sizes, results, stride, strict=True)):
        is_shared = size == count * step and count > 1
        after.append(f"t{i}")
        if is_shared and step > 1:
            before.append(f"(t{i} r{i})")
            told[f"r{i}"] = step
            whole.append(f"r{i}")
        elif is_shared:
            before.append(f"t{i}")
        else:
            before.append(f"s{i}")
            whole += [f"s{i}", f"t{i}"]
    return before, after, told, whole


def _start(x: Any, group: Group) -> Any:
    """Return where the part of this device starts among all rows."""
    starts = [sum(group.parts[:i]) for i in range(len(group.parts))]
    index: Any = group.index
    found: Any = x._constant(0, DType.int32)
    for number, start in enumerate(starts[1:], 1):
        found = where(greater_equal(index, number), start, found)
    return found


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(*(slice(None),) * axis, slice(start, stop))]


__all__ = ["fetch", "spatial_dims", "widen_gradient", "windows_beside"]
