"""Fused ops of neural networks: activations, softmax, norms, losses, attention, positions."""

from __future__ import annotations

from mithril import ops
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.position import Rope
from mithril.types import DType

from mithril_torch.kernels.registry import Types, dtype, kernel, number, same

same(
    {
        ops.Sigmoid: "torch.sigmoid({0})",
        ops.Silu: "aten.silu({0})",
        ops.SiluGradient: "aten.silu_backward({1}, {0})",
        ops.LayerNormGradient: "layer_norm_gradient({0}, {1}, {2}, {3}, {4})",
        ops.RmsNormGradient: "rms_norm_gradient({0}, {1}, {2}, {3})",
        ops.CrossEntropy: "cross_entropy({0}, {1})",
        ops.CrossEntropyGradient: "cross_entropy_gradient({0}, {1}, {2}, {3})",
    }
)

_UNSIGNED = {DType.uint8, DType.uint16, DType.uint32}


@kernel(ops.Relu)
def relu(op: ops.Relu, types: Types) -> str:
    """max(x, 0)."""
    return "{0}" if types[0].dtype in _UNSIGNED else "torch.relu({0})"


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


@kernel(ops.LayerNorm)
def layer_norm(op: ops.LayerNorm, types: Types) -> str:
    """(y, mean, reciprocal standard deviation)."""
    return f"layer_norm({{0}}, {{1}}, {{2}}, {number(op.epsilon)})"


@kernel(ops.RmsNorm)
def rms_norm(op: ops.RmsNorm, types: Types) -> str:
    """(y, reciprocal root mean square)."""
    return f"rms_norm({{0}}, {{1}}, {number(op.epsilon)})"


@kernel(Attention)
def attention(op: Attention, types: Types) -> str:
    """(output, logarithm of the sum of exponentials)."""
    mask = ", {3}" if len(types) > 3 else ""
    return f"attention({{0}}, {{1}}, {{2}}, {op.causal}, {number(op.scale)}{mask})"


@kernel(AttentionGradient)
def attention_gradient(op: AttentionGradient, types: Types) -> str:
    """The gradients of q, k and v."""
    operands = "{0}, {1}, {2}, {3}, {4}, {5}"
    mask = ", {6}" if len(types) > 6 else ""
    return f"attention_gradient({operands}, {op.causal}, {number(op.scale)}{mask})"


@kernel(Rope)
def rope(op: Rope, types: Types) -> str:
    """Pairs of a head's elements turned by their angles."""
    how = f"{number(op.base)}, {op.offset}, {op.interleaved}, {op.inverse}"
    positions = ", {1}" if len(types) > 1 else ""
    return f"rope({{0}}, {how}{positions})"
