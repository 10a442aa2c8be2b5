"""Shared kernels of the elementwise ops: arithmetic, functions of a number, comparison, casts."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from mithril import ops
from mithril.engine.kernel_table import Run, Types
from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.engine.standard.table import kernel, same_name
from mithril.ir import Constant
from mithril.types import DType

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
    "bitwise_right_shift", ops.Where: "where",
}, of_booleans={
    ops.Add: "logical_or", ops.Multiply: "logical_and", ops.Maximum: "logical_or", ops.Minimum:
    "logical_and",
})  # fmt: skip


@kernel(Constant)
def constant(op: Constant, types: Types, xp: ArrayNamespace) -> Run:
    """A scalar array, made once."""
    value = xp.asarray(op.value, dtype=dtype_in(xp, op.dtype))
    return lambda: value


@kernel(ops.StopGradient)
def stop_gradient(op: ops.StopGradient, types: Types, xp: ArrayNamespace) -> Run:
    """X itself."""
    return lambda x: x


@kernel(ops.Cast)
def cast(op: ops.Cast, types: Types, xp: ArrayNamespace) -> Run:
    """x in another dtype."""
    dtype = dtype_in(xp, op.dtype)
    return lambda x: xp.astype(x, dtype, copy=False)


@kernel(ops.Relu)
def relu(op: ops.Relu, types: Types, xp: ArrayNamespace) -> Run:
    """max(x, 0)."""
    zero = xp.asarray(0, dtype=dtype_in(xp, types[0].dtype))
    return lambda x: xp.maximum(x, zero)


@kernel(ops.Rsqrt)
def rsqrt(op: ops.Rsqrt, types: Types, xp: ArrayNamespace) -> Run:
    """1 / sqrt(x)."""
    one = xp.asarray(1, dtype=dtype_in(xp, types[0].dtype))
    return lambda x: xp.divide(one, xp.sqrt(x))


@kernel(ops.Sigmoid)
def sigmoid(op: ops.Sigmoid, types: Types, xp: ArrayNamespace) -> Run:
    """The logistic function without overflow: of e ** -|x|, which is at most 1."""
    one = xp.asarray(1, dtype=dtype_in(xp, types[0].dtype))

    def run(x: Any) -> Any:
        small = xp.exp(-xp.abs(x))
        return xp.where(x >= 0, one, small) / (one + small)

    return run


def rounding(function: str, op: ops.Rounding, types: Types, xp: ArrayNamespace) -> Run:
    """The step function; whole numbers as they are."""
    run: Run = getattr(xp, function)
    return (lambda x: x) if types[0].dtype.is_integer else run


for op_class in (ops.Floor, ops.Ceil, ops.Round, ops.Trunc):
    kernel(op_class)(partial(rounding, op_class.name))


@kernel(ops.Power)
def power(op: ops.Power, types: Types, xp: ArrayNamespace) -> Run:
    """x ** y; of integers by hand where y is negative, which the standard leaves open."""
    dtype = types[0].dtype
    if not dtype.is_integer or dtype.startswith("u"):
        run: Run = xp.pow
        return run
    zero, one, two = (xp.asarray(n, dtype=dtype_in(xp, dtype)) for n in (0, 1, 2))

    def whole(x: Any, y: Any) -> Any:
        result = xp.pow(x, xp.maximum(y, zero))
        is_odd = xp.remainder(y, two) != zero
        unit = xp.where(x == one, one, xp.where(x == -one, xp.where(is_odd, -one, one), zero))
        return xp.where(y < zero, unit, result)

    return whole


@kernel(ops.Erf)
def erf(op: ops.Erf, types: Types, xp: ArrayNamespace) -> Run:
    """The error function, which the standard does not have: a series, in at least float32."""
    dtype, wide = (dtype_in(xp, chosen) for chosen in (types[0].dtype, widen(types[0].dtype)))
    furthest, terms = (6.0, 150) if types[0].dtype == DType.float64 else (4.0, 64)

    def run(x: Any) -> Any:
        x = xp.astype(x, wide, copy=False)
        size, last = xp.abs(x), xp.asarray(furthest, dtype=wide)
        found = _erf(xp.minimum(size, last), terms, xp)
        # Exactly 1 where it rounds to that: gelu multiplies what is left of it by x.
        found = xp.where(size >= last, xp.asarray(1.0, dtype=wide), found)
        return xp.astype(xp.sign(x) * found, dtype, copy=False)

    return run


def _erf(x: Any, terms: int, xp: ArrayNamespace) -> Any:
    """Return erf(x) of numbers that are not negative.

    It is 2 / sqrt(pi) x e ** -x^2 (1 + 2 x^2 / 3 (1 + 2 x^2 / 5 (1 + …))), equation 7.1.6 of
    Abramowitz and Stegun: all terms are positive, so that nothing cancels.
    """
    square = x * x
    total = xp.zeros_like(x) + 1.0
    for n in range(terms, 0, -1):
        total = total * square * (2.0 / (2 * n + 1)) + 1.0
    return total * x * xp.exp(-square) * (2.0 / math.sqrt(math.pi))
