"""Kernels of the elementwise ops: arithmetic, functions of a number, comparison, bits, casts."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from mithril import ops
from mithril.engine.kernels.registry import Run, Types, kernel, same_name
from mithril.ir import Constant

same_name({
    ops.Add: "add", ops.Subtract: "subtract", ops.Multiply: "multiply", ops.Divide: "divide",
    ops.Maximum: "maximum", ops.Minimum: "minimum", ops.Negate: "negative",
    ops.Exp: "exp", ops.Log: "log", ops.Sqrt: "sqrt", ops.Tanh: "tanh", ops.Sin: "sin", ops.Cos:
    "cos", ops.Abs: "abs", ops.Sign: "sign", ops.Equal: "equal", ops.NotEqual: "not_equal",
    ops.Less: "less", ops.LessEqual: "less_equal", ops.Greater: "greater", ops.GreaterEqual:
    "greater_equal", ops.LogicalAnd: "logical_and", ops.LogicalOr: "logical_or", ops.LogicalNot:
    "logical_not", ops.LogicalXor: "logical_xor", ops.Expm1: "expm1", ops.Log1p: "log1p", ops.Tan:
    "tan", ops.Arctan: "atan", ops.Sinh: "sinh", ops.Cosh: "cosh", ops.IsNan: "isnan", ops.IsInf:
    "isinf", ops.IsFinite: "isfinite", ops.FloorDivide: "floor_divide", ops.Remainder: "remainder",
    ops.BitwiseAnd: "bitwise_and", ops.BitwiseOr: "bitwise_or", ops.BitwiseXor: "bitwise_xor",
    ops.BitwiseInvert: "bitwise_invert", ops.LeftShift: "bitwise_left_shift", ops.RightShift:
    "bitwise_right_shift",
})  # fmt: skip


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
    if xp is not np:
        run: Run = xp.where
        return run
    dtype = types[1].dtype.numpy
    bits = _BITS[dtype.itemsize]

    def choose(condition: Any, x: Any, y: Any) -> Any:
        chosen, x, y = condition.view(np.int8), x.view(bits), y.view(bits)
        if not y.ndim and y == 0:
            return (x * chosen).view(dtype)
        return (((x ^ y) * chosen) ^ y).view(dtype)

    return choose


@kernel(ops.Relu)
def relu(op: ops.Relu, types: Types, xp: ModuleType) -> Run:
    """max(x, 0)."""
    zero = xp.asarray(0, dtype=types[0].dtype.numpy)
    return lambda x: xp.maximum(x, zero)


@kernel(ops.Rsqrt)
def rsqrt(op: ops.Rsqrt, types: Types, xp: ModuleType) -> Run:
    """1 / sqrt(x)."""
    one = xp.asarray(1, dtype=types[0].dtype.numpy)
    return lambda x: xp.divide(one, xp.sqrt(x))


@kernel(ops.Cast)
def cast(op: ops.Cast, types: Types, xp: ModuleType) -> Run:
    """x in another dtype."""
    dtype = op.dtype.numpy
    return lambda x: xp.asarray(x, dtype=dtype)


@kernel(ops.StopGradient)
def stop_gradient(op: ops.StopGradient, types: Types, xp: ModuleType) -> Run:
    """X itself."""
    return lambda x: x


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


@kernel(ops.Floor, ops.Ceil, ops.Round, ops.Trunc)
def rounding(op: ops.Rounding, types: Types, xp: ModuleType) -> Run:
    """The step function; whole numbers as they are."""
    if types[0].dtype.is_integer:
        return lambda x: x
    run: Run = getattr(xp, op.name)
    return run


@kernel(ops.Sigmoid)
def sigmoid(op: ops.Sigmoid, types: Types, xp: ModuleType) -> Run:
    """The logistic function without overflow: of e ** -|x|, which is at most 1."""
    one = xp.asarray(1, dtype=types[0].dtype.numpy)

    def run(x: Any) -> Any:
        small = xp.exp(-xp.abs(x))
        return xp.where(x >= 0, one, small) / (one + small)

    return run


@kernel(ops.Power)
def power(op: ops.Power, types: Types, xp: ModuleType) -> Run:
    """x ** y; of integers by hand where the exponent is negative, which NumPy refuses."""
    dtype = types[0].dtype
    if not dtype.is_integer or dtype.startswith("u"):
        run: Run = xp.pow
        return run
    zero, one = (xp.asarray(n, dtype=dtype.numpy) for n in (0, 1))

    def whole(x: Any, y: Any) -> Any:
        result = xp.pow(x, xp.maximum(y, zero))
        is_odd = (y % 2) != 0
        unit = xp.where(x == one, one, xp.where(x == -one, xp.where(is_odd, -one, one), zero))
        return xp.where(y < 0, unit, result)

    return whole
