"""Parts of a tensor: slices, their inverse (padding), and indexing as in NumPy.

A dimension that is taken in full may be split, and so may one of which every n-th element is taken,
if that many make it up. Where one is split of which half or less is taken, each device knows the
offset of its part: of what is read it gives its own elements and zeros for the others, which add up
to the whole; of what is padded it makes the elements that fall into its part. Other dimensions are
whole.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from mithril.errors import ShapeError
from mithril.ir.op import Cotangents, Op, Shard, Tensors, Types, register
from mithril.ir.operand import AnyOperand, Operand, apply_one
from mithril.ir.rule import Rule
from mithril.ops.choice import equal, not_equal, where
from mithril.ops.dynamic_slicing import read_part
from mithril.ops.index import iota, take
from mithril.ops.order_functions import flip
from mithril.ops.reading import is_list, read_integers
from mithril.ops.shape import Movement, broadcast_to, legal, reshape
from mithril.types import DType, Scalar, TensorType


@register
@dataclass(frozen=True)
class Slice(Movement):
    """Elements start:stop:step of every dimension, with positive steps; negatives already resolved.

    How a dimension may be split that is cut: see the module's text.
    """

    name: ClassVar[str] = "slice"
    is_view: ClassVar[bool] = True
    start: tuple[int, ...]
    stop: tuple[int, ...]
    step: tuple[int, ...]

    def infer(self, inputs: Types) -> Types:
        shape = inputs[0].shape
        if not len(self.start) == len(self.stop) == len(self.step) == len(shape):
            raise ShapeError(f"cannot slice {inputs[0]} by {len(self.start)} ranges; one each")
        bounds = zip(shape, self.start, self.stop, self.step, strict=True)
        if any(not 0 <= start <= stop <= size or step < 1 for size, start, stop, step in bounds):
            raise ShapeError(
                f"cannot slice {inputs[0]} from {self.start} to {self.stop}; out of range"
            )
        cut = zip(self.start, self.stop, self.step, strict=True)
        return [inputs[0].with_shape(tuple(len(range(*bound)) for bound in cut))]

    def selection(self, inputs: Types) -> Sequence[range]:
        return tuple(map(range, self.start, self.stop, self.step))

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        after = tuple(
            size - (start + (count - 1) * step + 1 if count else start)
            for size, start, step, count in zip(
                inputs[0].shape, self.start, self.step, outputs[0].shape, strict=True
            )
        )
        between = tuple(step - 1 for step in self.step)
        return [_only(Pad(self.start, after, between), cotangents[0])]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _cut_rule(inputs[0], outputs[0], self.step, "long -> short")

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any = inputs[0]
        bounds = list(zip(self.start, self.stop, self.step, strict=True))
        for axis, (start, stop, step) in enumerate(bounds):
            offset: Any = shard.offset(f"s{axis}")
            if offset is not None:
                count = len(range(start, stop, step))
                x = read_part(x, axis, start - offset, count)
                bounds[axis] = 0, count, 1
        local = Slice(*zip(*bounds, strict=True)) if bounds else self
        return shard.apply(local.resize(shard.outputs), x)

    def resize(self, outputs: Types) -> Op:
        # A split dimension has fewer elements, each as far from the one before it.
        taken = zip(self.start, self.stop, self.step, outputs[0].shape, strict=True)
        stop = tuple(
            start + (size - 1) * step + 1 if 0 < size < len(range(start, stop, step)) else stop
            for start, stop, step, size in taken
        )
        return replace(self, stop=stop)


@register
@dataclass(frozen=True)
class Pad(Movement):
    """The operand with zeros before, after and between the elements of every dimension."""

    name: ClassVar[str] = "pad"
    before: tuple[int, ...]
    after: tuple[int, ...]
    between: tuple[int, ...]

    def infer(self, inputs: Types) -> Types:
        widths = (self.before, self.after, self.between)
        if any(len(width) != inputs[0].rank or min(width, default=0) < 0 for width in widths):
            raise ShapeError(f"cannot pad {inputs[0]} by {widths}; one width of 0 or more each")
        shape = tuple(
            before + size + max(size - 1, 0) * between + after
            for size, before, after, between in zip(inputs[0].shape, *widths, strict=True)
        )
        return [inputs[0].with_shape(shape)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        step = tuple(between + 1 for between in self.between)
        stop = tuple(size - after for size, after in zip(outputs[0].shape, self.after, strict=True))
        return [_only(Slice(self.before, stop, step), cotangents[0])]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        steps = tuple(between + 1 for between in self.between)
        return _cut_rule(outputs[0], inputs[0], steps, "short -> long")

    def localize(self, inputs: Tensors, shard: Shard) -> Tensors:
        x: Any = inputs[0]
        before, after, between = list(self.before), list(self.after), list(self.between)
        for axis, size in enumerate(shard.outputs[0].shape):
            offset: Any = shard.offset(f"s{axis}")
            if offset is not None:
                x = _write_part(x, axis, self.before[axis] - offset, size)
                before[axis] = after[axis] = between[axis] = 0
        return shard.apply(Pad(tuple(before), tuple(after), tuple(between)), x)


# ------------------------------------------------------------------ functions over operands


def getitem(x: AnyOperand, index: Any) -> AnyOperand:
    """Return x[index], by integers, slices, `...`, None, and one integer tensor, as in NumPy.

    An integer tensor picks along the dimension it stands for; its dimensions take that one's place.

    Args:
        x: any tensor.
        index: one of these, or a tuple; a slice may have any step but 0.

    Returns:
        The dtype of x; a dimension is left out by an integer, and cut by a slice.

    Raises:
        ShapeError: an index is out of range or of another kind.

    >>> getitem(backend.array([[1, 2, 3], [4, 5, 6]]), (0, slice(None, None, -1))).numpy()
    array([3, 2, 1], dtype=int32)
    """
    if isinstance(index, Operand):
        index = (index,)
    items = [_plain(item) for item in (index if isinstance(index, tuple) else (index,))]
    taken = sum(1 for item in items if item is not None and item is not Ellipsis)
    dots = [position for position, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1 or taken > x.ndim:
        raise ShapeError(f"cannot index {x.type} with {index!r}; at most {x.ndim} indices")
    fill = [slice(None)] * (x.ndim - taken)
    at = dots[0] if dots else len(items)
    items[at : at + 1] = fill
    if any(isinstance(item, Operand) for item in items):
        return _index_by_tensor(x, items)
    x, items = _flip_backwards(x, items)
    bounds, shape, dimension = [], [], 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        bound = _bounds(item, x, dimension)
        bounds.append(bound)
        if isinstance(item, slice):
            shape.append(len(range(*bound)))
        dimension += 1
    start, stop, step = zip(*bounds, strict=True) if bounds else ((), (), ())
    full = all(b == (0, size, 1) for b, size in zip(bounds, x.shape, strict=True))
    part = x if full else apply_one(Slice(start, stop, step), x)
    return reshape(part, shape)


def pad(
    x: AnyOperand, widths: int | Sequence[int] | Sequence[tuple[int, int]], value: Scalar = 0
) -> AnyOperand:
    """Return x with elements before and after it in every dimension.

    Args:
        x: any tensor.
        widths: for each dimension how many elements come before and after; one pair, or one
            number for both sides, is for all dimensions.
        value: what they are.

    Returns:
        The dtype of x, floats of integers with a float value; each size and its widths added up.

    Raises:
        ShapeError: there is not one pair of widths of 0 or more for each dimension.

    >>> pad(backend.array([[1, 2], [3, 4]]), [(0, 1), (2, 0)]).numpy()
    array([[0, 0, 1, 2],
           [0, 0, 3, 4],
           [0, 0, 0, 0]], dtype=int32)
    """
    pairs = _read_widths(x, widths)
    before, after = (tuple(pair[side] for pair in pairs) for side in (0, 1))
    between = (0,) * x.ndim
    if not value:
        return apply_one(Pad(before, after, between), x)
    # Zeros around x - value, and the value added again, would lose digits and turn inf into nan.
    inside = apply_one(Pad(before, after, between), equal(x, x) | not_equal(x, x))
    padded: AnyOperand = where(inside, apply_one(Pad(before, after, between), x), value)
    return padded


def _read_widths(x: Operand, widths: Any) -> list[tuple[int, ...]]:
    """Return how much comes before and after each dimension, as `numpy.pad` reads it."""
    rows = list(widths) if is_list(widths) else [widths]
    pairs = [read_integers(row, "pad's widths") for row in rows]
    if len(rows) == 2 and not any(map(is_list, rows)):
        pairs = [(*pairs[0], *pairs[1])]  # one pair for all dimensions
    pairs = [pair * 2 if len(pair) == 1 else pair for pair in pairs]
    pairs = pairs * x.ndim if len(pairs) == 1 else pairs
    if len(pairs) != x.ndim or any(len(pair) != 2 for pair in pairs):
        raise ShapeError(
            f"cannot pad {x.type} by {widths}; give (before, after) for each dimension"
        )
    return pairs


def _plain(item: Any) -> Any:
    """Return an index with NumPy's integers as Python's."""
    if isinstance(item, np.integer):
        return int(item)
    if isinstance(item, slice):
        ends = (item.start, item.stop, item.step)
        try:
            return slice(*(None if end is None else operator.index(end) for end in ends))
        except TypeError:
            raise ShapeError(
                f"cannot slice from {item.start!r} to {item.stop!r} in steps of {item.step!r}; "
                f"give integers, or dynamic_slice for a start that is computed"
            ) from None
    return item


def _index_by_tensor(x: AnyOperand, items: list[Any]) -> AnyOperand:
    """Return x indexed by slices and one integer tensor."""
    tensors = [position for position, item in enumerate(items) if isinstance(item, Operand)]
    if len(tensors) > 1 or any(isinstance(item, int) for item in items):
        raise ShapeError(
            f"cannot index {x.type} with a tensor together with another tensor or an integer; "
            f"index twice"
        )
    (position,) = tensors
    if items[position].dtype == DType.bool_:
        raise ShapeError(
            f"cannot index {x.type} with a mask, {items[position].type}; how much it picks depends "
            f"on its values; use where(mask, x, …), or integers"
        )
    whole = [slice(None) if i == position else item for i, item in enumerate(items)]
    rows: Any = take(getitem(x, tuple(whole)), items[position], position)
    picked: AnyOperand = rows
    return picked


def _flip_backwards(x: AnyOperand, items: list[Any]) -> tuple[AnyOperand, list[Any]]:
    """Return x flipped where a slice runs backwards, and the slices that run forwards instead."""
    turned, flipped, dimension = [], [], 0
    for item in items:
        if isinstance(item, slice) and isinstance(item.step, int) and item.step < 0:
            size = x.shape[dimension]
            start, stop, step = item.indices(size)
            flipped.append(dimension)
            item = slice(size - 1 - start, size - 1 - stop, -step)
        turned.append(item)
        dimension += item is not None
    return (flip(x, flipped) if flipped else x), turned


def _bounds(item: object, x: Operand, dimension: int) -> tuple[int, int, int]:
    size = x.shape[dimension]
    if isinstance(item, slice):
        if item.step == 0:
            raise ShapeError(f"cannot index {x.type} with step 0; use another step")
        start, stop, step = item.indices(size)
        return min(start, size), max(min(start, size), stop), step
    if isinstance(item, int) and not isinstance(item, bool):
        if not -size <= item < size:
            raise ShapeError(
                f"index {item} is out of range for dimension {dimension} of {x.type}; {legal(size)}"
            )
        return item % size, item % size + 1, 1
    raise ShapeError(
        f"cannot index {x.type} with a {type(item).__name__}; use integers and slices, or take()"
    )


def _cut_rule(long: TensorType, short: TensorType, steps: Sequence[int], order: str) -> Rule:
    """Return the rule between a tensor and what is cut from it in some steps.

    Args:
        long: the type of the tensor.
        short: the type of what is cut from it.
        steps: of the cut, for each dimension.
        order: `long -> short`, or the other way round.
    """
    sizes: dict[str, int] = {}
    sides: dict[str, list[tuple[str, ...]]] = {"long": [], "short": []}
    for axis, cut in enumerate(zip(long.shape, short.shape, steps, strict=True)):
        for side, found in zip(sides.values(), _name_factors(*cut), strict=True):
            own = {f"{letter}{axis}": size for letter, size in found.items() if size != 1}
            side.append(tuple(own))
            sizes |= own
    operand, result = (tuple(sides[name]) for name in order.split(" -> "))
    whole = frozenset(name for name in sizes if name[0] in "rcw")
    return Rule(sizes, (operand,), (result,), whole=whole, linear=((0,),))


def _name_factors(size: int, taken: int, step: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return the factors of a dimension, and of what is cut from it; `r`, `c` and `w` are whole."""
    if size == taken:
        return {"d": size}, {"d": size}
    if taken > 1 and taken * step == size:  # one of every so many
        return {"t": taken, "r": step}, {"t": taken}
    is_small = taken == 1 or (step == 1 and 0 < 2 * taken <= size)
    return {"s" if is_small else "w": size}, {"c": taken}


def _write_part(x: Any, axis: int, start: Any, size: int) -> Any:
    """Return what `size` elements of a part hold of x, which starts somewhere; zeros elsewhere."""
    if x.shape[axis] > 1:
        return read_part(x, axis, -start, size)
    shape = tuple(size if i == axis else n for i, n in enumerate(x.shape))
    line = tuple(size if i == axis else 1 for i in range(x.ndim))
    here = equal(iota(x, line, axis), start)
    return where(here, broadcast_to(x, shape), x._constant(0, x.dtype))


def _take_cotangent(cotangents: Cotangents) -> Any:
    return cotangents[0]


def _only(op: Op, x: Any) -> Any:
    return apply_one(op, x)


__all__ = ["Pad", "Slice", "getitem", "pad"]
