"""Models that are compiled with and without an arena."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np

WIDTH, BATCH = 16, 32


def mlp(layers: int = 3, dropout: float = 0.0) -> ml.Model:
    """Return linear layers with norms and gelu between them, and a loss."""
    model = ml.Model()
    for number in range(layers):
        given: dict[str, Any] = {"input": "x"} if number == 0 else {}
        model += ml.Linear(WIDTH, name=f"layer{number}")(**given)
        model += ml.LayerNorm(name=f"norm{number}")
        model += ml.Gelu(name=f"gelu{number}")
        model += ml.Dropout(dropout, name=f"drop{number}")
    model += ml.Linear(1, name="last")(output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


def repeated(layers: int = 4) -> ml.Model:
    """Return a block of two layers in a loop."""
    block = ml.Model(name="block")
    block |= ml.Linear(WIDTH, name="up")(input="x", output="a")
    block |= ml.Gelu(name="act")(input="a", output="b")
    block |= ml.Linear(WIDTH, name="down")(input="b", output="y")
    model = ml.Model()
    model |= ml.Repeat(block, layers, name="blocks")(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


def pipeline(stages: int = 2) -> ml.Model:
    """Return stages that run eight micro-batches."""
    parts = []
    for _ in range(stages):
        part = ml.Model()
        part += ml.Linear(WIDTH)
        part += ml.Gelu()
        part += ml.Linear(WIDTH)
        parts.append(part)
    model = ml.Model()
    model |= ml.Pipeline(parts, microbatch_size=BATCH // 8)(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


def batch(seed: int, out: int = WIDTH) -> dict[str, np.ndarray]:
    """Return numbers for the inputs of these models."""
    rng = np.random.default_rng(seed)
    x, t = (rng.standard_normal((BATCH, n)).astype(np.float32) for n in (WIDTH, out))
    return {"x": x, "t": t}
