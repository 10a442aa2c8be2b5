"""The models of the matrix as one writes them in JAX: functions of parameters and inputs to the loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from benchmarks import jax_moe
from benchmarks.jax_by_hand import (
    Constrain,
    Params,
    cross_entropy,
    gpt_loss,
    layer_norm,
    linear,
    llama_loss,
    unconstrained,
)
from benchmarks.matrix.cases import Row, Sizes
from benchmarks.matrix.models import GROUPS, moe_sizes, resnet_blocks, split_layers
from benchmarks.moe import BALANCE, MoeSizes, Z

Loss = Callable[..., Any]
LAYOUTS = {False: ("NCHW", "OIHW", "NCHW"), True: ("NHWC", "OIHW", "NHWC")}


def make_losses(row: Row, constrain: Constrain = unconstrained) -> dict[str, Loss]:
    """Return the losses of a row by what sets them apart, in training; the first is the plainest.

    Each takes parameters, by the names by hand, and the inputs.
    """
    s = row.sizes
    if row.model == "mlp":
        return {"jit": partial(mlp_loss, s=s, constrain=constrain)}
    if row.model in ("gpt", "long-sequence"):
        return {"jit": partial(gpt_loss, heads=s["heads"], constrain=constrain)}
    if row.model == "llama":
        return {"jit": partial(llama_loss, heads=s["heads"], constrain=constrain)}
    if row.model == "moe":
        sizes = moe_sizes(s)
        return {
            "jit, einsums": partial(jax_moe.loss, sizes=sizes),
            "jit, indices": partial(moe_loss, sizes=sizes),
        }
    if row.model == "vit":
        return {"jit": partial(vit_loss, s=s)}
    if row.model == "lstm":
        return {
            "jit, scan": partial(lstm_loss, s=s, unroll=1),
            "jit, scan of 8": partial(lstm_loss, s=s, unroll=8),
        }
    if row.model == "unet":
        return {"jit, NCHW": partial(unet_loss, s=s, last=False),
                "jit, NHWC": partial(unet_loss, s=s, last=True)}  # fmt: skip
    last = row.model == "resnet-channels-last"
    name = f"jit, {'NHWC' if last else 'NCHW'}"
    return {name: partial(resnet_loss, s=s, last=last, training=row.kind == "step")}


# ------------------------------------------------------------------ MLP and ViT


def mlp_loss(
    params: Params, x: jax.Array, target: jax.Array, s: Sizes, constrain: Constrain
) -> jax.Array:
    for i in range(s["depth"]):
        x = linear(params, f"layer{i}", x)
        # Columns of a layer are split, then rows of the next.
        is_split = i % 2 == 0 and i < split_layers(s)
        x = constrain(x, P("data", "tensor" if is_split else None))
        x = jax.nn.relu(x) if i < s["depth"] - 1 else x
    return cross_entropy(x, target)


def vit_loss(params: Params, image: jax.Array, target: jax.Array, s: Sizes) -> jax.Array:
    batch, patch, side = len(image), s["patch"], s["size"] // s["patch"]
    # Windows that do not overlap are a product of matrices.
    pieces = image.reshape(batch, 3, side, patch, side, patch).transpose(0, 2, 4, 1, 3, 5)
    weight = params["patches.project.weight"].reshape(s["width"], -1)
    patches = pieces.reshape(batch, side * side, -1) @ weight.T + params["patches.project.bias"]
    first = jnp.broadcast_to(params["patches.first"], (batch, 1, s["width"]))
    x = jnp.concatenate((first, patches), 1) + params["patches.at.weight"]
    for i in range(s["layers"]):
        # Of the last block nobody reads but the first position.
        count = 1 if i == s["layers"] - 1 else x.shape[1]
        x = _vit_block(params, f"block{i}", x, s["heads"], count)
    return cross_entropy(linear(params, "head", layer_norm(params, "norm", x[:, 0])), target)


def _vit_block(params: Params, name: str, x: jax.Array, heads: int, count: int) -> jax.Array:
    """Return the first positions."""
    batch, _, width = x.shape
    normed, x = layer_norm(params, f"{name}.norm1", x), x[:, :count]
    q, k, v = (
        linear(params, f"{name}.attn.{part}", given).reshape(batch, -1, heads, width // heads)
        for part, given in (("q", normed[:, :count]), ("k", normed), ("v", normed))
    )
    scores = jnp.einsum("bshd,bthd->bhst", q, k) * (width // heads) ** -0.5
    mixed = jnp.einsum("bhst,bthd->bshd", jax.nn.softmax(scores), v).reshape(x.shape)
    x = x + linear(params, f"{name}.attn.o", mixed)
    hidden = linear(params, f"{name}.mlp.up", layer_norm(params, f"{name}.norm2", x))
    return x + linear(params, f"{name}.mlp.down", jax.nn.gelu(hidden, approximate=False))


# ------------------------------------------------------------------ images


def convolve(x: jax.Array, weight: jax.Array, stride: int = 1, last: bool = False) -> jax.Array:
    """Convolve with padding that keeps the size; `last` says that channels come last."""
    pad = weight.shape[-1] // 2
    return jax.lax.conv_general_dilated(
        x, weight, (stride, stride), [(pad, pad)] * 2, dimension_numbers=LAYOUTS[last]
    )


def _per_channel(x: jax.Array, last: bool) -> jax.Array:
    return x if last else x[:, None, None]


def resnet_loss(
    params: Params, image: jax.Array, target: jax.Array, s: Sizes, last: bool, training: bool
) -> jax.Array:
    """Return the loss; running statistics, a number a channel, are not kept."""
    axes = (0, 1, 2) if last else (0, 2, 3)

    def normed(conv: str, norm: str, x: jax.Array, stride: int = 1) -> jax.Array:
        x = convolve(x, params[f"{conv}.weight"], stride, last)
        mean, variance = 0.0, 1.0  # the running ones at first
        if training:
            mean = x.mean(axes, keepdims=True)
            variance = jnp.square(x - mean).mean(axes, keepdims=True)
        scale = _per_channel(params[f"{norm}.weight"], last) * jax.lax.rsqrt(variance + 1e-5)
        return (x - mean) * scale + _per_channel(params[f"{norm}.bias"], last)

    x = jnp.moveaxis(image, 1, 3) if last else image
    x = jax.nn.relu(normed("stem_conv", "stem_norm", x))
    for name, before, after, stride in resnet_blocks(s):
        inner = jax.nn.relu(normed(f"{name}_conv1", f"{name}_norm1", x, stride))
        inner = normed(f"{name}_conv2", f"{name}_norm2", inner)
        if before != after:
            x = normed(f"{name}_short_conv", f"{name}_short_norm", x, stride)
        x = jax.nn.relu(x + inner)
    return cross_entropy(linear(params, "head", x.mean((1, 2) if last else (2, 3))), target)


def unet_loss(
    params: Params, image: jax.Array, target: jax.Array, s: Sizes, last: bool
) -> jax.Array:
    def normed(name: str, x: jax.Array) -> jax.Array:
        shape, channel = x.shape, 3 if last else 1
        split = (*shape[:channel], GROUPS, shape[channel] // GROUPS, *shape[channel + 1 :])
        axes = (1, 2, 4) if last else (2, 3, 4)
        x = x.reshape(split)
        mean = x.mean(axes, keepdims=True)
        variance = jnp.square(x - mean).mean(axes, keepdims=True)
        x = ((x - mean) * jax.lax.rsqrt(variance + 1e-5)).reshape(shape)
        weight = _per_channel(params[f"{name}.weight"], last)
        return x * weight + _per_channel(params[f"{name}.bias"], last)

    def twice(name: str, x: jax.Array) -> jax.Array:
        for i in range(2):
            x = convolve(x, params[f"{name}.conv_{i}.weight"], last=last)
            x = jax.nn.silu(normed(f"{name}.norm_{i}", x))
        return x

    x, kept = jnp.moveaxis(image, 1, 3) if last else image, []
    window = (1, 2, 2, 1) if last else (1, 1, 2, 2)
    for level in range(s["levels"]):
        x = twice(f"down_{level}", x)
        kept.append(x)
        if level < s["levels"] - 1:
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, window, "VALID")
    for level in reversed(range(s["levels"] - 1)):
        weight = params[f"larger_{level}.weight"]
        wide = _enlarge(x, weight, last) + _per_channel(params[f"larger_{level}.bias"], last)
        x = twice(f"up_{level}", jnp.concatenate((kept[level], wide), 3 if last else 1))
    logits = convolve(x, params["head.weight"], last=last)
    logits = (logits + _per_channel(params["head.bias"], last)).reshape(target.shape)
    return (jax.nn.softplus(logits) - target * logits).mean()


def _enlarge(x: jax.Array, weight: jax.Array, last: bool) -> jax.Array:
    """Write filters of 2 × 2 side by side: a transposed convolution of stride 2."""
    if last:
        batch, high, wide, _ = x.shape
        return jnp.einsum("bhwi,ioac->bhawco", x, weight).reshape(batch, 2 * high, 2 * wide, -1)
    batch, _, high, wide = x.shape
    return jnp.einsum("bihw,ioac->bohawc", x, weight).reshape(batch, -1, 2 * high, 2 * wide)


# ------------------------------------------------------------------ LSTM


def lstm_loss(
    params: Params, tokens: jax.Array, target: jax.Array, s: Sizes, unroll: int
) -> jax.Array:
    x = params["table.weight"][tokens].swapaxes(0, 1)
    for i in range(s["layers"]):
        x = _lstm_layer(params, f"lstm.layer_{i}", x, s["width"], unroll)
    return cross_entropy(linear(params, "head", x.swapaxes(0, 1)), target)


def _lstm_layer(params: Params, name: str, x: jax.Array, width: int, unroll: int) -> jax.Array:
    into, across = (
        params[f"{name}.{n}.weight"].reshape(4 * width, -1).T for n in ("input", "hidden")
    )
    bias = (params[f"{name}.input.bias"] + params[f"{name}.hidden.bias"]).reshape(-1)

    def advance(state: Any, given: jax.Array) -> tuple[Any, jax.Array]:
        hidden, cell = state
        i, f, g, o = jnp.split(given + hidden @ across, 4, -1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    zeros = jnp.zeros((x.shape[1], width), x.dtype)
    return jax.lax.scan(advance, (zeros, zeros), x @ into + bias, unroll=unroll)[1]


# ------------------------------------------------------------------ mixture of experts


def moe_loss(params: Params, x: jax.Array, target: jax.Array, sizes: MoeSizes) -> jax.Array:
    """Return the loss of a mixture of experts that finds tokens by indices."""
    logits = x @ params["router.weight"].T
    odds = jax.nn.softmax(logits)
    gates, chosen = jax.lax.top_k(odds, sizes.top_k)
    gates = gates / gates.sum(-1, keepdims=True) if sizes.top_k > 1 else gates
    made = _work(params, x, chosen, sizes)
    made = made.reshape(x.shape[0], sizes.top_k, x.shape[1], -1)
    y = (made * gates.swapaxes(1, 2)[..., None]).sum(1)
    share = jnp.bincount(chosen.reshape(-1), length=sizes.experts) / chosen.size
    balance = sizes.experts * (share * odds.mean((0, 1))).sum()
    z = jnp.square(jax.nn.logsumexp(logits, -1)).mean()
    return jnp.square(y - target).mean() + BALANCE * balance + Z * z


def _work(params: Params, x: jax.Array, chosen: jax.Array, sizes: MoeSizes) -> jax.Array:
    """Return what experts make of each choice, [groups * choices * tokens, width]."""
    groups, tokens, width = x.shape
    by_round = chosen.swapaxes(1, 2).reshape(groups, -1)
    ones = jax.nn.one_hot(by_round, sizes.experts, dtype=jnp.int32)
    position = jnp.take_along_axis(ones.cumsum(1) - 1, by_round[..., None], 2)[..., 0]
    group = np.arange(groups)[:, None]
    spare = sizes.experts * groups * sizes.capacity  # where tokens without room go
    place = (by_round * groups + group) * sizes.capacity + position
    place = jnp.where(position < sizes.capacity, place, spare).reshape(-1)
    token = (group * tokens + np.tile(np.arange(tokens), sizes.top_k)).reshape(-1)
    source = jnp.full(spare + 1, groups * tokens).at[place].set(token)
    flat = jnp.concatenate((x.reshape(-1, width), jnp.zeros((1, width), x.dtype)))
    rows = flat[source[:spare]].reshape(sizes.experts, -1, width)
    hidden = jnp.einsum("ecd,ehd->ech", rows, params["experts.in.weight"])
    hidden = jax.nn.relu(hidden + params["experts.in.bias"][:, None])
    made = jnp.einsum("ech,edh->ecd", hidden, params["experts.out.weight"])
    made = (made + params["experts.out.bias"][:, None]).reshape(-1, width)
    return jnp.concatenate((made, jnp.zeros((1, width), made.dtype)))[place]
