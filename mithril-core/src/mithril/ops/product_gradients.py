"""Gradients of products along a dimension, without a division.

Neighbours are put together as pairs, pairs are treated likewise, and what is found of a pair says
what is of its two elements: a multiple of the elements is computed, in a logarithm of steps
(Blelloch, "Prefix sums and their applications", 1990). Zeros are like other numbers, also to
further gradients. Pairs of a split dimension lie on one device, until few are left.
"""

from __future__ import annotations

from typing import Any

from mithril.ops.shape import broadcast_to, concatenate, reshape, slice_along


def leave_one_out_products(x: Any, axis: int) -> Any:
    """Return for each element the product of all others along a dimension.

    Args:
        x: floats.
        axis: the dimension.
    """
    return reshape(_leave_one_out_products(_add_pair_dimension(x, axis), axis), x.shape)


def differentiate_cumprod(x: Any, g: Any, axis: int, *, reverse: bool) -> Any:
    """Return the gradient of a running product.

    That of an element is the product of those before it, times the sum of its own cotangent and of
    each later one times the elements up to there.

    Args:
        x: floats.
        g: the cotangent of the products.
        axis: the dimension that they run along.
        reverse: whether they start at its end.
    """
    before, later = _scan_pairs(
        _add_pair_dimension(x, axis), _add_pair_dimension(x * g, axis), axis, reverse
    )
    return reshape(before, x.shape) * (g + reshape(later, x.shape))


def _leave_one_out_products(x: Any, axis: int) -> Any:
    size = x.shape[axis]
    if size < 2:
        return _full_like_along(x, 1.0, axis, size)
    if size % 2:
        return slice_along(_leave_one_out_products(_append(x, 1.0, axis), axis), axis, 0, size)
    first, second = _split(x, axis)
    others = _leave_one_out_products(first * second, axis)
    return _join([others * second, others * first], axis)


def _scan_pairs(x: Any, c: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """Return for each element the product of those before it, and s of the one behind it.

    s of an element is c + x s of the one behind it: two in a row are like one whose x is their
    product, and whose c is that of the first, and x of the first times c of the second.
    """
    size = x.shape[axis]
    if size < 2:
        return _full_like_along(x, 1.0, axis, size), _full_like_along(x, 0.0, axis, size)
    if size % 2:
        found = _scan_pairs(_append(x, 1.0, axis), _append(c, 0.0, axis), axis, reverse)
        return slice_along(found[0], axis, 0, size), slice_along(found[1], axis, 0, size)
    order = -1 if reverse else 1
    (first, second), (c_first, c_second) = (_split(y, axis)[::order] for y in (x, c))
    before, later = _scan_pairs(first * second, c_first + first * c_second, axis, reverse)
    befores, laters = [before, before * first], [c_second + second * later, later]
    return _join(befores[::order], axis), _join(laters[::order], axis)


# ------------------------------------------------------------------ shared pieces


def _add_pair_dimension(x: Any, axis: int) -> Any:
    """Return x with a dimension of size 1 behind a dimension, where pairs find room."""
    return reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))


def _split(x: Any, axis: int) -> list[Any]:
    """Return the first and the second elements of pairs."""
    pairs = reshape(x, (*x.shape[:axis], x.shape[axis] // 2, 2, *x.shape[axis + 2 :]))
    return [slice_along(pairs, axis + 1, i, i + 1) for i in range(2)]


def _join(pair: list[Any], axis: int) -> Any:
    """Return the elements of pairs, the first and the second of which are given."""
    joined = concatenate(pair, axis + 1)
    size = 2 * joined.shape[axis]
    return reshape(joined, (*joined.shape[:axis], size, 1, *joined.shape[axis + 2 :]))


def _append(x: Any, value: float, axis: int) -> Any:
    return concatenate([x, _full_like_along(x, value, axis, 1)], axis)


def _full_like_along(x: Any, value: float, axis: int, size: int) -> Any:
    """Return a number in the shape of x, with another size of a dimension."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    return broadcast_to(x._constant(value, x.dtype), shape)


__all__: list[str] = []
