"""Methods of tensors and arrays: functions of `mithril.ops`, called on their first argument.

What they do, take and raise is said there; a test holds both to the same arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

Axes = int | Sequence[int] | None


class Methods:
    """Functions that NumPy's arrays have as methods, and some that there are none of in NumPy."""

    __slots__ = ()

    def _call(self, function: str, *arguments: object, **options: object) -> Self:
        raise NotImplementedError

    def all(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return whether all elements are true, over some dimensions, all by default."""
        return self._call("all", self, axis, keepdims=keepdims)

    def any(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return whether any element is true, over some dimensions, all by default."""
        return self._call("any", self, axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Self:
        """Return where the largest element is, along a dimension or among all."""
        return self._call("argmax", self, axis, keepdims=keepdims)

    def argmin(self, axis: int | None = None, *, keepdims: bool = False) -> Self:
        """Return where the smallest element is, along a dimension or among all."""
        return self._call("argmin", self, axis, keepdims=keepdims)

    def argsort(self, axis: int = -1, *, descending: bool = False) -> Self:
        """Return the positions that sort the elements along a dimension."""
        return self._call("argsort", self, axis, descending=descending)

    def astype(self, dtype: object) -> Self:
        """Return the elements converted to another dtype."""
        return self._call("cast", self, dtype)

    def clip(self, min: Any = None, max: Any = None) -> Self:
        """Return the elements held between two bounds."""
        return self._call("clip", self, min, max)

    def cumprod(self, axis: int = -1, *, reverse: bool = False) -> Self:
        """Return the running product along a dimension."""
        return self._call("cumprod", self, axis, reverse=reverse)

    def cumsum(self, axis: int = -1, *, reverse: bool = False) -> Self:
        """Return the running sum along a dimension."""
        return self._call("cumsum", self, axis, reverse=reverse)

    def max(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return the maximum over some dimensions, all by default."""
        return self._call("max", self, axis, keepdims=keepdims)

    def mean(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return the mean over some dimensions, all by default."""
        return self._call("mean", self, axis, keepdims=keepdims)

    def min(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return the minimum over some dimensions, all by default."""
        return self._call("min", self, axis, keepdims=keepdims)

    def prod(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return the product over some dimensions, all by default."""
        return self._call("prod", self, axis, keepdims=keepdims)

    def ravel(self) -> Self:
        """Return the elements in one dimension."""
        return self._call("ravel", self)

    def repeat(self, repeats: int | Sequence[int], axis: int | None = None) -> Self:
        """Return each element repeated, one after another, along a dimension or flat."""
        return self._call("repeat_elements", self, repeats, axis)

    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """Return the same elements in another shape; one size may be -1."""
        return self._call("reshape", self, shape[0] if len(shape) == 1 else shape)

    def round(self) -> Self:
        """Return the nearest whole numbers, of two the even one."""
        return self._call("round", self)

    def sort(self, axis: int = -1, *, descending: bool = False) -> Self:
        """Return the elements in order along a dimension."""
        return self._call("sort", self, axis, descending=descending)

    def split(self, sections: int | Sequence[int], axis: int = 0) -> tuple[Self, ...]:
        """Return equal parts along a dimension, or the parts between some positions."""
        parts: Any = self._call("split", self, sections, axis)
        found: tuple[Self, ...] = parts
        return found

    def squeeze(self, axis: Axes = None) -> Self:
        """Return the elements without dimensions of size 1."""
        return self._call("squeeze", self, axis)

    def std(self, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Self:
        """Return the standard deviation over some dimensions, all by default."""
        return self._call("std", self, axis, correction=correction, keepdims=keepdims)

    def stop_gradient(self) -> Self:
        """Return the elements, through which no gradient flows."""
        return self._call("stop_gradient", self)

    def sum(self, axis: Axes = None, *, keepdims: bool = False) -> Self:
        """Return the sum over some dimensions, all by default."""
        return self._call("sum", self, axis, keepdims=keepdims)

    def swapaxes(self, first: int, second: int) -> Self:
        """Return the elements with two dimensions swapped."""
        return self._call("swapaxes", self, first, second)

    def take(self, indices: Any, axis: int = 0) -> Self:
        """Return the rows that integers name, along a dimension."""
        return self._call("take", self, indices, axis)

    def trace(self) -> Self:
        """Return the sums of the diagonals of matrices."""
        return self._call("trace", self)

    def transpose(self, *order: int | Sequence[int]) -> Self:
        """Return the dimensions in another order, reversed by default."""
        axes = order[0] if len(order) == 1 else order
        return self._call("transpose", self, None if axes == () else axes)

    def var(self, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Self:
        """Return the variance over some dimensions, all by default."""
        return self._call("var", self, axis, correction=correction, keepdims=keepdims)
