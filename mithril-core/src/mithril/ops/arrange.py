"""Functions of the Python array API standard that arrange elements anew.

They have no op of their own: rules, gradients and kernels are those of their pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from mithril.errors import ShapeError, kind_of
from mithril.ir.operand import AnyOperand
from mithril.ops.elementwise import broadcast_shape
from mithril.ops.reading import is_list, read_integer, read_integers
from mithril.ops.shape import (
    broadcast_to,
    concatenate,
    normalize_axis,
    require_list,
    reshape,
    transpose,
)

Axis = int | Sequence[int]


def expand_dims(x: AnyOperand, axis: Axis = 0) -> AnyOperand:
    """Return x with new dimensions of size 1.

    Args:
        x: any tensor.
        axis: their position in the result, or several.

    Returns:
        The elements and dtype of x, with one more size of 1 for each position.

    Raises:
        ShapeError: a position does not exist, or is named twice.

    >>> expand_dims(backend.array([1, 2]), (0, 2)).shape
    (1, 2, 1)
    """
    given = read_integers(axis, "expand_dims's axis")
    rank = x.ndim + len(given)
    new = _distinct([normalize_axis(i, rank, "expand_dims") for i in given], "expand_dims")
    sizes = iter(x.shape)
    return reshape(x, [1 if i in new else next(sizes) for i in range(rank)])


def squeeze(x: AnyOperand, axis: Axis | None = None) -> AnyOperand:
    """Return x without dimensions of size 1.

    Args:
        x: any tensor.
        axis: the dimension to leave out, or several; None for all of size 1.

    Returns:
        The elements and dtype of x, without these dimensions.

    Raises:
        ShapeError: one of them has another size, does not exist, or is named twice.

    >>> squeeze(backend.ones((1, 3, 1)), 0).shape
    (3, 1)
    """
    if axis is None:
        return reshape(x, [size for size in x.shape if size != 1])
    gone = _distinct(
        [normalize_axis(i, x.ndim, "squeeze") for i in read_integers(axis, "squeeze's axis")],
        "squeeze",
    )
    for i in gone:
        if x.shape[i] != 1:
            raise ShapeError(
                f"cannot squeeze dimension {i} of {x.type}; only one of size 1 can be left out"
            )
    return reshape(x, [size for i, size in enumerate(x.shape) if i not in gone])


def stack(operands: Sequence[AnyOperand], axis: int = 0) -> AnyOperand:
    """Return operands of one shape side by side along a new dimension.

    Args:
        operands: tensors of one shape and dtype.
        axis: position of the new dimension in the result.

    Returns:
        Their dtype and shape, with the number of operands at the new position.

    Raises:
        ShapeError: there are none, shapes or dtypes differ, or there is no such position.

    >>> stack([backend.array([1, 2]), backend.array([3, 4])]).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    require_list(operands, "stack")
    if not operands:
        raise ShapeError("cannot stack no tensors; pass at least one")
    for x in operands:
        if not hasattr(x, "shape"):
            raise ShapeError(f"cannot stack {kind_of(x)}; give tensors of one shape")
        if x.shape != operands[0].shape:
            raise ShapeError(
                f"cannot stack {operands[0].type} and {x.type}; the shapes must be equal"
            )
    return concatenate([expand_dims(x, axis) for x in operands], axis)


def unstack(x: AnyOperand, axis: int = 0) -> tuple[AnyOperand, ...]:
    """Return the slices of x along a dimension.

    Args:
        x: any tensor of at least one dimension.
        axis: the dimension; a negative one counts from the end.

    Returns:
        As many tensors as the dimension is long, of the shape of x without it and the dtype of x.

    Raises:
        ShapeError: there is no such dimension.

    >>> [row.numpy().tolist() for row in unstack(backend.array([[1, 2], [3, 4]]))]
    [[1, 2], [3, 4]]
    """
    at = normalize_axis(axis, x.ndim, "unstack")
    before = (slice(None),) * at
    return tuple(x[(*before, i)] for i in range(x.shape[at]))


def split(x: AnyOperand, sections: int | Sequence[int], axis: int = 0) -> tuple[AnyOperand, ...]:
    """Return equal parts of x along a dimension, or the parts between positions.

    Args:
        x: any tensor of at least one dimension.
        sections: how many equal parts; or the positions at which parts end, as in `numpy.split`.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The parts in order, of the dtype of x.

    Raises:
        ShapeError: there is no such dimension, it does not divide into equal parts, or positions
            are no integers.

    >>> [part.numpy().tolist() for part in split(backend.array([1, 2, 3, 4]), 2)]
    [[1, 2], [3, 4]]
    >>> [part.numpy().tolist() for part in split(backend.array([1, 2, 3, 4]), [1, 3])]
    [[1], [2, 3], [4]]
    """
    at = normalize_axis(axis, x.ndim, "split")
    size, given = x.shape[at], read_integers(sections, "split's sections")
    if is_list(sections):
        ends = (0, *given, size)
    else:
        if given[0] < 1 or size % given[0]:
            raise ShapeError(
                f"cannot split dimension {at} of {x.type} into {given[0]} equal parts; give a "
                f"divisor of {size}, or the positions at which parts end"
            )
        ends = tuple(range(0, size + 1, size // given[0])) if size else (0,) * (given[0] + 1)
    before = (slice(None),) * at
    return tuple(x[(*before, slice(start, end))] for start, end in pairwise(ends))


def swapaxes(x: AnyOperand, first: int, second: int) -> AnyOperand:
    """Return x with two dimensions swapped.

    Args:
        x: any tensor.
        first: one dimension; a negative one counts from the end.
        second: the other one.

    Returns:
        The elements and dtype of x, these sizes swapped.

    Raises:
        ShapeError: a dimension does not exist.

    >>> swapaxes(backend.ones((2, 3, 4)), 0, -1).shape
    (4, 3, 2)
    """
    order = list(range(x.ndim))
    one, other = (normalize_axis(i, x.ndim, "swapaxes") for i in (first, second))
    order[one], order[other] = other, one
    return transpose(x, order)


def ravel(x: AnyOperand) -> AnyOperand:
    """Return the elements of x in one dimension, row-major.

    Args:
        x: any tensor.

    Returns:
        [size], of the dtype of x.

    >>> ravel(backend.array([[1, 2], [3, 4]])).numpy()
    array([1, 2, 3, 4], dtype=int32)
    """
    return reshape(x, -1) if x.size else reshape(x, 0)


def moveaxis(x: AnyOperand, source: Axis, destination: Axis) -> AnyOperand:
    """Return x with dimensions moved to new positions; the others keep their order.

    Args:
        x: any tensor.
        source: the dimension, or several.
        destination: its position in the result, or one for each.

    Returns:
        The elements and dtype of x, its sizes in the new order.

    Raises:
        ShapeError: there are not as many positions as dimensions, or one does not exist or is named
            twice.

    >>> moveaxis(backend.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    old = [
        normalize_axis(i, x.ndim, "moveaxis") for i in read_integers(source, "moveaxis's source")
    ]
    new = [
        normalize_axis(i, x.ndim, "moveaxis")
        for i in read_integers(destination, "moveaxis's destination")
    ]
    if len(old) != len(new):
        raise ShapeError(
            f"moveaxis moves {len(old)} dimensions to {len(new)} positions; give one position each"
        )
    _distinct(old, "moveaxis")
    order = [i for i in range(x.ndim) if i not in old]
    for to, dimension in sorted(zip(_distinct(new, "moveaxis"), old, strict=True)):
        order.insert(to, dimension)
    return transpose(x, order)


def matrix_transpose(x: AnyOperand) -> AnyOperand:
    """Return x with its last two dimensions swapped.

    Args:
        x: [..., rows, columns], of any dtype.

    Returns:
        [..., columns, rows], of the dtype of x.

    Raises:
        ShapeError: x has fewer than two dimensions.

    >>> matrix_transpose(backend.array([[1, 2, 3], [4, 5, 6]])).numpy()
    array([[1, 4],
           [2, 5],
           [3, 6]], dtype=int32)
    """
    return x.T


def roll(x: AnyOperand, shift: int, axis: int) -> AnyOperand:
    """Return x moved on along a dimension; what leaves at the end enters at the front.

    Args:
        x: any tensor.
        shift: by how many places; negative ones move towards the front.
        axis: the dimension; a negative one counts from the end.

    Returns:
        The shape and dtype of x.

    Raises:
        ShapeError: there is no such dimension, or the shift is no integer.

    >>> roll(backend.array([1, 2, 3, 4]), 1, 0).numpy()
    array([4, 1, 2, 3], dtype=int32)
    """
    at, by = normalize_axis(axis, x.ndim, "roll"), read_integer(shift, "roll's shift")
    start = -by % x.shape[at] if x.shape[at] else 0
    if not start:
        return x
    before = (slice(None),) * at
    return concatenate([x[(*before, slice(start, None))], x[(*before, slice(None, start))]], at)


def tile(x: AnyOperand, repetitions: int | Sequence[int]) -> AnyOperand:
    """Return x repeated as a whole along each dimension, as in `numpy.tile`.

    Args:
        x: any tensor.
        repetitions: how often, for each dimension, or one number for the last; the shorter of
            these and the shape of x is filled with ones at the front.

    Returns:
        The dtype of x; each size times its repetitions.

    Raises:
        ShapeError: a number of repetitions is negative or no integer.

    >>> tile(backend.array([1, 2]), (2, 2)).numpy()
    array([[1, 2, 1, 2],
           [1, 2, 1, 2]], dtype=int32)
    """
    counts = read_integers(repetitions, "tile's repetitions")
    if any(count < 0 for count in counts):
        raise ShapeError(f"tile repeats {counts} times; numbers of repetitions are 0 or more")
    rank = max(len(counts), x.ndim)
    shape = (1,) * (rank - x.ndim) + x.shape
    counts = (1,) * (rank - len(counts)) + counts
    pairs = [n for pair in zip(counts, shape, strict=True) for n in pair]
    wide = broadcast_to(reshape(x, [n for size in shape for n in (1, size)]), pairs)
    return reshape(wide, [count * size for count, size in zip(counts, shape, strict=True)])


def broadcast_arrays(*operands: AnyOperand) -> tuple[AnyOperand, ...]:
    """Return all operands in the shape they broadcast to.

    Args:
        operands: any tensors.

    Returns:
        As many tensors of that shape, each of its own dtype.

    Raises:
        ShapeError: shapes do not broadcast.

    >>> x, y = broadcast_arrays(backend.array([1, 2]), backend.array([[3], [4]]))
    >>> x.numpy().tolist(), y.numpy().tolist()
    ([[1, 2], [1, 2]], [[3, 3], [4, 4]])
    """
    shape = broadcast_shape([x.shape for x in operands], "broadcast_arrays")
    return tuple(broadcast_to(x, shape) for x in operands)


def _distinct(axes: list[int], what: str) -> list[int]:
    if len(set(axes)) < len(axes):
        raise ShapeError(f"{what} names a position twice in {tuple(axes)}; name each once")
    return axes


__all__ = [
    "broadcast_arrays", "expand_dims", "matrix_transpose", "moveaxis", "ravel", "roll", "split",
    "squeeze", "stack", "swapaxes", "tile", "unstack",
]  # fmt: skip
