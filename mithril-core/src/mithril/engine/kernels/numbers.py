"""Kernels of the functions of one number, and of whole-number arithmetic."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from mithril import ops
from mithril.engine.kernels.registry import Run, Types, kernel, same_name

same_name({
    ops.Expm1: "expm1", ops.Log1p: "log1p", ops.Tan: "tan", ops.Arctan: "atan", ops.Sinh: "sinh",
    ops.Cosh: "cosh", ops.IsNan: "isnan", ops.IsInf: "isinf", ops.IsFinite: "isfinite",
    ops.FloorDivide: "floor_divide", ops.Remainder: "remainder", ops.BitwiseAnd: "bitwise_and",
    ops.BitwiseOr: "bitwise_or", ops.BitwiseXor: "bitwise_xor", ops.BitwiseInvert:
    "bitwise_invert", ops.LeftShift: "bitwise_left_shift", ops.RightShift: "bitwise_right_shift",
    ops.LogicalXor: "logical_xor",
})  # fmt: skip


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
