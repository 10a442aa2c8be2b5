"""Kernels of the elementwise ops."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.spi import KernelRun, Shape, TensorType, Types, ops
from mithril.spi.ops import Constant

from mithril_jax.kernels.table import kernel, same

same({
    ops.Negate: lax.neg, ops.Exp: lax.exp, ops.Log: lax.log, ops.Sqrt: lax.sqrt, ops.Rsqrt:
    lax.rsqrt, ops.Tanh: lax.tanh, ops.Sin: lax.sin, ops.Cos: lax.cos, ops.Sign: lax.sign,
    ops.LogicalNot: lax.bitwise_not, ops.BitwiseInvert: lax.bitwise_not, ops.Sigmoid: lax.logistic,
    ops.Expm1: lax.expm1, ops.Log1p: lax.log1p, ops.Tan: lax.tan, ops.Arctan: lax.atan, ops.Sinh:
    lax.sinh, ops.Cosh: lax.cosh, ops.Erf: lax.erf, ops.IsFinite: lax.is_finite, ops.IsNan:
    jnp.isnan, ops.IsInf: jnp.isinf, ops.StopGradient: lambda x: x,
})  # fmt: skip

_BINARY: dict[type[Any], KernelRun] = {
    ops.Add: lax.add, ops.Subtract: lax.sub, ops.Multiply: lax.mul, ops.Divide: lax.div,
    ops.Maximum: lax.max, ops.Minimum: lax.min, ops.Equal: lax.eq, ops.NotEqual: lax.ne,
    ops.Less: lax.lt, ops.LessEqual: lax.le, ops.Greater: lax.gt, ops.GreaterEqual: lax.ge,
    ops.LogicalAnd: lax.bitwise_and, ops.LogicalOr: lax.bitwise_or, ops.LogicalXor: lax.bitwise_xor,
    ops.BitwiseAnd: lax.bitwise_and, ops.BitwiseOr: lax.bitwise_or, ops.BitwiseXor: lax.bitwise_xor,
    ops.LeftShift: lax.shift_left, ops.Remainder: jnp.remainder,
}  # fmt: skip
_OF_BOOL: dict[type[Any], KernelRun] = {ops.Add: lax.bitwise_or, ops.Multiply: lax.bitwise_and}


def broadcast_to(shape: Shape, type: TensorType) -> KernelRun:
    """Return the function that stretches an operand to a shape, aligned at the right."""
    if type.shape == shape:
        return lambda x: x
    dimensions = tuple(range(len(shape) - type.rank, len(shape)))
    return lambda x: lax.broadcast_in_dim(x, shape, dimensions)


@kernel(*_BINARY)
def binary(op: Any, types: Types) -> KernelRun:
    """A function of two operands, each stretched to the shape of the result."""
    (result,) = op.infer(types)
    function = _BINARY[type(op)]
    if result.dtype == "bool":
        function = _OF_BOOL.get(type(op), function)
    if types[0].shape == types[1].shape:
        return function
    left, right = (broadcast_to(result.shape, t) for t in types)
    return lambda x, y: function(left(x), right(y))


@kernel(ops.FloorDivide)
def floor_divide(op: ops.FloorDivide, types: Types) -> KernelRun:
    """The quotient, rounded down; 0 where an integer is divided by 0."""
    (result,) = op.infer(types)
    left, right = (broadcast_to(result.shape, t) for t in types)
    if result.dtype.is_float:
        return lambda x, y: jnp.floor_divide(left(x), right(y))

    def divide(x: Any, y: Any) -> Any:
        x, y = left(x), right(y)
        is_zero = y == 0
        return jnp.where(is_zero, 0, jnp.floor_divide(x, jnp.where(is_zero, 1, y)))

    return divide


@kernel(ops.RightShift)
def right_shift(op: ops.RightShift, types: Types) -> KernelRun:
    """An arithmetic shift of signed numbers, a logical one of unsigned numbers."""
    (result,) = op.infer(types)
    unsigned = result.dtype.startswith("u")
    shift = lax.shift_right_logical if unsigned else lax.shift_right_arithmetic
    left, right = (broadcast_to(result.shape, t) for t in types)
    return lambda x, y: shift(left(x), right(y))


@kernel(ops.Power)
def power(op: ops.Power, types: Types) -> KernelRun:
    """x ** y; a negative power of an integer is 0, unless that is 1 or -1."""
    (result,) = op.infer(types)
    left, right = (broadcast_to(result.shape, t) for t in types)
    if result.dtype.is_float:
        return lambda x, y: lax.pow(left(x), right(y))
    if result.dtype.startswith("u"):
        return lambda x, y: jnp.power(left(x), right(y))

    def whole(x: Any, y: Any) -> Any:
        x, y = left(x), right(y)
        unit = jnp.where(x == 1, 1, jnp.where(x == -1, 1 - 2 * (y % 2), 0))
        return jnp.where(y < 0, unit, jnp.power(x, jnp.maximum(y, 0))).astype(x.dtype)

    return whole


@kernel(ops.Abs)
def magnitude(op: ops.Abs, types: Types) -> KernelRun:
    """|x|; numbers without a sign as they are."""
    return (lambda x: x) if types[0].dtype.startswith("u") else lax.abs


@kernel(ops.Floor, ops.Ceil, ops.Round, ops.Trunc)
def rounding(op: ops.Rounding, types: Types) -> KernelRun:
    """The step function, halves to the even number; whole numbers as they are."""
    if types[0].dtype.is_integer:
        return lambda x: x
    functions: dict[str, KernelRun] = {
        "floor": lax.floor,
        "ceil": lax.ceil,
        "round": lambda x: lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN),
        "trunc": jnp.trunc,
    }
    return functions[op.name]


@kernel(ops.Relu)
def relu(op: ops.Relu, types: Types) -> KernelRun:
    """max(x, 0)."""
    shape, zero = types[0].shape, np.zeros((), types[0].dtype.numpy)
    return lambda x: lax.max(x, lax.broadcast(zero, shape))


@kernel(ops.Cast)
def cast(op: ops.Cast, types: Types) -> KernelRun:
    """x in another dtype."""
    dtype = op.dtype.numpy
    return lambda x: lax.convert_element_type(x, dtype)


@kernel(ops.Where)
def where(op: ops.Where, types: Types) -> KernelRun:
    """x where the condition holds, else y."""
    (result,) = op.infer(types)
    condition, left, right = (broadcast_to(result.shape, t) for t in types)
    return lambda c, x, y: lax.select(condition(c), left(x), right(y))


@kernel(Constant)
def constant(op: Constant, types: Types) -> KernelRun:
    """A scalar, part of the compiled program."""
    value = np.asarray(op.value, op.dtype.numpy)
    return lambda: value


def lowest(type: TensorType) -> Any:
    """Return what every number of a dtype is at least."""
    dtype = type.dtype
    if dtype.is_float:
        return np.asarray(-math.inf, dtype.numpy)
    return np.asarray(np.iinfo(str(dtype)).min, dtype.numpy)
