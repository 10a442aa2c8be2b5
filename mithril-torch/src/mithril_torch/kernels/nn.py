"""Activations, softmax and their gradients."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.expression import dtype
from mithril_torch.kernels.table import kernel, same

same({ops.Silu: "aten.silu({0})", ops.SiluGradient: "aten.silu_backward({1}, {0})"})


@kernel(ops.Gelu)
def gelu(op: ops.Gelu, types: Types) -> str:
    """The exact or the tanh form."""
    return "aten.gelu({0}, approximate='tanh')" if op.approximate else "aten.gelu({0})"


@kernel(ops.GeluGradient)
def gelu_gradient(op: ops.GeluGradient, types: Types) -> str:
    """The derivative of gelu times the cotangent."""
    form = ", approximate='tanh'" if op.approximate else ""
    return f"aten.gelu_backward({{1}}, {{0}}{form})"


@kernel(ops.Softmax)
def softmax(op: ops.Softmax, types: Types) -> str:
    """16-bit floats are computed in float32 within the kernel."""
    return f"aten._softmax({{0}}, {op.axis}, False)"


@kernel(ops.LogSoftmax)
def log_softmax(op: ops.LogSoftmax, types: Types) -> str:
    """16-bit floats are computed in float32 within the kernel."""
    return f"aten._log_softmax({{0}}, {op.axis}, False)"


@kernel(ops.SoftmaxGradient)
def softmax_gradient(op: ops.SoftmaxGradient, types: Types) -> str:
    """y (g - sum(y g))."""
    return f"aten._softmax_backward_data({{1}}, {{0}}, {op.axis}, {dtype(types[0])})"
