"""Loss and gradients of the demo's GPT in plain NumPy, as one writes them by hand.

Temporaries that nobody else reads are overwritten, matrix products go to BLAS as two-dimensional
ones where they can, and the backward pass uses what the forward pass kept. Exact gelu needs the
error function, which NumPy lacks: it is the rational approximation that Eigen and XLA use.
"""

from __future__ import annotations

import numpy as np

Arrays = dict[str, np.ndarray]
Kept = dict[str, np.ndarray]

EPSILON = np.float32(1e-5)
ERF_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
         -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
ERF_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03,
         -7.37332916720468e-03, -1.42647390514189e-02)  # fmt: skip


def loss_and_gradients(
    params: Arrays, tokens: np.ndarray, target: np.ndarray, heads: int
) -> tuple[np.ndarray, Arrays]:
    """Return the mean cross-entropy and its gradients by parameter name."""
    batch, length = tokens.shape
    layers = sum(name.endswith("attn.q.weight") for name in params)
    x = params["embed.weight"][tokens]
    x += params["position.weight"][:length]
    x = x.reshape(batch * length, -1)
    kept: list[Kept] = []
    for i in range(layers):
        mine: Kept = {}
        x = x + attention(params, f"block{i}.", x, mine, (batch, length, heads))
        x = x + feed_forward(params, f"block{i}.", x, mine)
        kept.append(mine)
    last: Kept = {}
    final = layer_norm(params, "norm.", x, last)
    logits = linear(params, "head.", final)
    loss, slope = cross_entropy(logits, target.reshape(-1))

    gradients: Arrays = {}
    slope = linear_back(params, "head.", final, slope, gradients)
    slope = layer_norm_back(params, "norm.", slope, last, gradients)
    for i in reversed(range(layers)):
        mine = kept.pop()
        slope += feed_forward_back(params, f"block{i}.", slope, mine, gradients)
        slope += attention_back(
            params, f"block{i}.", slope, mine, gradients, (batch, length, heads)
        )
    position = np.zeros_like(params["position.weight"])
    position[:length] = slope.reshape(batch, length, -1).sum(axis=0)
    gradients["position.weight"] = position
    vocabulary = len(params["embed.weight"])
    chosen = (tokens.reshape(-1) == np.arange(vocabulary)[:, None]).astype(np.float32)
    gradients["embed.weight"] = chosen @ slope
    return loss, gradients


# ------------------------------------------------------------------ layers


def linear(params: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    y = x @ params[f"{name}weight"].T
    y += params[f"{name}bias"]
    return y


def linear_back(
    params: Arrays, name: str, x: np.ndarray, slope: np.ndarray, gradients: Arrays
) -> np.ndarray:
    gradients[f"{name}weight"] = slope.T @ x
    gradients[f"{name}bias"] = slope.sum(axis=0)
    return slope @ params[f"{name}weight"]


def layer_norm(params: Arrays, name: str, x: np.ndarray, kept: Kept) -> np.ndarray:
    normal = x - x.mean(axis=-1, keepdims=True)
    scale = np.mean(normal * normal, axis=-1, keepdims=True)
    scale += EPSILON
    scale = 1 / np.sqrt(scale)
    normal *= scale
    kept[f"{name}normal"], kept[f"{name}scale"] = normal, scale
    y = normal * params[f"{name}weight"]
    y += params[f"{name}bias"]
    return y


def layer_norm_back(
    params: Arrays, name: str, slope: np.ndarray, kept: Kept, gradients: Arrays
) -> np.ndarray:
    normal, scale = kept[f"{name}normal"], kept[f"{name}scale"]
    gradients[f"{name}weight"] = np.sum(slope * normal, axis=0)
    gradients[f"{name}bias"] = slope.sum(axis=0)
    dx = slope * params[f"{name}weight"]
    along = np.mean(dx * normal, axis=-1, keepdims=True)
    dx -= dx.mean(axis=-1, keepdims=True)
    dx -= normal * along
    dx *= scale
    return dx


def attention(
    params: Arrays, block: str, x: np.ndarray, kept: Kept, sizes: tuple[int, int, int]
) -> np.ndarray:
    batch, length, heads = sizes
    normed = layer_norm(params, f"{block}norm1.", x, kept)
    q, k, v = (
        linear(params, f"{block}attn.{part}.", normed)
        .reshape(batch, length, heads, -1)
        .transpose(0, 2, 1, 3)
        for part in "qkv"
    )
    weights = q @ k.transpose(0, 1, 3, 2)
    weights *= np.float32(q.shape[-1] ** -0.5)
    weights += np.triu(np.full((length, length), -np.inf, np.float32), 1)
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = (weights @ v).transpose(0, 2, 1, 3).reshape(batch * length, -1)
    kept |= {"normed1": normed, "q": q, "k": k, "v": v, "weights": weights, "mixed": mixed}
    return linear(params, f"{block}attn.o.", mixed)


def attention_back(
    params: Arrays,
    block: str,
    slope: np.ndarray,
    kept: Kept,
    gradients: Arrays,
    sizes: tuple[int, int, int],
) -> np.ndarray:
    batch, length, heads = sizes
    q, k, v, weights = kept["q"], kept["k"], kept["v"], kept["weights"]
    dmixed = linear_back(params, f"{block}attn.o.", kept["mixed"], slope, gradients)
    dmixed = dmixed.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)
    dv = weights.transpose(0, 1, 3, 2) @ dmixed
    dscores = dmixed @ v.transpose(0, 1, 3, 2)
    dscores -= np.sum(dscores * weights, axis=-1, keepdims=True)
    dscores *= weights
    dscores *= np.float32(q.shape[-1] ** -0.5)
    parts = {"q": dscores @ k, "k": dscores.transpose(0, 1, 3, 2) @ q, "v": dv}
    dnormed = np.zeros_like(slope)
    for part, dpart in parts.items():
        flat = dpart.transpose(0, 2, 1, 3).reshape(batch * length, -1)
        dnormed += linear_back(params, f"{block}attn.{part}.", kept["normed1"], flat, gradients)
    return layer_norm_back(params, f"{block}norm1.", dnormed, kept, gradients)


def feed_forward(params: Arrays, block: str, x: np.ndarray, kept: Kept) -> np.ndarray:
    normed = layer_norm(params, f"{block}norm2.", x, kept)
    up = linear(params, f"{block}mlp.up.", normed)
    chance = erf(up * np.float32(0.5**0.5))  # becomes the normal distribution function
    chance += 1
    chance *= 0.5
    active = up * chance
    kept |= {"normed2": normed, "up": up, "chance": chance, "active": active}
    return linear(params, f"{block}mlp.down.", active)


def feed_forward_back(
    params: Arrays, block: str, slope: np.ndarray, kept: Kept, gradients: Arrays
) -> np.ndarray:
    up = kept["up"]
    dactive = linear_back(params, f"{block}mlp.down.", kept["active"], slope, gradients)
    density = up * up
    density *= -0.5
    np.exp(density, out=density)
    density *= up
    density *= np.float32((2 * np.pi) ** -0.5)
    density += kept["chance"]
    dactive *= density
    dnormed = linear_back(params, f"{block}mlp.up.", kept["normed2"], dactive, gradients)
    return layer_norm_back(params, f"{block}norm2.", dnormed, kept, gradients)


def cross_entropy(logits: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean over positions and its gradient; the logits are overwritten."""
    rows = np.arange(len(target))
    logits -= logits.max(axis=1, keepdims=True)
    powers = np.exp(logits)
    total = powers.sum(axis=1)
    loss = np.mean(np.log(total) - logits[rows, target])
    powers /= total[:, None]
    powers[rows, target] -= 1
    powers /= np.float32(len(target))
    return loss, powers


def erf(x: np.ndarray) -> np.ndarray:
    x = np.clip(x, -4, 4)
    square = x * x
    y = polynomial(ERF_P, square)
    y *= x
    y /= polynomial(ERF_Q, square)
    return y


def polynomial(coefficients: tuple[float, ...], x: np.ndarray) -> np.ndarray:
    y = x * np.float32(coefficients[0])
    y += np.float32(coefficients[1])
    for coefficient in coefficients[2:]:
        y *= x
        y += np.float32(coefficient)
    return y
