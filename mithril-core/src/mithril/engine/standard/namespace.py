"""What the shared kernels ask of an array library: a part of the Python array API standard.

Functions, dtypes and operators are those of version 2023.12 of the standard, without its optional
parts: no array is written into, no index is an array, no shape depends on data, and no extension
is used but by the kernels of `EXTENSIONS`. So libraries with arrays that cannot change, or that
compute later, fit as well. A test runs every kernel on `array-api-strict` with its strictest flags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import numpy as np

from mithril.errors import BackendError, listing
from mithril.types import DType

Function = Callable[..., Any]

FACTORISATIONS = {
    "cholesky": "cholesky", "det": "det", "eigh": "eigh", "inv": "inv", "qr": "qr",
    "solve": "solve", "svd": "svd", "triangular_solve": "solve",
}  # fmt: skip
"""By op: the function of the extension `linalg` that its kernel calls."""

EXTENSIONS = dict.fromkeys(FACTORISATIONS, "linalg")
"""Ops whose kernels need an extension of the standard, and which: it has no factorisations itself.

A library without it, or without the function there, has no such kernels, and a plan with such an op
is refused.
"""

NEEDED_DTYPES = (DType.bool_, DType.float32, DType.int32)
"""Dtypes without which no model runs."""


class ArrayNamespace(Protocol):
    """A namespace of arrays, such as the module `numpy`: functions as the standard has them.

    `ArrayNamespace.__annotations__` lists the functions. Beside them it has the dtypes that its
    engine lists in `dtypes`, under Mithril's names, as `xp.float32`; its arrays have `shape`,
    `dtype`, the operators, and slices as indices. Kernels that count, index or draw random bits do
    so in int64, which has to hold 64 bits: in JAX the option `jax_enable_x64` is needed for that.

    Beside operands, sizes and axes, functions are given these keywords: `dtype` of `arange`,
    `asarray`, `prod`, `sum` and `zeros`; `copy` of `astype`; `keepdims` of all reductions and of
    `argmax`; `descending` and `stable` of `argsort`; and `full_matrices` of `linalg.svd`. Axes are
    keywords, too, several of them a tuple. `matmul` multiplies integers as well.
    """

    abs: Function
    add: Function
    all: Function
    any: Function
    arange: Function
    argmax: Function
    argmin: Function
    argsort: Function
    asarray: Function
    astype: Function
    atan: Function
    bitwise_and: Function
    bitwise_invert: Function
    bitwise_left_shift: Function
    bitwise_or: Function
    bitwise_right_shift: Function
    bitwise_xor: Function
    broadcast_to: Function
    ceil: Function
    concat: Function
    cos: Function
    cosh: Function
    divide: Function
    equal: Function
    exp: Function
    expm1: Function
    expand_dims: Function
    flip: Function
    floor: Function
    floor_divide: Function
    greater: Function
    greater_equal: Function
    isfinite: Function
    isinf: Function
    isnan: Function
    less: Function
    less_equal: Function
    log: Function
    log1p: Function
    logical_and: Function
    logical_not: Function
    logical_or: Function
    logical_xor: Function
    matmul: Function
    max: Function
    maximum: Function
    min: Function
    minimum: Function
    multiply: Function
    negative: Function
    not_equal: Function
    permute_dims: Function
    pow: Function
    prod: Function
    remainder: Function
    reshape: Function
    round: Function
    sign: Function
    sin: Function
    sinh: Function
    sqrt: Function
    stack: Function
    subtract: Function
    sum: Function
    take: Function
    tan: Function
    tanh: Function
    trunc: Function
    where: Function
    zeros: Function
    zeros_like: Function


def dtype_in(xp: ArrayNamespace, dtype: DType) -> Any:
    """Return what a namespace calls a dtype.

    Args:
        xp: the array namespace.
        dtype: Mithril's.

    Raises:
        BackendError: it has no such dtype.

    >>> dtype_in(np, DType.int32)
    dtype('int32')
    """
    if cast(object, xp) is np:
        return dtype.numpy
    found = getattr(xp, dtype.value, None)
    if found is None:
        name = getattr(xp, "__name__", type(xp).__name__)
        known = listing(one.value for one in DType if hasattr(xp, one.value))
        raise BackendError(
            f"array namespace '{name}' has no dtype '{dtype}'; it has {known}; leave the others "
            f"out of the engine's dtypes"
        )
    return found


def widen(dtype: DType) -> DType:
    """Return the dtype to compute and to add up in: float32 for 16-bit floats, int32 for booleans.

    >>> widen(DType.bfloat16), widen(DType.int16)
    (<DType.float32: 'float32'>, <DType.int16: 'int16'>)
    """
    if dtype == DType.bool_:
        return DType.int32
    return DType.float32 if dtype.is_float and dtype.itemsize == 2 else dtype
