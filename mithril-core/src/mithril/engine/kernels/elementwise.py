"""Kernels of elementwise ops that NumPy has better than the shared ones: where, casts, erf."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.ir import Constant


@kernel(Constant)
def constant(op: Constant, types: Types, xp: ModuleType) -> Run:
    """A scalar array, made once."""
    value = xp.asarray(op.value, dtype=op.dtype.numpy)
    return lambda: value


_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@kernel(ops.Where)
def where(op: ops.Where, types: Types, xp: ModuleType) -> Run:
    """On NumPy y ^ ((x ^ y) * condition) of the bits; its own `where` is ten times slower.

    That one branches on every element, which the processor cannot foresee.
    """
    dtype = types[1].dtype.numpy
    bits = _BITS[dtype.itemsize]

    def choose(condition: Any, x: Any, y: Any) -> Any:
        chosen, x, y = condition.view(np.int8), x.view(bits), y.view(bits)
        if not y.ndim and y == 0:
            return (x * chosen).view(dtype)
        return (((x ^ y) * chosen) ^ y).view(dtype)

    return choose


@kernel(ops.Cast)
def cast(op: ops.Cast, types: Types, xp: ModuleType) -> Run:
    """x in another dtype."""
    dtype = op.dtype.numpy
    return lambda x: xp.asarray(x, dtype=dtype)


@kernel(ops.Erf)
def erf(op: ops.Erf, types: Types, xp: ModuleType) -> Run:
    """The error function, in float32 for 16-bit floats."""
    return erf_kernel(types[0].dtype.numpy, xp)


def erf_kernel(dtype: np.dtype[Any], xp: ModuleType) -> Run:
    """Return erf for a dtype: an approximation up to float32, exact (and slow) beyond."""
    if dtype.itemsize == 8:
        exact = np.frompyfunc(math.erf, 1, 1)
        return lambda x: xp.asarray(np.asarray(exact(np.asarray(x)), np.float64))
    return lambda x: xp.asarray(erf_float32(xp.asarray(x, dtype=np.float32), xp), dtype=dtype)


# erf(x) = tanh(x P(x^2)), P fitted to atanh(erf(x)) / x by weighted least squares such that the
# largest error relative to erf is least; highest power first. The first coefficient is positive, so
# that large arguments go to infinity, where tanh is 1. Largest error against math.erf is 1.7e-7
# (2.7e-7 relative). A quotient of polynomials, as Eigen and XLA have it, takes twice as long.
_ERF = (1.41852602e-07, -5.66848277e-06, 8.76373750e-05, -6.19784797e-04, -1.91830628e-04,
        1.02769056e-01, 1.12837927e+00)  # fmt: skip


def erf_float32(x: Any, xp: ModuleType) -> Any:
    """Return erf(x) for a float32 array."""
    square = x * x
    total = square * np.float32(_ERF[0])
    total += np.float32(_ERF[1])
    for coefficient in _ERF[2:]:
        total *= square
        total += np.float32(coefficient)
    total *= x
    return xp.tanh(total)
