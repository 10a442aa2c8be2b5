"""The benchmarks' models as one writes them by hand in JAX: `jax.jit` and `jax.value_and_grad`.

On several devices arrays are laid out with `NamedSharding` and activations constrained, as the
documentation of JAX shows it: XLA's GSPMD then puts in the collectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

Params = Mapping[str, jax.Array]
Constrain = Callable[[jax.Array, P], jax.Array]
MEGATRON = {
    "attn.q.weight": P("tensor", None),
    "attn.k.weight": P("tensor", None),
    "attn.v.weight": P("tensor", None),
    "attn.q.bias": P("tensor"),
    "attn.k.bias": P("tensor"),
    "attn.v.bias": P("tensor"),
    "attn.o.weight": P(None, "tensor"),
    "mlp.up.weight": P("tensor", None),
    "mlp.up.bias": P("tensor"),
    "mlp.gate.weight": P("tensor", None),
    "mlp.down.weight": P(None, "tensor"),
    "layer0.weight": P("tensor", None),
    "layer0.bias": P("tensor"),
    "layer1.weight": P(None, "tensor"),
}
"""How parameters of blocks, and of the MLP, are split over `tensor`; the others are replicated."""


def unconstrained(x: jax.Array, spec: P) -> jax.Array:
    """Return x: on one device nothing is laid out."""
    return x


def mesh(sizes: Mapping[str, int]) -> jax.sharding.Mesh:
    """Return a mesh of JAX's first devices from the sizes of its axes."""
    shape = tuple(sizes.values())
    return jax.sharding.Mesh(
        np.array(jax.devices()[: math.prod(shape)]).reshape(shape), tuple(sizes)
    )


def constraining(mesh: jax.sharding.Mesh) -> Constrain:
    """Return the function that lays an activation out on a mesh."""
    return lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))


def place(params: Params, mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
    """Return parameters as they lie on a mesh."""
    return {
        name: jax.device_put(x, NamedSharding(mesh, spec_of(name))) for name, x in params.items()
    }


def place_batch(x: jax.Array, mesh: jax.sharding.Mesh) -> jax.Array:
    """Return an input as it lies on a mesh, its first dimension split over `data`."""
    return jax.device_put(x, NamedSharding(mesh, P("data")))


def spec_of(name: str) -> P:
    """Return how a parameter is split."""
    return next((spec for ending, spec in MEGATRON.items() if name.endswith(ending)), P())


# ------------------------------------------------------------------ GPT


def linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


def layer_norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean(-1, keepdims=True)
    variance = jnp.square(x - mean).mean(-1, keepdims=True)
    normal = (x - mean) * jax.lax.rsqrt(variance + 1e-5)
    return normal * params[f"{name}.weight"] + params[f"{name}.bias"]


def attention(
    params: Params, name: str, x: jax.Array, heads: int, constrain: Constrain
) -> jax.Array:
    batch, length, width = x.shape
    split = P("data", None, "tensor", None)
    q, k, v = (
        constrain(linear(params, f"{name}.{part}", x).reshape(batch, length, heads, -1), split)
        for part in "qkv"
    )
    scores = jnp.einsum("bshd,bthd->bhst", q, k) / math.sqrt(width // heads)
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhst,bthd->bshd", weights, v).reshape(batch, length, width)
    return linear(params, f"{name}.o", constrain(mixed, P("data", None, "tensor")))


def block(params: Params, name: str, x: jax.Array, heads: int, constrain: Constrain) -> jax.Array:
    whole = P("data", None, None)
    seen = attention(
        params, f"{name}.attn", layer_norm(params, f"{name}.norm1", x), heads, constrain
    )
    x = constrain(x + seen, whole)
    hidden = linear(params, f"{name}.mlp.up", layer_norm(params, f"{name}.norm2", x))
    hidden = jax.nn.gelu(constrain(hidden, P("data", None, "tensor")), approximate=False)
    return constrain(x + linear(params, f"{name}.mlp.down", hidden), whole)


def gpt_loss(
    params: Params, tokens: jax.Array, target: jax.Array, heads: int, constrain: Constrain
) -> jax.Array:
    """Return the mean cross-entropy of the GPT of `mithril.cli.gpt`."""
    x = params["embed.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
    x = constrain(x, P("data", None, None))
    for i in range(sum(name.endswith("attn.q.weight") for name in params)):
        x = block(params, f"block{i}", x, heads, constrain)
    return head_loss(params, x, target)


def head_loss(params: Params, x: jax.Array, target: jax.Array) -> jax.Array:
    logits = linear(params, "head", layer_norm(params, "norm", x))
    return cross_entropy(logits, target)


def cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    chosen = jnp.take_along_axis(logits, target[..., None], axis=-1)[..., 0]
    return (jax.nn.logsumexp(logits, axis=-1) - chosen).mean()


def gpt_step(heads: int, constrain: Constrain = unconstrained) -> Callable[..., object]:
    """Return the jitted function of loss and gradients."""
    return jax.jit(jax.value_and_grad(partial(gpt_loss, heads=heads, constrain=constrain)))


# ------------------------------------------------------------------ Llama


def rms_norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    scale = jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
    return x * scale * params[f"{name}.weight"]


def turned(x: jax.Array) -> jax.Array:
    """Return queries or keys, [batch, sequence, heads, size], with their positions rotated in."""
    size = x.shape[-1]
    rates = 10000.0 ** (-np.arange(0, size, 2) / size)
    angles = np.arange(x.shape[1])[:, None, None] * np.concatenate((rates, rates))
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return x * cos + jnp.concatenate((-second, first), -1) * sin


def llama_loss(
    params: Params, tokens: jax.Array, target: jax.Array, heads: int, constrain: Constrain
) -> jax.Array:
    """Return the mean cross-entropy of the Llama of `training_cases`."""
    x = constrain(params["embed.weight"][tokens], P("data", None, None))
    for i in range(sum(name.endswith("attn.q.weight") for name in params)):
        x = llama_block(params, f"block{i}", x, heads, constrain)
    return cross_entropy(rms_norm(params, "norm", x) @ params["head.weight"].T, target)


def same(x: jax.Array) -> jax.Array:
    """Return x: where a device has whole layers, nothing is summed."""
    return x


def llama_block(
    params: Params, name: str, x: jax.Array, heads: int, constrain: Constrain,
    enter: Callable[[jax.Array], jax.Array] = same, leave: Callable[[jax.Array], jax.Array] = same,
) -> jax.Array:  # fmt: skip
    """Return what a block makes of x.

    Args:
        params: with those of the block; of split layers perhaps only a device's part.
        name: of the block.
        x: `[batch, sequence, width]`.
        heads: how many heads of queries there are in all.
        constrain: lays activations out.
        enter: what activations pass where parts of layers begin.
        leave: likewise, where they end.
    """
    whole, hidden = P("data", None, None), P("data", None, "tensor")
    normed = enter(rms_norm(params, f"{name}.norm1", x))
    x = constrain(
        x + leave(grouped_attention(params, f"{name}.attn", normed, heads, constrain)), whole
    )
    normed = enter(rms_norm(params, f"{name}.norm2", x))
    gate = constrain(normed @ params[f"{name}.mlp.gate.weight"].T, hidden)
    up = constrain(normed @ params[f"{name}.mlp.up.weight"].T, hidden)
    down = leave((jax.nn.silu(gate) * up) @ params[f"{name}.mlp.down.weight"].T)
    return constrain(x + down, whole)


def grouped_attention(
    params: Params, name: str, x: jax.Array, heads: int, constrain: Constrain
) -> jax.Array:
    batch, length, width = x.shape
    size, split = width // heads, P("data", None, "tensor", None)
    q, k, v = (
        constrain((x @ params[f"{name}.{part}.weight"].T).reshape(batch, length, -1, size), split)
        for part in "qkv"
    )
    q, k = turned(q), turned(k)
    q = q.reshape(batch, length, k.shape[2], -1, size)  # the group of each key head
    scores = jnp.einsum("bskgd,btkd->bkgst", q, k) / math.sqrt(size)
    seen = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bkgst,btkd->bskgd", weights, v).reshape(batch, length, -1)
    return constrain(mixed, P("data", None, "tensor")) @ params[f"{name}.o.weight"].T


def llama_step(heads: int, constrain: Constrain = unconstrained) -> Callable[..., object]:
    """Return the jitted function of loss and gradients."""
    return jax.jit(jax.value_and_grad(partial(llama_loss, heads=heads, constrain=constrain)))


# ------------------------------------------------------------------ a deep GPT


def stacked(params: Params) -> dict[str, jax.Array]:
    """Return the parameters of all blocks stacked by `block.NAME`, and the others as they are."""
    layers = sum(name.endswith("attn.q.weight") for name in params)
    found = {name: x for name, x in params.items() if not name.startswith("block")}
    for name in [name for name in params if name.startswith("block0.")]:
        ending = name.removeprefix("block0.")
        each = [params[f"block{i}.{ending}"] for i in range(layers)]
        found[f"block.{ending}"] = jnp.stack(each)
    return found


def scanned_loss(params: Params, tokens: jax.Array, target: jax.Array, heads: int) -> jax.Array:
    """Return the loss of `gpt_loss` from stacked parameters: blocks run in a `lax.scan`."""
    x = params["embed.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
    blocks = {name: w for name, w in params.items() if name.startswith("block.")}

    def body(x: jax.Array, weights: Params) -> tuple[jax.Array, None]:
        return block(weights, "block", x, heads, unconstrained), None

    x, _ = jax.lax.scan(body, x, blocks)
    return head_loss(params, x, target)


def scanned_step(heads: int) -> Callable[..., object]:
    """Return the jitted function of loss and gradients of stacked parameters."""
    return jax.jit(jax.value_and_grad(partial(scanned_loss, heads=heads)))


# ------------------------------------------------------------------ MLP


def mlp_loss(params: Params, x: jax.Array, target: jax.Array, constrain: Constrain) -> jax.Array:
    """Return the mean cross-entropy of an MLP with relu."""
    depth = len(params) // 2
    for i in range(depth):
        x = linear(params, f"layer{i}", x)
        if i < depth - 1:
            x = constrain(jax.nn.relu(x), P("data", None if i else "tensor"))
    return cross_entropy(x, target)


def mlp_step(constrain: Constrain = unconstrained) -> Callable[..., object]:
    """Return the jitted function of loss and gradients."""
    return jax.jit(jax.value_and_grad(partial(mlp_loss, constrain=constrain)))
