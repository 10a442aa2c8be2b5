"""The benchmarks' models as one writes them in MLX: functions of parameters and inputs to the loss.

Parameters are called as in Mithril's models. Gradients come from `mx.value_and_grad`; on several
ranks each has its part of the batch, and `mlx.nn.average_gradients` brings the gradients together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn

Params = dict[str, mx.array]
Loss = Callable[[Params, mx.array, mx.array], mx.array]
Step = Callable[[Params, mx.array, mx.array], tuple[mx.array, Params]]


def mlp(params: Params, x: mx.array, target: mx.array) -> mx.array:
    """The MLP of `numpy_mlp`, with relu, from inputs and targets to the mean cross-entropy."""
    depth = len(params) // 2
    for i in range(depth):
        x = _linear(params, f"layer{i}", x)
        if i < depth - 1:
            x = nn.relu(x)
    return nn.losses.cross_entropy(x, target, reduction="mean")


def gpt(heads: int) -> Loss:
    """Return the GPT of `mithril.cli.gpt`, from tokens and targets to the mean cross-entropy."""

    def loss(params: Params, tokens: mx.array, target: mx.array) -> mx.array:
        x = params["embed.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
        layers = sum(name.endswith(".norm1.weight") for name in params)
        for block in (f"block{i}" for i in range(layers)):
            x = x + _attention(params, f"{block}.attn", _norm(params, f"{block}.norm1", x), heads)
            hidden = _linear(params, f"{block}.mlp.up", _norm(params, f"{block}.norm2", x))
            x = x + _linear(params, f"{block}.mlp.down", nn.gelu(hidden))
        logits = _linear(params, "head", _norm(params, "norm", x))
        return nn.losses.cross_entropy(logits, target, reduction="mean")

    return loss


def llama(heads: int) -> Loss:
    """Return the Llama of `training_cases`, from tokens and targets to the mean cross-entropy."""

    def norm(params: Params, name: str, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, params[f"{name}.weight"], 1e-6)

    def attention(params: Params, name: str, x: mx.array) -> mx.array:
        batch, length, width = x.shape
        size = width // heads
        q, k, v = (
            (x @ params[f"{name}.{part}.weight"].T).reshape(batch, length, -1, size).swapaxes(1, 2)
            for part in "qkv"
        )
        q, k = (
            mx.fast.rope(part, size, traditional=False, base=10000.0, scale=1.0, offset=0)
            for part in (q, k)
        )
        mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=size**-0.5, mask="causal")
        return mixed.swapaxes(1, 2).reshape(batch, length, width) @ params[f"{name}.o.weight"].T

    def loss(params: Params, tokens: mx.array, target: mx.array) -> mx.array:
        x = params["embed.weight"][tokens]
        layers = sum(name.endswith(".norm1.weight") for name in params)
        for block in (f"block{i}" for i in range(layers)):
            x = x + attention(params, f"{block}.attn", norm(params, f"{block}.norm1", x))
            normed = norm(params, f"{block}.norm2", x)
            gate = nn.silu(normed @ params[f"{block}.mlp.gate.weight"].T)
            hidden = gate * (normed @ params[f"{block}.mlp.up.weight"].T)
            x = x + hidden @ params[f"{block}.mlp.down.weight"].T
        logits = norm(params, "norm", x) @ params["head.weight"].T
        return nn.losses.cross_entropy(logits, target, reduction="mean")

    return loss


def _attention(params: Params, name: str, x: mx.array, heads: int) -> mx.array:
    batch, length, width = x.shape
    q, k, v = (
        _linear(params, f"{name}.{part}", x).reshape(batch, length, heads, -1).swapaxes(1, 2)
        for part in "qkv"
    )
    scale = (width // heads) ** -0.5
    mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
    return _linear(params, f"{name}.o", mixed.swapaxes(1, 2).reshape(batch, length, width))


def _linear(params: Params, name: str, x: mx.array) -> mx.array:
    return mx.addmm(params[f"{name}.bias"], x, params[f"{name}.weight"].T)


def _norm(params: Params, name: str, x: mx.array) -> mx.array:
    return mx.fast.layer_norm(x, params[f"{name}.weight"], params[f"{name}.bias"], 1e-5)


def step(loss: Loss, group: Any = None) -> Step:
    """Return the function that gives a loss and the gradients of all parameters.

    Args:
        loss: of parameters and inputs.
        group: of ranks whose gradients are averaged.
    """
    differentiated: Step = mx.value_and_grad(loss)
    if group is None:
        return differentiated

    def averaged(params: Params, *inputs: mx.array) -> tuple[mx.array, Params]:
        found, gradients = differentiated(params, *inputs)
        return found, nn.average_gradients(gradients, group)

    return averaged
