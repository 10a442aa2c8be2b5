"""The Llama of `decoding` by hand on JAX and on PyTorch, its caches chosen by `where` on an iota."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Weights = dict[str, Any]
State = dict[str, Any]


def make_step(xp: Any, heads: int, layers: int, silu: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the function from weights, caches, a token and its position to the next ones.

    Args:
        xp: `jax.numpy` or `torch`.
        heads: of queries, keys and values.
        layers: how many there are.
        silu: of the framework.
    """

    def normalise(x: Any, weight: Any) -> Any:
        return x * (1 / xp.sqrt((x * x).mean(-1)[..., None] + 1e-6)) * weight

    def rotate(x: Any, position: Any, rates: Any) -> Any:
        half = x.shape[-1] // 2
        cos, sin = xp.cos(position * rates), xp.sin(position * rates)
        a, b = x[..., :half], x[..., half:]
        return xp.concatenate((a * cos - b * sin, b * cos + a * sin), -1)

    def step(weights: Weights, state: State) -> State:
        position, rows, rates = state["position"], weights["rows"], weights["rates"]
        made: State = {"position": position + 1}
        x = weights["embed.weight"][state["tokens"][0, 0]]
        for i in range(layers):
            normed = normalise(x, weights[f"norm1_{i}.weight"])
            q, k, v = (
                (weights[f"attention_{i}.{part}.weight"] @ normed).reshape(heads, -1)
                for part in "qkv"
            )
            q, k = rotate(q, position, rates), rotate(k, position, rates)
            here = (rows == position)[None, :, None, None]
            keys = made[f"keys{i}"] = xp.where(here, k, state[f"keys{i}"])
            values = made[f"values{i}"] = xp.where(here, v, state[f"values{i}"])
            scores = xp.einsum("hd,bshd->hs", q, keys) / math.sqrt(q.shape[-1])
            powers = xp.exp(xp.where(rows <= position, scores, -math.inf) - scores.max())
            chances = powers / powers.sum(-1)[..., None]
            mixed = xp.einsum("hs,bshd->hd", chances, values).reshape(-1)
            x = x + weights[f"attention_{i}.o.weight"] @ mixed
            normed = normalise(x, weights[f"norm2_{i}.weight"])
            up, gate = (weights[f"mlp_{i}.{part}.weight"] @ normed for part in ("up", "gate"))
            x = x + weights[f"mlp_{i}.down.weight"] @ (silu(gate) * up)
        logits = weights["head.weight"] @ normalise(x, weights["norm.weight"])
        return {**made, "tokens": xp.argmax(logits).reshape(1, 1)}

    return step


def _constants(context: int, size: int) -> dict[str, np.ndarray]:
    half = size // 2
    rates = (10000.0 ** (-np.arange(half) / half)).astype(np.float32)
    return {"rows": np.arange(context, dtype=np.int32), "rates": rates}


def on_jax(
    params: Mapping[str, np.ndarray], caches: Mapping[str, np.ndarray], heads: int, layers: int
) -> Callable[[State], State]:
    """Return the step as one jitted function that is given up its caches."""
    import jax
    import jax.numpy as jnp

    (_, context, _, size), *_ = (x.shape for x in caches.values())
    weights = {k: jnp.asarray(v) for k, v in {**params, **_constants(context, size)}.items()}
    step = make_step(jnp, heads, layers, jax.nn.silu)
    jitted = jax.jit(lambda weights, held, rest: step(weights, held | rest), donate_argnums=1)

    def run(state: State) -> State:
        held = {name: state[name] for name in caches}
        made: State = jitted(weights, held, {k: v for k, v in state.items() if k not in held})
        return made

    return run


def on_torch(
    params: Mapping[str, np.ndarray], caches: Mapping[str, np.ndarray], heads: int, layers: int
) -> Callable[[State], State]:
    """Return the step in eager PyTorch, without autograd."""
    import torch

    (_, context, _, size), *_ = (x.shape for x in caches.values())
    weights = {k: torch.tensor(v) for k, v in {**params, **_constants(context, size)}.items()}
    step = make_step(torch, heads, layers, torch.nn.functional.silu)

    def run(state: State) -> State:
        with torch.inference_mode():
            return step(weights, state)

    return run
