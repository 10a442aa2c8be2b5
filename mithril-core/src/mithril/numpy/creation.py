"""Functions that make arrays from nothing, or like another one: on a backend, or in a trace.

Outside of a traced function they take `backend=`; inside, they make constants of the plan. The
default float dtype is that of the backend, of a model that which its layers compute in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril import ops
from mithril.errors import BackendError, kind_of
from mithril.ir import Builder, Operand, Tensor
from mithril.ir.running import running_trace, trace_around
from mithril.keywords import checked_keywords
from mithril.numpy.constants import (
    count_up,
    divide_evenly,
    fill,
    fill_like,
    make_diagonal,
    take_values,
)
from mithril.runtime.array import Array
from mithril.runtime.backend import Backend
from mithril.types import Scalar


@checked_keywords()
def array(values: object, dtype: object = None, *, backend: Backend | None = None) -> Any:
    """Return an array of the given values; an array, or a traced value, is taken as it is.

    Args:
        values: numbers, nested sequences, or an array.
        dtype: element type; see `Backend.array`.
        backend: where; needed outside of a traced function unless `values` is an array.

    Returns:
        The shape of the values; the dtype given, or that of the values as `Backend.array` takes it.

    Raises:
        BackendError: there is no backend.
        ShapeError: the values form no array, or there is no such dtype.

    >>> array([[1, 2], [3, 4]], backend=backend).numpy()
    array([[1, 2],
           [3, 4]], dtype=int32)
    """
    if isinstance(values, Operand):
        return values if dtype is None else ops.cast(values, dtype)
    builder = None if backend is not None else running_trace()
    if builder is None:
        return _backend(backend, "array").array(values, dtype=dtype)
    return builder.attempt(take_values, builder, values, dtype)


asarray = array


@checked_keywords()
def full(
    shape: int | Sequence[int],
    value: Scalar,
    dtype: object = None,
    *,
    backend: Backend | None = None,
) -> Any:
    """Return an array that holds one value everywhere.

    Args:
        shape: sizes, or one size.
        value: a Python number.
        dtype: by default int32, bool or the default float dtype, as the value is.
        backend: where; needed outside of a traced function.

    Returns:
        That shape and dtype.

    Raises:
        BackendError: there is no backend.
        ShapeError: a size is negative, the dtype cannot hold the value, or the value is traced.

    >>> full((2,), 7, backend=backend).numpy()
    array([7, 7], dtype=int32)
    """
    builder = None if backend is not None else running_trace()
    if builder is None:
        return _backend(backend, "full").full(shape, value, dtype=dtype)
    return builder.attempt(fill, builder, shape, value, dtype, "full((2, 3), 1)")


@checked_keywords()
def zeros(
    shape: int | Sequence[int], dtype: object = None, *, backend: Backend | None = None
) -> Any:
    """Return zeros.

    Args:
        shape: sizes, or one size.
        dtype: by default the default float dtype.
        backend: where; needed outside of a traced function.

    Returns:
        That shape and dtype.

    Raises:
        BackendError: there is no backend.
        ShapeError: a size is negative, or there is no such dtype.

    >>> zeros((2, 3), backend=backend).numpy()
    array([[0., 0., 0.],
           [0., 0., 0.]], dtype=float32)
    """
    return _fill("zeros", shape, 0, dtype, backend)


@checked_keywords()
def ones(
    shape: int | Sequence[int], dtype: object = None, *, backend: Backend | None = None
) -> Any:
    """Return ones.

    Args:
        shape: sizes, or one size.
        dtype: by default the default float dtype.
        backend: where; needed outside of a traced function.

    Returns:
        That shape and dtype.

    Raises:
        BackendError: there is no backend.
        ShapeError: a size is negative, or there is no such dtype.

    >>> ones((2, 3), backend=backend).numpy()
    array([[1., 1., 1.],
           [1., 1., 1.]], dtype=float32)
    """
    return _fill("ones", shape, 1, dtype, backend)


empty = zeros


@checked_keywords()
def full_like(x: Any, value: Scalar, dtype: object = None) -> Any:
    """Return one value in the shape of an array.

    Args:
        x: an array or a traced value.
        value: a Python number.
        dtype: that of x by default.

    Returns:
        The shape of x, in that dtype.

    Raises:
        BackendError: `x` is no array.
        ShapeError: the dtype cannot hold the value.

    >>> full_like(backend.array([1, 2, 3]), 7).numpy()
    array([7, 7, 7], dtype=int32)
    """
    if isinstance(x, Array):
        return x.backend.full_like(x, value, dtype=dtype)
    if not isinstance(x, Tensor):
        raise BackendError(
            f"mithril.numpy.full_like is given {kind_of(x)}, no array to be like; use "
            f"full(shape, …)"
        )
    builder = _trace_of(x)
    return builder.attempt(fill_like, builder, x, value, dtype)


@checked_keywords()
def zeros_like(x: Any, dtype: object = None) -> Any:
    """Return zeros in the shape of an array.

    Args:
        x: an array or a traced value.
        dtype: that of x by default.

    Returns:
        The shape of x, in that dtype.

    Raises:
        BackendError: `x` is no array.

    >>> zeros_like(backend.array([1, 2, 3])).numpy()
    array([0, 0, 0], dtype=int32)
    """
    return full_like(x, 0, dtype)


@checked_keywords()
def ones_like(x: Any, dtype: object = None) -> Any:
    """Return ones in the shape of an array.

    Args:
        x: an array or a traced value.
        dtype: that of x by default.

    Returns:
        The shape of x, in that dtype.

    Raises:
        BackendError: `x` is no array.

    >>> ones_like(backend.array([1, 2, 3])).numpy()
    array([1, 1, 1], dtype=int32)
    """
    return full_like(x, 1, dtype)


empty_like = zeros_like


@checked_keywords()
def arange(
    start: int | float,
    stop: int | float | None = None,
    step: int | float = 1,
    dtype: object = None,
    *,
    backend: Backend | None = None,
) -> Any:
    """Return evenly spaced numbers from start (or 0) up to, but without, stop.

    Args:
        start: the first number; the end, if it is the only one.
        stop: the end.
        step: from one number to the next.
        dtype: by default int32, or the default float dtype when a number is a float.
        backend: where; needed outside of a traced function.

    Returns:
        A vector of that dtype, of length ceil((stop - start) / step), or empty.

    Raises:
        BackendError: there is no backend.
        ShapeError: the step is 0.

    >>> arange(2, 10, 3, backend=backend).numpy()
    array([2, 5, 8], dtype=int32)
    """
    builder = None if backend is not None else running_trace()
    if builder is None:
        return _backend(backend, "arange").arange(start, stop, step, dtype=dtype)
    first, end = (0, start) if stop is None else (start, stop)
    return builder.attempt(count_up, builder, first, end, step, dtype)


@checked_keywords()
def linspace(
    start: int | float,
    stop: int | float,
    num: int,
    dtype: object = None,
    *,
    endpoint: bool = True,
    backend: Backend | None = None,
) -> Any:
    """Return evenly spaced numbers from start to stop, the end included or not.

    Args:
        start: the first number.
        stop: the last one, or, without `endpoint`, the one after it.
        num: how many.
        dtype: a float dtype, the default one by default.
        endpoint: whether `stop` is one of them.
        backend: where; needed outside of a traced function.

    Returns:
        A vector of `num` numbers of that dtype.

    Raises:
        BackendError: there is no backend.
        ShapeError: there is a negative number of them, or the dtype is none of floats.

    >>> linspace(0, 1, 5, backend=backend).numpy()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    builder = None if backend is not None else running_trace()
    if builder is None:
        made = _backend(backend, "linspace")
        return made.linspace(start, stop, num, endpoint=endpoint, dtype=dtype)
    return builder.attempt(divide_evenly, builder, start, stop, num, dtype, endpoint)


@checked_keywords()
def eye(
    rows: int,
    columns: int | None = None,
    *,
    k: int = 0,
    dtype: object = None,
    backend: Backend | None = None,
) -> Any:
    """Return a matrix with ones on its k-th diagonal and zeros elsewhere.

    Args:
        rows: number of rows.
        columns: number of columns, by default that of rows.
        k: 0 for the main diagonal, positive above it.
        dtype: by default the default float dtype.
        backend: where; needed outside of a traced function.

    Returns:
        [rows, columns], of that dtype.

    Raises:
        BackendError: there is no backend.
        ShapeError: a size is negative, or there is no such dtype.

    >>> eye(2, 3, k=1, backend=backend).numpy()
    array([[0., 1., 0.],
           [0., 0., 1.]], dtype=float32)
    """
    builder = None if backend is not None else running_trace()
    if builder is None:
        return _backend(backend, "eye").eye(rows, columns, k=k, dtype=dtype)
    return builder.attempt(
        make_diagonal, builder, rows, rows if columns is None else columns, k, dtype
    )


def _backend(backend: Backend | None, function: str) -> Backend:
    if not isinstance(backend, Backend):
        raise BackendError(
            f"mithril.numpy.{function} knows no backend to make an array on; pass backend=…, or "
            f"call it inside a function of ml.jit"
        )
    return backend


def _trace_of(x: Tensor) -> Builder:
    return trace_around([x]) or x.builder


def _fill(
    name: str, shape: int | Sequence[int], value: int, dtype: object, backend: Backend | None
) -> Any:
    """Make `zeros` or `ones`: of the backend that is given, or else in the trace that runs."""
    builder = None if backend is not None else running_trace()
    if builder is None:
        return getattr(_backend(backend, name), name)(shape, dtype=dtype)
    chosen = dtype or builder.default_float
    return builder.attempt(fill, builder, shape, value, chosen, f"{name}((2, 3))")


__all__ = [
    "arange", "array", "asarray", "empty", "empty_like", "eye", "full", "full_like", "linspace",
    "ones", "ones_like", "zeros", "zeros_like",
]  # fmt: skip
