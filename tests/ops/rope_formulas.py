"""How far pairs turn a position where rotation is scaled: an oracle, written as transformers does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def scaled_speeds(base: float, size: int, scaling: dict[str, Any]) -> tuple[np.ndarray, float]:
    """The formulas of `modeling_rope_utils` in transformers."""
    inverse = 1.0 / base ** (np.arange(0, size, 2) / size)
    kind, factor = scaling["rope_type"], scaling["factor"]
    if kind == "linear":
        return inverse / factor, 1.0
    length = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wavelength = 2 * math.pi / inverse
        slow = np.where(wavelength > length / low, inverse / factor, inverse)
        smooth = (length / wavelength - low) / (high - low)
        between = (1 - smooth) * slow / factor + smooth * slow
        is_medium = ~(wavelength < length / high) & ~(wavelength > length / low)
        return np.where(is_medium, between, slow), 1.0

    def dimension(turns: float) -> float:
        return size * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dimension(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(dimension(scaling.get("beta_slow", 1))), size - 1)
    ramp = ((np.arange(size // 2) - low) / ((high - low) or 0.001)).clip(0, 1)
    longer = scaling.get("attention_factor", 0.1 * math.log(factor) + 1.0)
    return inverse / factor * ramp + inverse * (1 - ramp), longer


NUMBERS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor",
    ),
}  # fmt: skip


def speeds_of(base: float, size: int, scaling: tuple[Any, ...]) -> np.ndarray:
    """The same for the attribute of an op: the type, and its numbers in order."""
    kind, *numbers = scaling or ("linear", 1.0)
    named = dict(zip(NUMBERS[kind], numbers, strict=True))
    return scaled_speeds(base, size, {"rope_type": kind, **named})[0]
