"""Small models that the tests of the JAX backend share."""

from __future__ import annotations

import mithril as ml
import numpy as np
from mithril import P
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss

SIZES = Sizes(layers=2, width=32, heads=4, hidden=64, context=8, batch=8)
VOCABULARY = 48
TOKENS, TARGET = np.random.default_rng(0).integers(0, VOCABULARY, (2, 8, 8)).astype(np.int32)


def small_gpt(backend: ml.Backend) -> tuple[ml.CompiledModel, dict[str, ml.Array]]:
    """Return a GPT with a loss, split as the mesh has axes for, and its inputs."""
    model = with_loss(gpt(VOCABULARY, SIZES))
    if "tensor" in backend.mesh.names:
        megatron(model)
    split = P("data") if "data" in backend.mesh.names else P()
    inputs = {
        "tokens": backend.array(TOKENS, sharding=split),
        "target": backend.array(TARGET, sharding=split),
    }
    return ml.compile(model, backend, shapes=inputs), inputs


def mlp(backend: ml.Backend) -> tuple[ml.CompiledModel, dict[str, ml.Array]]:
    """Return an MLP without a loss, and its input."""
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="x", output="h")
    model += ml.Gelu()
    model += ml.Linear(4, name="down")(output="y")
    if "tensor" in backend.mesh.names:
        model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    x = np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32)
    inputs = {"x": backend.array(x)}
    return ml.compile(model, backend, shapes=inputs), inputs
