"""Elementwise ops: arithmetic, functions of numbers, comparison and choice, bits, casts.

Operands of different shapes meet by PyTorch's broadcasting; they have one dtype, scalars included.
"""

from __future__ import annotations

from typing import Any

from mithril.spi import DType, Types, ops
from mithril.spi.ops import Constant

from mithril_torch.kernels.expression import Direct, dtype, number
from mithril_torch.kernels.table import EmitExpression, kernel, same
from mithril_torch.kernels.unsigned import as_signed, in_order, wide

same({
    ops.Divide: "torch.div({0}, {1})", ops.Exp: "torch.exp({0})", ops.Log: "torch.log({0})",
    ops.Sqrt: "torch.sqrt({0})", ops.Rsqrt: "torch.rsqrt({0})", ops.Tanh: "torch.tanh({0})",
    ops.Sin: "torch.sin({0})", ops.Cos: "torch.cos({0})", ops.Tan: "torch.tan({0})",
    ops.Arctan: "torch.atan({0})", ops.Sinh: "torch.sinh({0})", ops.Cosh: "torch.cosh({0})",
    ops.Erf: "torch.erf({0})", ops.Expm1: "torch.expm1({0})", ops.Log1p: "torch.log1p({0})",
    ops.IsNan: "torch.isnan({0})", ops.IsInf: "torch.isinf({0})",
    ops.IsFinite: "torch.isfinite({0})",
    ops.LogicalAnd: "torch.logical_and({0}, {1})", ops.LogicalOr: "torch.logical_or({0}, {1})",
    ops.Sigmoid: "torch.sigmoid({0})", ops.StopGradient: "{0}",
    ops.LogicalXor: "torch.logical_xor({0}, {1})", ops.LogicalNot: "torch.logical_not({0})",
})  # fmt: skip

_BITS = {
    ops.Add: "torch.add({0}, {1})", ops.Subtract: "torch.sub({0}, {1})",
    ops.Multiply: "torch.mul({0}, {1})", ops.Negate: "torch.neg({0})",
    ops.Equal: "torch.eq({0}, {1})", ops.NotEqual: "torch.ne({0}, {1})",
    ops.BitwiseAnd: "torch.bitwise_and({0}, {1})", ops.BitwiseOr: "torch.bitwise_or({0}, {1})",
    ops.BitwiseXor: "torch.bitwise_xor({0}, {1})", ops.BitwiseInvert: "torch.bitwise_not({0})",
    ops.LeftShift: "torch.bitwise_left_shift({0}, {1})",
}  # fmt: skip
_ORDER = {
    ops.Less: "torch.lt({0}, {1})", ops.LessEqual: "torch.le({0}, {1})",
    ops.Greater: "torch.gt({0}, {1})", ops.GreaterEqual: "torch.ge({0}, {1})",
}  # fmt: skip
_NUMBERS = {
    ops.Maximum: "torch.maximum({0}, {1})", ops.Minimum: "torch.minimum({0}, {1})",
    ops.Power: "torch.pow({0}, {1})", ops.RightShift: "torch.bitwise_right_shift({0}, {1})",
}  # fmt: skip


FEW = 4096
"""Up to so many elements one call is faster than the few that `choose` makes."""


def _always(text: str) -> EmitExpression:
    return lambda op, types: text


for _way, _table in ((as_signed, _BITS), (in_order, _ORDER), (wide, _NUMBERS)):
    for _op, _text in _table.items():
        kernel(_op)(_way(_always(_text)))


@kernel(ops.FloorDivide, ops.Remainder)
@wide
def division(op: ops.FloorDivide | ops.Remainder, types: Types) -> str:
    """Division with remainder; by zero that of integers gives 0, where PyTorch stops."""
    prefix = "torch." if types[0].dtype.is_float else "whole_"
    return f"{prefix}{op.name}({{0}}, {{1}})"


@kernel(ops.Where)
def where(op: ops.Where, types: Types) -> str:
    """x where the condition holds, else y."""
    (result,) = op.infer(types)
    return f"{'torch.where' if result.size <= FEW else 'choose'}({{0}}, {{1}}, {{2}})"


@kernel(ops.Abs)
def magnitude(op: ops.Abs, types: Types) -> str:
    """|x|; numbers without a sign as they are."""
    has_sign = types[0].dtype != DType.bool_ and not types[0].dtype.startswith("u")
    return "torch.abs({0})" if has_sign else "{0}"


@kernel(ops.Sign)
@wide
def sign(op: ops.Sign, types: Types) -> str:
    """The sign; of NaN it is NaN, where PyTorch says 0."""
    return "sign({0})" if types[0].dtype.is_float else "torch.sign({0})"


@kernel(ops.Floor, ops.Ceil, ops.Round, ops.Trunc)
def rounding(op: ops.Rounding, types: Types) -> str:
    """The step function, halves to the even number; whole numbers as they are."""
    return "{0}" if types[0].dtype.is_integer else f"torch.{op.name}({{0}})"


@kernel(ops.Cast)
def cast(op: Any, types: Types) -> str:
    """x in another dtype."""
    if op.dtype == types[0].dtype:
        return "{0}"
    return Direct(f"{{0}}.to({dtype(op.dtype)})", "{out}.copy_({0})")


_UNSIGNED = {DType.uint8, DType.uint16, DType.uint32}


@kernel(ops.Relu)
def relu(op: ops.Relu, types: Types) -> str:
    """max(x, 0)."""
    if types[0].dtype in _UNSIGNED:
        return "{0}"
    return Direct("torch.relu({0})", "torch.clamp_min({0}, 0, out={out})")


@kernel(Constant)
def constant(op: Constant, types: Types) -> str:
    """A scalar; programs make it once, when they are loaded."""
    return f"torch.full((), {number(op.value)}, dtype={dtype(op.dtype)}, device=device)"
