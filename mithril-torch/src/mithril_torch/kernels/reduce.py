"""Reductions, and running sums. 16-bit floats are accumulated in float32."""

from __future__ import annotations

from mithril.spi import DType, TensorType, Types, ops

from mithril_torch.kernels.expression import dtype
from mithril_torch.kernels.table import kernel
from mithril_torch.kernels.unsigned import wide


@kernel(ops.Sum)
@wide
def total(op: ops.Sum, types: Types) -> str:
    """A sum; PyTorch itself accumulates 16-bit floats in float32."""
    (result,) = op.infer(types)
    if not op.axes:
        return convert("{0}", types[0], result)
    kind = f", dtype={dtype(result)}" if result.dtype.is_integer else ""
    if len(op.axes) == types[0].rank and not op.keepdims:
        return f"torch.sum({{0}}{kind})"
    return f"torch.sum({{0}}, {op.axes}{_format_keepdim(op)}{kind})"


@kernel(ops.Max, ops.Min, ops.AnyTrue, ops.AllTrue)
@wide
def extremum(op: ops.Reduction, types: Types) -> str:
    """The largest or smallest element, NaN if there is one; whether some or all are true."""
    function = {"max": "amax", "min": "amin"}.get(op.name, op.name)
    return f"torch.{function}({{0}}, {op.axes}{_format_keepdim(op)})" if op.axes else "{0}"


@kernel(ops.Argmax, ops.Argmin)
@wide
def arg_extremum(op: ops.ArgExtremum, types: Types) -> str:
    """The index of the first extreme element."""
    operand = "{0}.view(torch.uint8)" if types[0].dtype == DType.bool_ else "{0}"
    return f"torch.{op.name}({operand}, {op.axis}).to(torch.int32)"


@kernel(ops.Prod)
@wide
def prod(op: ops.Prod, types: Types) -> str:
    """A product, dimension by dimension."""
    (result,) = op.infer(types)
    kind, text = accumulator(result), "{0}"
    if not op.axes:
        return convert(text, types[0], result)
    for axis in sorted(op.axes, reverse=True):
        text = f"torch.prod({text}, {axis}{_format_keepdim(op)}, dtype={dtype(kind)})"
    return convert(text, kind, result)


@kernel(ops.Cumsum, ops.Cumprod)
@wide
def cumulative(op: ops.Cumsum | ops.Cumprod, types: Types) -> str:
    """A running sum or product."""
    (result,) = op.infer(types)
    kind, operand = accumulator(result), "{0}"
    if op.reverse:
        operand = f"torch.flip({operand}, ({op.axis},))"
    text = f"torch.{op.name}({operand}, {op.axis}, dtype={dtype(kind)})"
    return convert(f"torch.flip({text}, ({op.axis},))" if op.reverse else text, kind, result)


def accumulator(result: TensorType) -> TensorType:
    """Return the type in which a result is accumulated."""
    small = result.dtype.is_float and result.dtype.itemsize == 2
    return TensorType(result.shape, DType.float32) if small else result


def convert(text: str, made: TensorType, wanted: TensorType) -> str:
    """Return an expression in the dtype that is wanted."""
    return text if made.dtype == wanted.dtype else f"{text}.to({dtype(wanted)})"


def _format_keepdim(op: ops.Reduction) -> str:
    return ", keepdim=True" if op.keepdims else ""
