"""The kernel of einsum: one matrix product of views, copied only where a dimension must be joined.

MLX multiplies transposed matrices where they lie. On CPU it has no fast product of 16-bit floats:
they are multiplied in float32, as they are added up on any device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
from mithril.spi import KernelRun, Shape, Types
from mithril.spi.ops import Einsum

from mithril_mlx.blas import keep_transposed
from mithril_mlx.kernels.precision import in_float32, on_gpu
from mithril_mlx.kernels.reduce import add_up
from mithril_mlx.kernels.shape import fill
from mithril_mlx.kernels.table import kernel

Sizes = dict[str, int]


@kernel(Einsum)
def einsum(op: Einsum, types: Types) -> KernelRun:
    """The product of two operands."""
    left, right, result = op.terms
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))
    if 0 in sizes.values():
        return fill(0, op.infer(types)[0])
    if all(c in left and c in right for c in sizes):
        return in_float32(_inner)(op, types)
    if all(c in result for c in sizes):
        x, y = (_spread(term, result, sizes) for term in (left, right))
        return lambda a, b: mx.multiply(x(a), y(b))
    return _product(op, types) if on_gpu() else in_float32(_product)(op, types)


def _inner(op: Einsum, types: Types) -> KernelRun:
    """Return the function that multiplies element by element, and adds up along some dimensions."""
    left, right, result = op.terms
    summed = [c for c in left if c not in result]
    order = "".join([*result, *summed])
    x, y = (_spread(term, order, {}) for term in (left, right))
    if not summed:
        return lambda a, b: mx.multiply(x(a), y(b))
    axes = tuple(range(len(result), len(order)))
    sizes = dict(zip(left, types[0].shape, strict=True))
    add = add_up(tuple(sizes[c] for c in order), axes, tuple(sizes[c] for c in result))
    return lambda a, b: add(mx.multiply(x(a), y(b)))


def _spread(term: str, wanted: str, sizes: Sizes) -> KernelRun:
    """Return the function that gives an operand a dimension for each letter, maybe of size 1."""
    order = _permute([term.index(c) for c in wanted if c in term])
    if len(term) == len(wanted):
        return order
    shape = tuple(sizes[c] if c in term else 1 for c in wanted)
    return lambda x: mx.reshape(order(x), shape)


def _product(op: Einsum, types: Types) -> KernelRun:
    """Return the function that multiplies [batch, rows, contracted] and [batch, contracted, …]."""
    left, right, result = op.terms
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))
    batch, rows, contracted, columns = _letters(left, right, result)
    swapped = result == batch + columns + rows != batch + rows + columns
    if swapped:
        left, right, rows, columns = right, left, columns, rows
    # A product with one matrix needs no rows in one dimension, where they come first.
    apart = not batch and left.endswith(contracted) and len(contracted) > 0
    above = list(rows) if apart and rows else [rows]
    first = _arrange(left, [*batch, *above, contracted], sizes)
    rows_count = math.prod(sizes[c] for c in rows)
    second = _arrange(right, [*batch, contracted, columns], sizes, keep_transposed(rows_count))
    multiply = _compose(first, second, swapped)
    made = batch + rows + columns
    shape, order = tuple(sizes[c] for c in made), [made.index(c) for c in result]
    is_flat = len(columns) == 1 and len(above[0]) == 1
    if is_flat and order == sorted(order):
        return multiply
    arrange = _permute(order)
    if is_flat:
        return lambda x, y: arrange(multiply(x, y))
    return lambda x, y: arrange(mx.reshape(multiply(x, y), shape))


def _letters(left: str, right: str, result: str) -> tuple[str, str, str, str]:
    """Return the letters of the batch, the rows, the contraction and the columns.

    >>> _letters("bsd", "hd", "bsh")
    ('', 'bs', 'd', 'h')
    """
    batch = "".join(c for c in result if c in left and c in right)
    rows = "".join(c for c in result if c not in right)
    contracted = "".join(c for c in left if c in right and c not in result)
    columns = "".join(c for c in result if c not in left)
    return batch, rows, contracted, columns


def _compose(first: KernelRun | None, second: KernelRun | None, swapped: bool) -> KernelRun:
    """Return the product of two operands, each as it is or arranged, in few calls."""
    if swapped:
        unswapped = _compose(first, second, False)
        return lambda x, y: unswapped(y, x)
    product = mx.matmul
    if first and second:
        return lambda x, y: product(first(x), second(y))
    if first:
        return lambda x, y: product(first(x), y)
    return (lambda x, y: product(x, second(y))) if second else product


@dataclass(frozen=True)
class _Layout:
    """What arranges an operand: a shape first, an order of dimensions, a shape at the end."""

    before: Shape | None
    order: tuple[int, ...]
    after: Shape | None


def _arrange(
    term: str, groups: Sequence[str], sizes: Sizes, keep: KernelRun = lambda x: x
) -> KernelRun | None:
    """Return the function that gives an operand a dimension for each group; None if it has them.

    Args:
        term: letters of its dimensions.
        groups: letters of what each dimension becomes.
        sizes: by letter.
        keep: what is done to a view that is left transposed.
    """
    layout = _layout(term, groups, sizes)
    before, order, after = layout.before, layout.order, layout.after
    is_ordered = order == tuple(range(len(order)))
    if is_ordered:
        shape = after or before
        return (lambda x: mx.reshape(x, shape)) if shape else None
    turn = _permute(order)
    if before:
        return lambda x: keep(turn(mx.reshape(x, before)))
    return (lambda x: mx.reshape(turn(x), after)) if after else lambda x: keep(turn(x))


def _layout(term: str, groups: Sequence[str], sizes: Sizes) -> _Layout:
    """Return how an operand is arranged; letters that lie together are joined before they move.

    >>> _layout("abc", ["c", "ab"], {"a": 2, "b": 3, "c": 4})
    _Layout(before=(6, 4), order=(1, 0), after=None)
    >>> _layout("abc", ["b", "ac"], {"a": 2, "b": 3, "c": 4})
    _Layout(before=None, order=(1, 0, 2), after=(3, 8))
    """
    if all(group in term for group in groups):
        lying = sorted(groups, key=lambda group: term.index(group) if group else len(term))
        before = _merge(lying, sizes)
        same = before == tuple(sizes[c] for c in term)
        return _Layout(None if same else before, tuple(map(lying.index, groups)), None)
    letters = "".join(groups)
    after = _merge(groups, sizes)
    same = after == tuple(sizes[c] for c in letters)
    return _Layout(None, tuple(map(term.index, letters)), None if same else after)


def _merge(groups: Sequence[str], sizes: Sizes) -> Shape:
    return tuple(math.prod(sizes[c] for c in group) for group in groups)


def _permute(order: Sequence[int]) -> KernelRun:
    """Return the function that puts dimensions in an order."""
    axes = tuple(order)
    if axes == tuple(range(len(axes))):
        return lambda x: x
    return (lambda x: x.T) if len(axes) == 2 else lambda x: mx.transpose(x, axes)
