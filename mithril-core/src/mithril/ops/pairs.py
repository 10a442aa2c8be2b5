"""Gradients of products along a dimension, without a division.

Neighbours are put together as pairs, pairs are treated likewise, and what is found of a pair says
what is of its two elements: a multiple of the elements is computed, in a logarithm of steps
(Blelloch, "Prefix sums and their applications", 1990). Zeros are like other numbers, also to
further gradients. Pairs of a split dimension lie on one device, until few are left.
"""

from __future__ import annotations

from typing import Any

from mithril.ops.shape import broadcast_to, concatenate, reshape


def multiply_others(x: Any, axis: int) -> Any:
    """Return for each element the product of all others along a dimension.

    Args:
        x: floats.
        axis: the dimension.
    """
    return reshape(_multiply_others(_column(x, axis), axis), x.shape)


def differentiate_products(x: Any, g: Any, axis: int, *, reverse: bool) -> Any:
    """Return the gradient of a running product.

    That of an element is the product of those before it, times the sum of its own cotangent and of
    each later one times the elements up to there.

    Args:
        x: floats.
        g: the cotangent of the products.
        axis: the dimension that they run along.
        reverse: whether they start at its end.
    """
    before, later = _look_around(_column(x, axis), _column(x * g, axis), axis, reverse)
    return reshape(before, x.shape) * (g + reshape(later, x.shape))


def _multiply_others(x: Any, axis: int) -> Any:
    size = x.shape[axis]
    if size < 2:
        return _fill(x, 1.0, axis, size)
    if size % 2:
        return _cut(_multiply_others(_append(x, 1.0, axis), axis), axis, 0, size)
    first, second = _split(x, axis)
    others = _multiply_others(first * second, axis)
    return _join([others * second, others * first], axis)


def _look_around(x: Any, c: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Return for each element the product of those before it, and s of the one behind it.

    s of an element is c + x s of the one behind it: two in a row are like one whose x is their
    product, and whose c is that of the first, and x of the first times c of the second.
    """
    size = x.shape[axis]
    if size < 2:
        return _fill(x, 1.0, axis, size), _fill(x, 0.0, axis, size)
    if size % 2:
        found = _look_around(_append(x, 1.0, axis), _append(c, 0.0, axis), axis, reverse)
        return _cut(found[0], axis, 0, size), _cut(found[1], axis, 0, size)
    order = -1 if reverse else 1
    (first, second), (c_first, c_second) = (_split(y, axis)[::order] for y in (x, c))
    before, later = _look_around(first * second, c_first + first * c_second, axis, reverse)
    befores, laters = [before, before * first], [c_second + second * later, later]
    return _join(befores[::order], axis), _join(laters[::order], axis)


# ------------------------------------------------------------------ shared pieces


def _column(x: Any, axis: int) -> Any:
    """Return x with a dimension of size 1 behind a dimension, where pairs find room."""
    return reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))


def _split(x: Any, axis: int) -> list[Any]:
    """Return the first and the second elements of pairs."""
    pairs = reshape(x, (*x.shape[:axis], x.shape[axis] // 2, 2, *x.shape[axis + 2 :]))
    return [_cut(pairs, axis + 1, i, i + 1) for i in range(2)]


def _join(pair: list[Any], axis: int) -> Any:
    """Return the elements of pairs, the first and the second of which are given."""
    joined = concatenate(pair, axis + 1)
    size = 2 * joined.shape[axis]
    return reshape(joined, (*joined.shape[:axis], size, 1, *joined.shape[axis + 2 :]))


def _append(x: Any, value: float, axis: int) -> Any:
    return concatenate([x, _fill(x, value, axis, 1)], axis)


def _fill(x: Any, value: float, axis: int, size: int) -> Any:
    """Return a number in the shape of x, with another size of a dimension."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return broadcast_to(x._constant(value, x.dtype), shape)


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(*(slice(None),) * axis, slice(start, stop))]


__all__: list[str] = []
