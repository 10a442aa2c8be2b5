"""AdamW as one writes it in NumPy, in place, and the losses of `gpt_by_hand` and `numpy_mlp`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks import gpt_by_hand, numpy_mlp
from benchmarks.matrix.cases import Row
from benchmarks.training_cases import DECAY, RATE

Arrays = dict[str, np.ndarray]
Differentiate = Callable[..., tuple[np.ndarray, Arrays]]
DECAY1, DECAY2, EPSILON = 0.9, 0.999, 1e-8


def make_step(row: Row) -> Differentiate:
    """Return the function of parameters and inputs to the loss and its gradients."""
    if row.model == "mlp":
        return numpy_mlp.by_hand
    return partial(gpt_by_hand.loss_and_gradients, heads=row.sizes["heads"])


class AdamW:
    """Loshchilov and Hutter (2019), with temporaries of one parameter's size."""

    def __init__(self, params: Arrays) -> None:
        self.params, self.count = params, 0
        self.means = {name: np.zeros_like(x) for name, x in params.items()}
        self.squares = {name: np.zeros_like(x) for name, x in params.items()}

    def update(self, gradients: Arrays) -> None:
        """Move the parameters against their gradients; the gradients are overwritten."""
        self.count += 1
        rate = np.float32(RATE / (1 - DECAY1**self.count))
        root = np.float32((1 - DECAY2**self.count) ** -0.5)
        for name, slope in gradients.items():
            mean, square, x = self.means[name], self.squares[name], self.params[name]
            mean *= np.float32(DECAY1)
            away = slope * np.float32(1 - DECAY1)
            mean += away
            slope *= slope
            slope *= np.float32(1 - DECAY2)
            square *= np.float32(DECAY2)
            square += slope
            np.sqrt(square, out=slope)
            slope *= root
            slope += np.float32(EPSILON)
            np.divide(mean, slope, out=slope)
            slope *= rate
            x *= np.float32(1 - RATE * DECAY)
            x -= slope


def mlp_loss(params: Arrays, x: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the loss of an MLP alone."""
    depth = len(params) // 2
    for i in range(depth):
        x = x @ params[f"layer{i}.weight"].T
        x += params[f"layer{i}.bias"]
        if i < depth - 1:
            np.maximum(x, 0, out=x)
    return gpt_by_hand.cross_entropy(x, target)[0]


def gpt_loss(params: Arrays, tokens: np.ndarray, target: np.ndarray, heads: int) -> np.ndarray:
    """Return the loss of a GPT alone."""
    batch, length = tokens.shape
    layers = sum(name.endswith("attn.q.weight") for name in params)
    x = params["embed.weight"][tokens]
    x += params["position.weight"][:length]
    x = x.reshape(batch * length, -1)
    for i in range(layers):
        x += gpt_by_hand.attention(params, f"block{i}.", x, {}, (batch, length, heads))
        x += gpt_by_hand.feed_forward(params, f"block{i}.", x, {})
    logits = gpt_by_hand.linear(params, "head.", gpt_by_hand.layer_norm(params, "norm.", x, {}))
    return gpt_by_hand.cross_entropy(logits, target.reshape(-1))[0]


def make_forward(row: Row) -> Callable[..., np.ndarray]:
    """Return the function of parameters and inputs to the loss alone."""
    return mlp_loss if row.model == "mlp" else partial(gpt_loss, heads=row.sizes["heads"])
