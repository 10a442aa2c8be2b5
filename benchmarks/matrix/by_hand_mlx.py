"""The models of the matrix as one writes them in MLX: functions of parameters and inputs to the loss.

Images and filters lie as MLX's convolutions want them, channels last, from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from mlx import nn

from benchmarks import mlx_by_hand
from benchmarks.matrix.cases import STEP, Row, Sizes
from benchmarks.matrix.models import GROUPS, resnet_blocks

Params = dict[str, mx.array]
Loss = Callable[..., mx.array]
LAST = (0, 2, 3, 1)
"""The order of dimensions of images and filters with their channels last."""


def make_loss(row: Row) -> Loss:
    """Return the loss of a row, of parameters by the names by hand and the inputs."""
    s = row.sizes
    if row.model == "mlp":
        return mlx_by_hand.mlp
    if row.model in ("gpt", "long-sequence"):
        return mlx_by_hand.gpt(s["heads"])
    if row.model == "llama":
        return mlx_by_hand.llama(s["heads"])
    if row.model == "vit":
        return partial(vit, s=s)
    if row.model == "unet":
        return partial(unet, s=s)
    if row.model == "lstm":
        return partial(lstm, s=s)
    return partial(resnet, s=s, training=row.kind == STEP)


def order_of(name: str, x: np.ndarray) -> tuple[int, ...]:
    """Return the order of a parameter's dimensions in MLX."""
    if x.ndim != 4:
        return tuple(range(x.ndim))
    return (1, 2, 3, 0) if name.startswith("larger_") else LAST


def to_mlx(name: str, x: np.ndarray) -> mx.array:
    """Return a parameter as the models here take it."""
    return mx.array(np.ascontiguousarray(x.transpose(order_of(name, x))))


def from_mlx(name: str, x: mx.array) -> np.ndarray:
    """Return a parameter, or its gradient, as Mithril has it."""
    found = np.array(x)
    return found.transpose(np.argsort(order_of(name, found)))


def _linear(params: Params, name: str, x: mx.array) -> mx.array:
    return mx.addmm(params[f"{name}.bias"], x, params[f"{name}.weight"].T)


def _norm(params: Params, name: str, x: mx.array) -> mx.array:
    return mx.fast.layer_norm(x, params[f"{name}.weight"], params[f"{name}.bias"], 1e-5)


def _cross_entropy(logits: mx.array, target: mx.array) -> mx.array:
    return nn.losses.cross_entropy(logits, target, reduction="mean")


# ------------------------------------------------------------------ ViT


def vit(params: Params, image: mx.array, target: mx.array, s: Sizes) -> mx.array:
    patches = mx.conv2d(image, params["patches.project.weight"], stride=s["patch"])
    patches = (patches + params["patches.project.bias"]).reshape(len(image), -1, s["width"])
    first = mx.broadcast_to(params["patches.first"], (len(image), 1, s["width"]))
    x = mx.concatenate((first, patches), 1) + params["patches.at.weight"]
    for i in range(s["layers"]):
        # Of the last block nobody reads but the first position.
        block, count = f"block{i}", 1 if i == s["layers"] - 1 else x.shape[1]
        normed = _norm(params, f"{block}.norm1", x)
        x = x[:, :count] + _attention(params, f"{block}.attn", normed, s["heads"], count)
        hidden = _linear(params, f"{block}.mlp.up", _norm(params, f"{block}.norm2", x))
        x = x + _linear(params, f"{block}.mlp.down", nn.gelu(hidden))
    return _cross_entropy(_linear(params, "head", _norm(params, "norm", x[:, 0])), target)


def _attention(params: Params, name: str, x: mx.array, heads: int, count: int) -> mx.array:
    """Return what the first positions see."""
    batch, _, width = x.shape
    q, k, v = (
        _linear(params, f"{name}.{part}", given).reshape(batch, -1, heads, width // heads)
        for part, given in (("q", x[:, :count]), ("k", x), ("v", x))
    )
    q, k, v = (part.swapaxes(1, 2) for part in (q, k, v))
    mixed = mx.fast.scaled_dot_product_attention(q, k, v, scale=(width // heads) ** -0.5)
    return _linear(params, f"{name}.o", mixed.swapaxes(1, 2).reshape(batch, count, width))


# ------------------------------------------------------------------ images


def resnet(params: Params, image: mx.array, target: mx.array, s: Sizes, training: bool) -> mx.array:
    """Return the loss; running statistics, a number a channel, are not kept."""

    def normed(conv: str, norm: str, x: mx.array, stride: int = 1) -> mx.array:
        weight = params[f"{conv}.weight"]
        x = mx.conv2d(x, weight, stride, weight.shape[1] // 2)
        mean: Any = 0.0  # the running ones at first
        variance: Any = mx.array(1.0)
        if training:
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        scale = params[f"{norm}.weight"] * mx.rsqrt(variance + 1e-5)
        return x * scale + (params[f"{norm}.bias"] - mean * scale)

    x = nn.relu(normed("stem_conv", "stem_norm", image))
    for name, before, after, stride in resnet_blocks(s):
        inner = nn.relu(normed(f"{name}_conv1", f"{name}_norm1", x, stride))
        inner = normed(f"{name}_conv2", f"{name}_norm2", inner)
        if before != after:
            x = normed(f"{name}_short_conv", f"{name}_short_norm", x, stride)
        x = nn.relu(x + inner)
    return _cross_entropy(_linear(params, "head", x.mean((1, 2))), target)


def unet(params: Params, image: mx.array, target: mx.array, s: Sizes) -> mx.array:
    def normed(name: str, x: mx.array) -> mx.array:
        batch, high, wide, _ = x.shape
        # As `mlx.nn.GroupNorm` with the groups of PyTorch: each is a row of its own.
        split = x.reshape(batch, high * wide, GROUPS, -1).swapaxes(1, 2)
        flat = mx.fast.layer_norm(split.reshape(batch, GROUPS, -1), None, None, 1e-5)
        back = flat.reshape(split.shape).swapaxes(1, 2).reshape(x.shape)
        return back * params[f"{name}.weight"] + params[f"{name}.bias"]

    def twice(name: str, x: mx.array) -> mx.array:
        for i in range(2):
            x = mx.conv2d(x, params[f"{name}.conv_{i}.weight"], padding=1)
            x = nn.silu(normed(f"{name}.norm_{i}", x))
        return x

    x, kept = image, []
    for level in range(s["levels"]):
        x = twice(f"down_{level}", x)
        kept.append(x)
        if level < s["levels"] - 1:
            batch, high, wide, channels = x.shape
            x = x.reshape(batch, high // 2, 2, wide // 2, 2, channels).max((2, 4))
    for level in reversed(range(s["levels"] - 1)):
        wider = mx.conv_transpose2d(x, params[f"larger_{level}.weight"], 2)
        wider = wider + params[f"larger_{level}.bias"]
        x = twice(f"up_{level}", mx.concatenate((kept[level], wider), 3))
    logits = (x @ params["head.weight"].reshape(1, -1).T + params["head.bias"]).reshape(
        target.shape
    )
    return nn.losses.binary_cross_entropy(logits, target, with_logits=True)


# ------------------------------------------------------------------ LSTM


def lstm(params: Params, tokens: mx.array, target: mx.array, s: Sizes) -> mx.array:
    x = params["table.weight"][tokens]
    for i in range(s["layers"]):
        x = _lstm_layer(params, f"lstm.layer_{i}", x, s["width"])
    return _cross_entropy(_linear(params, "head", x), target)


def _lstm_layer(params: Params, name: str, x: mx.array, width: int) -> mx.array:
    into, across = (
        params[f"{name}.{part}.weight"].reshape(4 * width, -1).T for part in ("input", "hidden")
    )
    bias = (params[f"{name}.input.bias"] + params[f"{name}.hidden.bias"]).reshape(-1)
    given = mx.addmm(bias, x, into)
    hidden = cell = mx.zeros((x.shape[0], width))
    found = []
    for position in range(x.shape[1]):
        i, f, g, o = mx.split(mx.addmm(given[:, position], hidden, across), 4, -1)
        cell = mx.sigmoid(f) * cell + mx.sigmoid(i) * mx.tanh(g)
        hidden = mx.sigmoid(o) * mx.tanh(cell)
        found.append(hidden)
    return mx.stack(found, 1)
