"""Minima of sums of arrays over their last dimension: one step of an elimination."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def find_minima(shape: Sequence[int], terms: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the least of a sum over its last dimension, and where it is."""
    total = np.zeros(shape)
    for term in terms:
        total += term
    best = total.argmin(axis=-1)
    return np.take_along_axis(total, best[..., None], axis=-1)[..., 0], best


def minimise_sum(shape: Sequence[int], terms: Sequence[np.ndarray]) -> np.ndarray:
    """Return the least of a sum over its last dimension, which is not in memory as a whole."""
    layers = [np.ascontiguousarray(np.moveaxis(term, -1, 0)) for term in terms]
    least, total = np.full(shape[:-1], np.inf), np.empty(shape[:-1])
    for at in range(shape[-1]):
        np.add(layers[0][at], 0.0, out=total)
        for layer in layers[1:]:
            total += layer[at]
        np.minimum(least, total, out=least)
    return least


def spread_out(costs: np.ndarray, positions: Sequence[int], rank: int) -> np.ndarray:
    """Return costs with each dimension at its position, and dimensions of size 1 elsewhere."""
    moved = costs.transpose(np.argsort(positions))
    return np.expand_dims(moved, [i for i in range(rank) if i not in positions])
