"""What devices exchange that share the dimension along which an op works.

Each works on its part, and gathers from the others as little as decides the rest: one number a row,
or a few candidates. What is gathered is put together in the order of the parts, so that of equal
elements the first one stays the first; padding is cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril.ir.op import Group
from mithril.ops.choice import greater, less, where
from mithril.ops.index import iota
from mithril.ops.shape import concatenate, reshape, transpose


def gather_rows(
    x: Any,
    axis: int,
    group: Group,
    reason: str,
    counts: Sequence[int] | None = None,
    operand: int = 0,
) -> Any:
    """Return what all devices of a group have of a dimension, side by side.

    Args:
        x: what this device has.
        axis: the dimension.
        group: the devices.
        reason: for `explain`: how it is needed.
        counts: how much each device has that is no padding; by default its part.
        operand: for `explain`: which operand of the op x is.

    Returns:
        The shape of x, but for the dimension, which is as long as all counts together.
    """
    parts: Any = group.gather(x, reason, operands=(operand,))
    counts = group.parts if counts is None else counts
    if set(counts) == {x.shape[axis]}:
        order = (*range(1, axis + 1), 0, *range(axis + 1, x.ndim + 1))
        joined = (*x.shape[:axis], len(counts) * x.shape[axis], *x.shape[axis + 1 :])
        return reshape(transpose(parts, order), joined)
    before = (slice(None),) * axis
    return concatenate([parts[(i, *before, slice(n))] for i, n in enumerate(counts) if n], axis)


def gather_other_parts(x: Any, group: Group, reason: str, fill: Any, *, is_after: bool) -> Any:
    """Return the x of the devices before this one, and what fills the places of the others.

    Args:
        x: what this device has.
        group: the devices.
        reason: for `explain`: how it is needed.
        fill: what stands in the place of the others.
        is_after: whether to return those after this one instead.

    Returns:
        [devices, *shape of x].
    """
    parts: Any = group.gather(x, reason, operands=(0,))
    number = iota(parts, (len(group.parts), *(1,) * x.ndim))
    counts = greater(number, group.index) if is_after else less(number, group.index)
    return where(counts, parts, fill)


__all__: list[str] = []
