"""Parts of a tensor at positions that are known only when a program runs.

As in `jax.lax`, a position that lies too far out is moved in, so that the part is always whole. A
negative position does not count from the end: it is moved to 0.

A dimension that is taken in full may be split freely. Where one that is cut is split, each device
knows the offset of its part: of what is read it gives its own elements and zeros for the others,
which add up to the whole; of what is written it writes the elements that fall into its part.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import AnyOperand, Operand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.arithmetic import maximum, minimum
from mithril.ops.choice import keep_where, logical_and, where
from mithril.ops.elementwise import cast
from mithril.ops.index import iota
from mithril.ops.shape import broadcast_to, concatenate, normalize_axis
from mithril.types import DType, Shape, TensorType

Starts = int | Operand | Sequence[int | Operand]
"""A position, or one for each dimension."""


@register
@dataclass(frozen=True)
class DynamicSlice(Op):
    """A part of a tensor from given positions; operands (x, *starts).

    Args:
        axes: the dimensions that are cut; for each there is a start, an integer scalar.
        sizes: how much is taken of each of them.
    """

    name: ClassVar[str] = "dynamic_slice"
    axes: tuple[int, ...]
    sizes: tuple[int, ...]

    def infer(self, inputs: Types) -> Types:
        x = inputs[0]
        _check_starts(self.name, self.axes, inputs[1:])
        shape = list(x.shape)
        for axis, size in zip(self.axes, self.sizes, strict=True):
            if not 0 <= size <= x.shape[axis]:
                raise ShapeError(
                    f"dynamic_slice takes {size} elements along dimension {axis} of {x}; take from "
                    f"0 to {x.shape[axis]}"
                )
            shape[axis] = size
        return [x.with_shape(tuple(shape))]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, *starts = inputs
        g: Any = cotangents[0]
        if not x.dtype.is_float:
            return [None] * len(inputs)
        written = apply_one(DynamicUpdateSlice(self.axes), _zeros(x), g, *starts)
        return [written, *(None for _ in starts)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        whole, part, sizes = _factors(inputs[0], outputs[0], self.axes)
        cut = frozenset(f"c{axis}" for axis in self.axes) & set(sizes)
        starts = ((),) * len(self.axes)
        return Rule(sizes, (whole, *starts), (part,), whole=cut, linear=((0,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, 2 * outputs[0].nbytes)

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any
        x, *starts = inputs
        unsplit: list[tuple[int, int, Any]] = []
        for axis, size, start in zip(self.axes, self.sizes, starts, strict=True):
            offset: Any = shard.offset(f"s{axis}")
            if offset is None:
                unsplit.append((axis, size, start))
                continue
            at = _clamp(start, shard.whole(f"s{axis}") - size) - offset
            x = read_part(x, axis, at, size)
        if unsplit:
            axes, sizes, rest = zip(*unsplit, strict=True)
            x = shard.apply(DynamicSlice(axes, sizes), x, *rest)[0]
        return [x]


@register
@dataclass(frozen=True)
class DynamicUpdateSlice(Op):
    """A tensor with a part of it replaced from given positions; operands (x, update, *starts).

    Args:
        axes: the dimensions that the update does not fill; for each there is a start, an integer
            scalar.
        in_place: whether x is given up, and nobody else reads it, so that an engine may write into
            its memory. It is set when a program is lowered; see `engine.reuse`.
    """

    name: ClassVar[str] = "dynamic_update_slice"
    overwrites: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0),)
    axes: tuple[int, ...]
    in_place: bool = False

    def infer(self, inputs: Types) -> Types:
        x, update, *starts = inputs
        _check_starts(self.name, self.axes, starts)
        fits = x.rank == update.rank and all(
            part <= size if axis in self.axes else part == size
            for axis, (size, part) in enumerate(zip(x.shape, update.shape, strict=True))
        )
        if not fits or x.dtype != update.dtype:
            raise ShapeError(
                f"dynamic_update_slice cannot write {update} into {x}; the update must have its "
                f"dtype, as many dimensions, and none that is longer"
            )
        return [x]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, update, *starts = inputs
        g: Any = cotangents[0]
        if not x.dtype.is_float:
            return [None] * len(inputs)
        sizes = tuple(update.shape[axis] for axis in self.axes)
        kept = apply_one(DynamicUpdateSlice(self.axes), g, _zeros(update), *starts)
        written = apply_one(DynamicSlice(self.axes, sizes), g, *starts)
        return [kept, written, *(None for _ in starts)]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        whole, part, sizes = _factors(inputs[0], inputs[1], self.axes)
        cut = frozenset(f"c{axis}" for axis in self.axes) & set(sizes)
        starts = ((),) * len(self.axes)
        return Rule(sizes, (whole, part, *starts), (whole,), whole=cut, linear=((0, 1),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        # Where the memory is not given up, the tensor is copied.
        return Cost(0, 2 * inputs[1].nbytes if self.in_place else 2 * outputs[0].nbytes)

    def reuse(self, operands: Sequence[int]) -> DynamicUpdateSlice:
        return replace(self, in_place=bool(operands))

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any
        update: Any
        x, update, *starts = inputs
        local: list[Any] = []
        valid: Any = None
        for axis, start in zip(self.axes, starts, strict=True):
            offset: Any = shard.offset(f"s{axis}")
            if offset is None:
                local.append(start)
                continue
            size = update.shape[axis]
            at = _clamp(start, shard.whole(f"s{axis}") - size) - offset
            update, at, inside = _align(update, axis, at, x.shape[axis])
            valid = inside if valid is None else logical_and(valid, inside)
            local.append(at)
        if valid is not None:
            sizes = tuple(update.shape[axis] for axis in self.axes)
            (old,) = shard.apply(DynamicSlice(self.axes, sizes), x, *local)
            update = where(valid, update, old)
        return shard.apply(self, x, update, *local)


def read_part(x: Any, axis: int, start: Any, size: int) -> Any:
    """Return `size` elements from a start that counts from this part, zeros where it has none.

    Args:
        x: the part.
        axis: the dimension that is split.
        start: an int32 scalar; negative if it lies before the part.
        size: how many elements are read.
    """
    count = x.shape[axis]
    taken = min(size, count)
    at = _clamp(start, count - taken)
    found = apply_one(DynamicSlice((axis,), (taken,)), x, at)
    if size == 1:
        inside = logical_and(start >= 0, start < count)
        return keep_where(inside, found)
    # What meets the part in some elements only has them in other places. Padded by as much as is
    # wanted, every start is in range; one that does not meet the part at all is moved into zeros.
    padded = _pad_along(found, axis, size)
    return apply_one(DynamicSlice((axis,), (size,)), padded, start - at + size)


def _align(update: Any, axis: int, start: Any, count: int) -> tuple[Any, Any, Any]:
    """Return what a part of `count` elements takes of an update that starts somewhere.

    Args:
        update: what is written.
        axis: the dimension that is split.
        start: where the update starts, counted from the part; negative if that is before it.
        count: how long the part is.

    Returns:
        As much of the update as can fall into the part, where to write it, and which of its
        elements are really written.
    """
    size = update.shape[axis]
    taken = min(size, count)
    at = _clamp(start, count - taken)
    first = at - start  # the element of the update that stands at the place `at`
    moved = apply_one(
        DynamicSlice((axis,), (taken,)), _pad_along(update, axis, taken), first + taken
    )
    places = _count_along(update, axis, moved.shape) + first
    return moved, at, logical_and(places >= 0, places < size)


def _pad_along(x: Any, axis: int, width: int) -> Any:
    shape = tuple(width if i == axis else size for i, size in enumerate(x.shape))
    zeros = broadcast_to(x._constant(0, x.dtype), shape)
    return concatenate([zeros, x, zeros], axis)


def _count_along(like: Any, axis: int, shape: Shape) -> Any:
    """Return the index along a dimension, in a shape of ones elsewhere."""
    line = tuple(size if i == axis else 1 for i, size in enumerate(shape))
    return iota(like, line, axis)


def _clamp(start: Any, last: int) -> Any:
    """Return a start as int32 from 0 to the last one that is possible."""
    if start.dtype.itemsize < DType.int32.itemsize:  # which may not hold the last one
        start = cast(start, DType.int32)
    return cast(maximum(minimum(start, last), 0), DType.int32)


def _zeros(like: Any) -> Any:
    return broadcast_to(like._constant(0, like.dtype), like.shape)


def _factors(
    x: TensorType, part: TensorType, axes: tuple[int, ...]
) -> tuple[Any, Any, dict[str, int]]:
    """Return the factors of the dimensions of a tensor and of a part of it, and their sizes."""
    sizes: dict[str, int] = {}
    sides: tuple[list[tuple[str, ...]], list[tuple[str, ...]]] = ([], [])
    for axis, pair in enumerate(zip(x.shape, part.shape, strict=True)):
        letters = "sc" if axis in axes else "dd"
        for letter, size, dims in zip(letters, pair, sides, strict=True):
            name = f"{letter}{axis}"
            dims.append((name,) if size > 1 else ())
            if size > 1:
                sizes[name] = size
    return tuple(sides[0]), tuple(sides[1]), sizes


def _check_starts(what: str, axes: tuple[int, ...], starts: Types) -> None:
    if len(starts) != len(axes):
        raise ShapeError(
            f"{what} cuts {len(axes)} dimensions and has {len(starts)} starts; give one for each"
        )
    for start in starts:
        if start.rank or not start.dtype.is_integer:
            raise ShapeError(
                f"{what} starts at {start}; a start is an integer scalar, one for each dimension"
            )


# ------------------------------------------------------------------ functions over operands


def dynamic_slice(
    x: AnyOperand, starts: Starts, sizes: int | Sequence[int], axis: int | None = None
) -> AnyOperand:
    """Return a part of x of a fixed size, from positions that may be known only at run time.

    Args:
        x: any tensor.
        starts: for each dimension where the part starts: an integer, or an integer scalar of the
            same backend or trace. Below 0, or so large that the part would reach over the end, it
            is moved in.
        sizes: for each dimension how much is taken.
        axis: the one dimension that is cut, if only one is: `starts` and `sizes` are one number
            then.

    Returns:
        The dtype of x, in these sizes.

    Raises:
        ShapeError: a start is no integer scalar, a size is more than x has, or there are not as
            many of them as dimensions.

    >>> x, start = backend.array([1, 2, 3, 4, 5]), backend.array(1)
    >>> dynamic_slice(x, start, 3, axis=0).numpy(), dynamic_slice(x, (9,), (2,)).numpy()
    (array([2, 3, 4], dtype=int32), array([4, 5], dtype=int32))
    """
    given = _list_starts(x, starts, axis, "dynamic_slice")
    wanted = _list_sizes(x, sizes, axis)
    cut = tuple(i for i, size in enumerate(wanted) if size != x.shape[i])
    op = DynamicSlice(cut, tuple(wanted[i] for i in cut))
    return apply_one(op, x, *(_to_scalar(x, given[i]) for i in cut)) if cut else x


def dynamic_update_slice(
    x: AnyOperand, update: Any, starts: Starts, axis: int | None = None
) -> AnyOperand:
    """Return x with a part of it replaced, at positions that may be known only at run time.

    Where x is donated and used for nothing else, its memory is written to and nothing is copied.

    Args:
        x: any tensor, such as a cache of keys [batch, heads, positions, features].
        update: what is written, of as many dimensions, none of them longer; it is converted to the
            dtype of x.
        starts: for each dimension where the part starts: an integer, or an integer scalar of the
            same backend or trace. Below 0, or so large that the part would reach over the end, it
            is moved in.
        axis: the one dimension that the update does not fill, if it is only one: `starts` is one
            number then.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: a start is no integer scalar, there are not as many of them as dimensions, or
            the update does not fit into x.

    >>> x, position = backend.array([[1, 2, 3], [4, 5, 6]]), backend.array(1)
    >>> dynamic_update_slice(x, backend.array([[0], [0]]), position, axis=1).numpy()
    array([[1, 0, 3],
           [4, 0, 6]], dtype=int32)
    """
    given = _list_starts(x, starts, axis, "dynamic_update_slice")
    part = cast(update, x.dtype)
    shapes = zip(x.shape, part.shape, strict=False)
    axes = tuple(i for i, (size, filled) in enumerate(shapes) if filled != size)
    op = DynamicUpdateSlice(axes)
    written: AnyOperand = apply_one(op, x, part, *(_to_scalar(x, given[i]) for i in axes))
    return written


def _list_starts(x: Operand, starts: Starts, axis: int | None, what: str) -> list[Any]:
    """Return a start for each dimension."""
    if axis is not None:
        found: list[Any] = [0] * x.ndim
        found[normalize_axis(axis, x.ndim, what)] = starts
        return found
    listed = list(starts) if isinstance(starts, Sequence) else [starts]
    if len(listed) != x.ndim:
        raise ShapeError(
            f"{what} has {len(listed)} starts for {x.type}; give one for each dimension, or name "
            f"the one that is cut with axis="
        )
    return listed


def _list_sizes(x: Operand, sizes: int | Sequence[int], axis: int | None) -> list[int]:
    """Return a size for each dimension."""
    listed = list(sizes) if isinstance(sizes, Sequence) else [sizes]
    if len(listed) != (x.ndim if axis is None else 1):
        raise ShapeError(
            f"dynamic_slice has {len(listed)} sizes for {x.type}; give one for each dimension, or "
            f"one with axis="
        )
    if axis is None:
        return [_to_integer(size, "size") for size in listed]
    found = list(x.shape)
    found[normalize_axis(axis, x.ndim, "dynamic_slice")] = _to_integer(listed[0], "size")
    return found


def _to_scalar(x: Any, start: Any) -> Any:
    """Return a start as an operand."""
    if isinstance(start, Operand):
        return start
    return x._number(_to_integer(start, "start"), DType.int32)


def _to_integer(value: Any, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ShapeError(
            f"dynamic slice has {what} {value!r}; give integers, or integer scalars of a backend"
        ) from None


__all__ = [
    "DynamicSlice", "DynamicUpdateSlice", "dynamic_slice", "dynamic_update_slice",
]  # fmt: skip
