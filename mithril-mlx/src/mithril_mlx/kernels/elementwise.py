"""Kernels of the elementwise ops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mithril.spi import DType, KernelRun, TensorType, Types, ops
from mithril.spi.ops import Constant

from mithril_mlx.kernels import double
from mithril_mlx.kernels.bits import bits_of, mask
from mithril_mlx.kernels.exponential import error_function, exponential, sigmoid
from mithril_mlx.kernels.precision import in_float32, is_vectorized
from mithril_mlx.kernels.table import kernel, same
from mithril_mlx.tensors import mlx_dtype, to_mlx, zero

same({
    ops.Add: mx.add, ops.Subtract: mx.subtract, ops.Multiply: mx.multiply, ops.Divide: mx.divide,
    ops.Maximum: mx.maximum, ops.Minimum: mx.minimum, ops.Negate: mx.negative, ops.Abs: mx.abs,
    ops.Log: mx.log, ops.Sqrt: mx.sqrt, ops.Rsqrt: mx.rsqrt, ops.Tanh: mx.tanh, ops.Expm1:
    mx.expm1, ops.Log1p: mx.log1p, ops.Tan: mx.tan, ops.Arctan: mx.arctan, ops.Sinh: mx.sinh,
    ops.Cosh: mx.cosh, ops.IsNan: mx.isnan, ops.IsInf: mx.isinf, ops.IsFinite: mx.isfinite,
    ops.Equal: mx.equal, ops.NotEqual: mx.not_equal, ops.Less: mx.less, ops.LessEqual:
    mx.less_equal, ops.Greater: mx.greater, ops.GreaterEqual: mx.greater_equal, ops.LogicalAnd:
    mx.logical_and, ops.LogicalOr: mx.logical_or, ops.LogicalNot: mx.logical_not, ops.LogicalXor:
    mx.not_equal, ops.BitwiseAnd: mx.bitwise_and, ops.BitwiseOr: mx.bitwise_or, ops.BitwiseXor:
    mx.bitwise_xor, ops.BitwiseInvert: mx.bitwise_invert,
    ops.StopGradient: lambda x: x,
})  # fmt: skip

_WAVES: dict[type[Any], tuple[KernelRun, KernelRun]] = {
    ops.Sin: (mx.sin, double.sin), ops.Cos: (mx.cos, double.cos),
}  # fmt: skip
_GROWTH: dict[type[Any], Callable[[TensorType], KernelRun]] = {
    ops.Exp: exponential, ops.Erf: error_function, ops.Sigmoid: sigmoid,
}  # fmt: skip


@kernel(*_WAVES)
def wave(op: Any, types: Types) -> KernelRun:
    """A periodic function, exact in float64 too."""
    return _WAVES[type(op)][types[0].dtype == DType.float64]


@kernel(*_GROWTH)
def growth(op: Any, types: Types) -> KernelRun:
    """A function made of exponentials."""
    return _GROWTH[type(op)](types[0])


@kernel(ops.Cast)
def cast(op: ops.Cast, types: Types) -> KernelRun:
    """x in another dtype."""
    dtype = mlx_dtype(op.dtype)
    return lambda x: x.astype(dtype)


@kernel(Constant)
def constant(op: Constant, types: Types) -> KernelRun:
    """A scalar array, made once; zeros are all one array, by which kernels know them."""
    is_zero = not any(np.asarray(op.value, op.dtype.numpy).tobytes())  # -0.0 is another number
    value = zero(op.dtype) if is_zero else number(op.value, op.dtype)
    return lambda: value


def number(value: object, dtype: DType) -> mx.array:
    """Return a scalar array; next to a bare Python scalar MLX would choose the dtype.

    >>> number(1, DType.int8).dtype
    mlx.core.int8
    """
    return to_mlx(np.asarray(value, dtype.numpy))


@kernel(ops.Relu)
def relu(op: ops.Relu, types: Types) -> KernelRun:
    """max(x, 0)."""
    zero = number(0, types[0].dtype)
    return lambda x: mx.maximum(x, zero)


@kernel(ops.Sign)
def sign(op: ops.Sign, types: Types) -> KernelRun:
    """-1, 0 or 1; NaN stays, which MLX makes 0."""
    if types[0].dtype.is_integer:
        return mx.sign
    return lambda x: mx.where(mx.isnan(x), x, mx.sign(x))


@kernel(ops.Floor, ops.Ceil, ops.Round, ops.Trunc)
def rounding(op: ops.Rounding, types: Types) -> KernelRun:
    """The step function, halves to the even number; whole numbers as they are."""
    if types[0].dtype.is_integer:
        return lambda x: x
    functions: dict[str, KernelRun] = {
        "floor": mx.floor, "ceil": mx.ceil, "round": mx.round, "trunc": mx.trunc,
    }  # fmt: skip
    return functions[op.name]


@kernel(ops.LeftShift)
def left_shift(op: ops.LeftShift, types: Types) -> KernelRun:
    """The bits moved up; all of them are gone after as many places as there are."""
    dtype = types[0].dtype
    zero, unsigned, bits = number(0, dtype), _to_unsigned(dtype), 8 * dtype.itemsize
    return lambda x, y: mx.where(y.astype(unsigned) < bits, mx.left_shift(x, y), zero)


@kernel(ops.RightShift)
def right_shift(op: ops.RightShift, types: Types) -> KernelRun:
    """The bits moved down; the processor knows no more places than there are less one."""
    dtype = types[0].dtype
    zero, unsigned, bits = number(0, dtype), _to_unsigned(dtype), 8 * dtype.itemsize
    if dtype.startswith("u"):
        return lambda x, y: mx.where(y < bits, mx.right_shift(x, y), zero)
    own = mlx_dtype(dtype)
    return lambda x, y: mx.right_shift(x, mx.minimum(y.astype(unsigned), bits - 1).astype(own))


def _to_unsigned(dtype: DType) -> mx.Dtype:
    return mlx_dtype(np.dtype(f"uint{8 * dtype.itemsize}"))


@kernel(ops.Power)
def power(op: ops.Power, types: Types) -> KernelRun:
    """x ** y; a negative power of an integer is 0, unless that is 1 or -1."""
    dtype = types[0].dtype
    if dtype.is_float or dtype.startswith("u"):
        return mx.power
    zero, one, minus, two = (number(n, dtype) for n in (0, 1, -1, 2))

    def whole(x: Any, y: Any) -> Any:
        sign = one - two * mx.bitwise_and(y, one)
        unit = mx.where(mx.equal(x, one), one, mx.where(mx.equal(x, minus), sign, zero))
        return mx.where(y < zero, unit, mx.power(x, mx.maximum(y, zero)))

    return whole


@kernel(ops.FloorDivide)
def floor_divide(op: ops.FloorDivide, types: Types) -> KernelRun:
    """The largest whole number not above x / y; 0 where an integer is divided by 0."""
    dtype = types[0].dtype
    if dtype.is_float:
        return _floor_divide(op, types)
    apart, one = _apart(dtype), number(1, dtype)

    def whole(x: Any, y: Any) -> Any:
        is_apart = apart(y)
        return mx.where(is_apart, x * y, mx.floor_divide(x, mx.where(is_apart, one, y)))

    return whole


@kernel(ops.Remainder)
def remainder(op: ops.Remainder, types: Types) -> KernelRun:
    """What floor_divide leaves, of the sign of y; 0 where an integer is divided by 0."""
    dtype = types[0].dtype
    if dtype.is_float:
        return mx.remainder
    apart, one = _apart(dtype), number(1, dtype)
    return lambda x, y: mx.remainder(x, mx.where(apart(y), one, y))


def _apart(dtype: DType) -> KernelRun:
    """Return the function that finds divisors 0 and -1: by those the processor may refuse."""
    zero = number(0, dtype)
    if dtype.startswith("u"):
        return lambda y: mx.equal(y, zero)
    minus = number(-1, dtype)
    return lambda y: mx.logical_or(mx.equal(y, zero), mx.equal(y, minus))


@in_float32
def _floor_divide(op: ops.FloorDivide, types: Types) -> KernelRun:
    """Return NumPy's floor_divide of floats: from the remainder, as x / y may round upwards."""
    zero = number(0, types[0].dtype)

    def run(x: Any, y: Any) -> Any:
        size, by = mx.abs(x), mx.abs(y)
        rest = mx.remainder(size, by)
        times = mx.round((size - rest) / by)
        below = -(times + mx.not_equal(rest, zero))
        floor = mx.where(mx.not_equal(x < zero, y < zero), below, times)
        return mx.where(mx.equal(y, zero), x / y, floor)

    return run


SMALL = 4096
"""Elements for which a call takes longer than what it does."""


@kernel(ops.Where)
def where(op: ops.Where, types: Types) -> KernelRun:
    """x where the condition holds, else y.

    On a CPU without Apple's libraries MLX branches at every element, which takes 25 times as long
    as an addition. There the bits are chosen instead, five passes that do not branch; three where
    the other array is a constant 0, as in the gradient of relu.
    """
    (result,) = op.infer(types)
    if is_vectorized() or result.dtype == DType.bool_ or math.prod(result.shape) < SMALL:
        return mx.where
    bits, dtype, nothing = bits_of(result), mlx_dtype(result.dtype), zero(result.dtype)

    def choose(condition: mx.array, x: mx.array, y: mx.array) -> mx.array:
        if y is nothing:
            return mx.view(mx.bitwise_and(mx.view(x, bits), mask(condition, bits)), dtype)
        other = mx.view(y, bits)
        differing = mx.bitwise_and(mx.bitwise_xor(mx.view(x, bits), other), mask(condition, bits))
        return mx.view(mx.bitwise_xor(other, differing), dtype)

    return choose
