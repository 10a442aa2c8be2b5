"""Arrays of known properties, to try ops on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Row = list[Any]
"""A row of a table of cases: an op, and the arrays it is applied to."""


def floats(*shape: int, seed: int = 0, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Return evenly spaced numbers in random order; 0 is never among them."""
    count = math.prod(shape)
    spaced = low + (high - low) * (np.arange(count) + 0.5) / max(count, 1)
    if low < 0 < high:
        spaced += np.where(spaced < 0, -0.1, 0.1)
    return np.random.default_rng(seed).permutation(spaced).reshape(shape)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    """Return numbers in [0.6, 2.5]."""
    return floats(*shape, seed=seed, low=0.6, high=2.5)


def integers(*shape: int, below: int = 6, seed: int = 0, dtype: str = "int32") -> np.ndarray:
    """Return integers from 0."""
    return np.random.default_rng(seed).integers(0, below, shape).astype(dtype)


def booleans(*shape: int, seed: int = 0) -> np.ndarray:
    """Return true and false in equal shares."""
    return (
        np.random.default_rng(seed).permutation(np.arange(math.prod(shape)) % 2 > 0).reshape(shape)
    )
