"""Arrays that are made inside of a trace: constants of its plan, floats in its default dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril import ops
from mithril.errors import ShapeError
from mithril.ir import Builder, Operand, Tensor
from mithril.ops.reading import read_integer
from mithril.runtime.functional.tracing import lift
from mithril.runtime.host import check_line, on_host, read_number, read_shape
from mithril.types import DType, Shape, as_dtype, promote


def take_values(builder: Builder, values: object, dtype: object) -> Any:
    """Return values as a tensor."""
    tensor = lift(builder, on_host(values), "argument")
    return tensor if dtype is None else ops.cast(tensor, dtype)


def fill(
    builder: Builder,
    shape: int | Sequence[int],
    value: object,
    dtype: object,
    example: str,
) -> Any:
    """Return one value in a shape."""
    if isinstance(value, Operand):
        raise ShapeError(
            "mithril.numpy.full takes a number that is known while the function is traced, not a "
            "traced one; write ones(shape) * number"
        )
    sizes, value = read_shape((shape,), example), read_number(value)
    if dtype is None:
        kinds = {bool: DType.bool_, int: DType.int32, float: builder.default_float}
        dtype = kinds[type(value)]
    return ops.broadcast_to(builder.constant(value, as_dtype(dtype)), sizes)


def fill_like(builder: Builder, x: Tensor, value: object, dtype: object) -> Any:
    """Return one value in the shape of a tensor."""
    return fill(builder, x.shape, value, dtype or x.dtype, "full((2, 3), 1)")


def count_up(builder: Builder, first: float, end: float, step: float, dtype: object) -> Any:
    """Make `arange` of a trace: computed in integers, or in floats of at least 32 bits."""
    count = check_line(first, end, step)
    first, end, step = (read_number(n) for n in (first, end, step))
    is_float = any(isinstance(n, float) for n in (first, end, step))
    default = builder.default_float if is_float else DType.int32
    chosen = as_dtype(dtype or default)
    wide = _wide(chosen if chosen.is_float else builder.default_float)
    return _line(builder, count, first, step, wide if is_float else DType.int32, chosen)


def divide_evenly(
    builder: Builder, start: float, stop: float, num: int, dtype: object, endpoint: bool
) -> Any:
    """Make `linspace` of a trace, computed in floats of at least 32 bits."""
    (count,) = read_shape(((num,),), "linspace(0, 1, 5)")
    start, stop = read_number(start), read_number(stop)
    parts = max(count - 1 if endpoint else count, 1)
    chosen = as_dtype(dtype or builder.default_float)
    if not chosen.is_float:
        raise ShapeError(f"linspace makes floats, not {chosen}; use arange, or cast the result")
    return _line(builder, count, start, (stop - start) / parts, _wide(chosen), chosen)


def make_diagonal(builder: Builder, rows: int, columns: int, k: int, dtype: object) -> Any:
    """Return a matrix with ones on a diagonal."""
    shape = read_shape((rows, columns), "eye(2, 3)")
    row, column = (_indices(builder, shape, axis) for axis in (0, 1))
    diagonal = read_integer(k, "eye's k")
    return ops.cast(ops.equal(row + diagonal, column), dtype or builder.default_float)


def _wide(dtype: DType) -> DType:
    return promote(dtype, DType.float32)


def _line(
    builder: Builder, count: int, first: float, step: float, computed: DType, dtype: DType
) -> Any:
    """Return `first + i * step` for i up to a count, computed in one dtype and cast to another."""
    index = ops.cast(_indices(builder, (count,), 0), computed)
    return ops.cast(index * step + first, dtype)


def _indices(builder: Builder, shape: Shape, axis: int) -> Any:
    (made,) = builder.apply(ops.Iota(shape, axis, DType.int32))
    return made


__all__ = ["count_up", "divide_evenly", "fill", "fill_like", "make_diagonal", "take_values"]
