"""Rows of a split dimension that other devices have: what a window that slides over it needs.

A window at the edge of a part reaches into the parts beside it. Devices send one another what it
meets there (a halo exchange), from as many devices as it reaches; where there are none, as at both
ends, stands a fill, as in the padding of a convolution or a pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from mithril.ir.op import Group, Shard
from mithril.ir.operand import apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import greater_equal, less, where
from mithril.ops.dynamic_slicing import DynamicSlice
from mithril.ops.shape import broadcast_to, concatenate
from mithril.ops.split_axis import gather_rows
from mithril.ops.windows import Padding
from mithril.types import Scalar, Shape

HALO = "rows beside the part"


def find_reaching(extents: Shape, stride: Shape, padding: Padding) -> list[int]:
    """Return the spatial dimensions in which windows meet rows beside those of their step.

    Args:
        extents: over how many rows windows reach, for each spatial dimension.
        stride: rows between windows, likewise.
        padding: rows of padding before and behind, likewise.
    """
    dims = zip(extents, stride, padding, strict=True)
    return [i for i, (extent, step, pads) in enumerate(dims) if extent > step or pads != (0, 0)]


def exchange_rows(rule: Rule, reaching: Iterable[int]) -> Rule:
    """Return the rule of an op whose devices exchange rows of some spatial dimensions."""
    return replace(rule, special=frozenset(f"t{i}" for i in reaching) - rule.whole)


def find_shared(reaching: Iterable[int], shard: Shard) -> list[int]:
    """Return those of some spatial dimensions that devices share."""
    return [i for i in reaching if shard.group(f"t{i}") is not None]


def put_pads(padding: Padding, i: int, pads: tuple[int, int]) -> Padding:
    """Return padding with other rows before and behind a spatial dimension."""
    return (*padding[:i], pads, *padding[i + 1 :])


def fetch(
    x: Any, i: int, shard: Shard, bounds: tuple[int, int], operand: int, fill: Scalar = 0
) -> Any:
    """Return rows of a split dimension around those of this device.

    Args:
        x: the part of this device [batch, channels, *spatial], with the fill in its padding.
        i: the spatial dimension; a number of rows of x belongs to each window along it.
        shard: where the part lies.
        bounds: from and to which row, counted from the first one of this part.
        operand: for `explain`: which operand of the op x is.
        fill: what stands before the first row of all devices, and behind the last one.

    Returns:
        [batch, channels, *spatial], with as many rows of the dimension as lie within the bounds.
    """
    axis, group = i + 2, shard.group(f"t{i}")
    assert group is not None, "a dimension of which rows are fetched is split"
    low, high = bounds
    rows, count = x.shape[axis], len(group.parts)
    if not _is_regular(group):
        padded = _gather_padded(x, axis, group, bounds, operand, fill)
        start: Any = shard.offset(f"t{i}")
        return apply_one(DynamicSlice((axis,), (high - low,)), padded, start + max(low, 0))
    pieces = []
    for away in range(low // rows, (high - 1) // rows + 1):
        before = away * rows
        piece = _cut(x, axis, max(low - before, 0), min(high - before, rows))
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


def _gather_padded(
    x: Any, axis: int, group: Group, bounds: tuple[int, int], operand: int, fill: Scalar
) -> Any:
    """Return the rows of all devices, and as many of the fill as bounds reach beyond them."""
    whole = gather_rows(x, axis, group, HALO, operand=operand)
    widths = max(0, -bounds[0]), max(0, bounds[1])
    shapes = [(*x.shape[:axis], width, *x.shape[axis + 1 :]) for width in widths]
    first, last = (broadcast_to(x._constant(fill, x.dtype), shape) for shape in shapes)
    return concatenate([first, whole, last], axis)


def windows_beside(extent: int, step: int, before: int) -> tuple[int, int]:
    """Return how many windows before a part, and behind it, meet its rows.

    Row s is met by windows t with 0 <= s + before - t * step < extent.

    Args:
        extent: over how many rows a window reaches.
        step: rows between windows.
        before: rows of padding before the first one.

    Returns:
        Two numbers of windows, of those before and of those behind.
    """
    return max(0, (extent - 1 - before) // step), -(-before // step)


def widen_gradient(
    x: Any, i: int, extent: int, step: int, before: int, shard: Shard
) -> tuple[Any, tuple[int, int]]:
    """Return all windows that meet rows of a part, and the padding that its rows then have.

    Args:
        x: the windows [batch, channels, *spatial] of a part; the operand 0 of the op.
        i: the spatial dimension.
        extent: see `windows_beside`.
        step: see `windows_beside`.
        before: see `windows_beside`.
        shard: where the part lies.
    """
    low, high = windows_beside(extent, step, before)
    pads = before + low * step, max(0, (high - 1) * step + extent - before)
    return fetch(x, i, shard, (-low, x.shape[i + 2] + high), 0), pads


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
        How a rule names the dimensions of both, sizes that it has to be given, and whole factors.
    """
    before: list[str] = []
    after: list[str] = []
    given: dict[str, int] = {}
    whole: list[str] = []
    for i, (size, count, step) in enumerate(zip(sizes, results, stride, strict=True)):
        is_shared = size == count * step and count > 1
        after.append(f"t{i}")
        if is_shared and step > 1:
            before.append(f"(t{i} r{i})")
            given[f"r{i}"] = step
            whole.append(f"r{i}")
        elif is_shared:
            before.append(f"t{i}")
        else:
            before.append(f"s{i}")
            whole += [f"s{i}", f"t{i}"]
    return before, after, given, whole


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(*(slice(None),) * axis, slice(start, stop))]


__all__ = [
    "exchange_rows", "fetch", "find_reaching", "find_shared", "put_pads", "spatial_dims",
    "widen_gradient", "windows_beside",
]  # fmt: skip
