"""Small trainings that stop, save, and go on elsewhere; run by `test_resume.py`, also as a script."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
from mithril import P
from mithril.mesh import edges

RATE, MOMENTUM, STEPS = 0.05, 0.9, 6
VOCABULARY, WIDTH, BATCH, LENGTH = 12, 8, 8, 4
Specs = dict[str, P]


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="x", output="h")
    model |= ml.Relu()(input="h", output="a")
    model |= ml.Linear(WIDTH, name="down")(input="a", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    return model


def llama() -> ml.Model:
    block = ml.Model()
    block |= ml.RMSNorm(name="norm1")(input="x", output="n1")
    block |= ml.MultiHeadAttention(
        num_heads=4, num_kv_heads=2, causal=True, rope=True, bias=False, name="attn"
    )(input="n1", output="a")
    block |= ml.Add()(inputs=["x", "a"], output="h")
    block |= ml.RMSNorm(name="norm2")(input="h", output="n2")
    block |= ml.FeedForward(16, activation="swiglu", bias=False, name="mlp")(input="n2", output="m")
    block |= ml.Add()(inputs=["h", "m"], output="y")
    model = ml.Model()
    model |= ml.Embedding(VOCABULARY, WIDTH, name="embed")(input="tokens", output="w0")
    model |= ml.Repeat(block, 2, name="blocks")(input="w0", output="w1")
    model |= ml.RMSNorm(name="norm")(input="w1", output="n")
    model |= ml.Linear(VOCABULARY, bias=False, name="head")(input="n", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="targets", output="loss")
    return model


def moe() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="embed")(input="x", output="h")
    model |= ml.MoE(num_experts=4, expert_dim=12, top_k=2, name="moe")(input="h", output="e")
    model |= ml.Linear(WIDTH, name="down")(input="e", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    return model


def pipeline() -> ml.Model:
    stages = []
    for number in range(2):
        stage = ml.Model()
        stage |= ml.Linear(WIDTH, name=f"linear{number}")(input="input", output="h")
        stage |= ml.Relu()(input="h", output="output")
        stages.append(stage)
    model = ml.Model()
    model |= ml.Pipeline(stages, name="pipe")(input="x", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    return model


def floats() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (BATCH, WIDTH)
    return {name: rng.standard_normal(shape).astype(np.float32) for name in ("x", "t")}


def tokens() -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(0).integers(0, VOCABULARY, (2, BATCH, LENGTH), dtype=np.int32)
    return dict(zip(("tokens", "targets"), drawn, strict=True))


def rows() -> dict[str, np.ndarray]:
    return {name: values.reshape(2, BATCH // 2, WIDTH) for name, values in floats().items()}


@dataclass(frozen=True)
class Case:
    """A model, what goes in, and what is said of its parameters."""

    model: Callable[[], ml.Model]
    inputs: Callable[[], dict[str, np.ndarray]]
    specs: Specs


CASES = {
    "mlp": Case(mlp, floats, {"up.weight": P("tensor", None), "down.weight": P(None, "tensor")}),
    "llama": Case(
        llama, tokens,
        {"*.q.weight": P(None, "tensor", None), "*.mlp.up.weight": P(None, "tensor", None),
         "head.weight": P("tensor", None)},
    ),
    "moe": Case(moe, rows, {"moe.experts.*": P("tensor")}),
    "pipeline": Case(pipeline, floats, {}),
}  # fmt: skip


def compiled_case(case: Case, backend: ml.Backend) -> tuple[ml.CompiledModel, dict[str, ml.Array]]:
    """Return a model compiled on a mesh, annotated for the axes that are there, and its inputs."""
    model, sizes = case.model(), backend.mesh.sizes
    if "tensor" in sizes:
        model.shard(case.specs)
    spec = P("data") if "data" in sizes else P()
    inputs = {name: backend.array(x, sharding=spec) for name, x in case.inputs().items()}
    options = {} if "pipeline" not in sizes else {"pipeline": ml.PipelineOptions(microbatch_size=2)}
    return ml.compile(model, backend, shapes=inputs, **options), inputs


def train(
    compiled: ml.CompiledModel, inputs: dict[str, ml.Array], state: dict[str, Any], until: int
) -> tuple[dict[str, Any], list[float]]:
    """Train by gradient descent with momentum; return the state after it, and the losses."""
    losses = []
    params, momentum = state["params"], state["momentum"]
    for _ in range(state["step"], until):
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": np.float32(1)})
        losses.append(float(outputs["loss"]))
        momentum = {n: MOMENTUM * momentum[n] + g for n, g in gradients.items()}
        params = {n: p - RATE * momentum[n] for n, p in params.items()}
    return {"params": params, "momentum": momentum, "step": until}, losses


def start(compiled: ml.CompiledModel) -> dict[str, Any]:
    params = compiled.randomize_params(1)
    momentum = {name: compiled.backend.zeros_like(x) for name, x in params.items()}
    return {"params": params, "momentum": momentum, "step": 0}


def go_on(name: str, backend: ml.Backend, path: str, way: str) -> dict[str, Any]:
    """Load a training that was saved, and train to the end."""
    compiled, inputs = compiled_case(CASES[name], backend)
    read: list[int] = []

    def note(file: str, name: str, nbytes: int) -> None:
        read.append(nbytes)

    if way == "like":
        state = ml.load(path, like=start(compiled), observe=note)
    else:
        parts = {
            key: ml.load(path, compiled=compiled, subtree=key, observe=note)
            for key in ("params", "momentum")
        }
        state = {**parts, "step": ml.load(path, subtree="step")}
    held = [parts_of(x) for key in ("params", "momentum") for x in state[key].values()]
    lying = {n: x.sharding.describe() for n, x in state["params"].items()}
    wanted = {n: x.sharding.describe() for n, x in start(compiled)["params"].items()}
    state, losses = train(compiled, inputs, state, STEPS)
    return {
        "losses": losses, "lying": lying, "wanted": wanted, "read": sum(read), "parts": sum(held),
        "after": {n: x.sharding.describe() for n, x in state["params"].items()},
    }  # fmt: skip


def parts_of(x: ml.Array) -> int:
    """Return the bytes of the distinct parts of an array that this process holds."""
    return sum({edges(s.index): s.data.nbytes for s in x.addressable_shards}.values())


def mesh_of(text: str) -> ml.Mesh:
    return ml.Mesh({name: int(size) for name, size in (a.split("=") for a in text.split(","))})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for argument in ("name", "backend", "mesh", "path", "way"):
        parser.add_argument(argument)
    given = parser.parse_args()
    opened = ml.open_backend(given.backend, mesh_of(given.mesh))
    print("result", json.dumps(go_on(given.name, opened, given.path, given.way)))
