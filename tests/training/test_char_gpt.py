"""A small GPT of characters learns the same under every strategy, on every backend."""

from __future__ import annotations

from functools import cache
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.runtime.training.step import TrainStep

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import runs_all
from tests.tolerances import TOLERANCE

TEXT = "the quick brown fox jumps over the lazy dog; " * 8
LETTERS = sorted(set(TEXT))
WIDTH, HEADS, LAYERS, LENGTH, BATCH = 32, 2, 2, 16, 16
STEPS = 100 if runs_all() else 12
RATE = 3e-3
# Adam makes steps as long as the learning rate of whatever is large against epsilon: with 1e-8 even
# of the rounding error in a gradient that is zero, such as that of the bias of keys. Parameters
# drift apart, until a token whose second and third expert are equally likely within that drift goes
# to another one, and the losses jump.
EPSILON = 1e-4
MEGATRON = {
    "*.attn.q.weight": P("tensor", None), "*.attn.k.weight": P("tensor", None),
    "*.attn.v.weight": P("tensor", None), "*.attn.o.weight": P(None, "tensor"),
    "*.mlp.up.weight": P("tensor", None), "*.mlp.down.weight": P(None, "tensor"),
}  # fmt: skip
PIPELINE = ml.PipelineOptions(schedule="1f1b", microbatch_size=4)


def block(name: str, experts: bool) -> ml.Model:
    made = ml.Model(name=name)
    made |= ml.LayerNorm(name="norm_1")(input="x", output="a")
    made |= ml.MultiHeadAttention(HEADS, causal=True, name="attn")(input="a", output="b")
    made |= ml.Add(name="add_1")(inputs=["x", "b"], output="c")
    made |= ml.LayerNorm(name="norm_2")(input="c", output="d")
    if experts:
        made |= ml.MoE(num_experts=4, expert_dim=WIDTH, top_k=2, capacity_factor=None, name="mlp")(
            input="d", output="e"
        )
    else:
        made |= ml.FeedForward(2 * WIDTH, name="mlp")(input="d", output="e")
    made |= ml.Add(name="add_2")(inputs=["c", "e"], output="y")
    return made


def char_gpt(experts: bool) -> ml.Model:
    made = ml.Model()
    made |= ml.Embedding(len(LETTERS), WIDTH, name="embed")(input="ids", output="x0")
    for number in range(LAYERS):
        made |= block(f"block{number}", experts)(x=f"x{number}", y=f"x{number + 1}")
    made |= ml.Linear(len(LETTERS), name="head")(input=f"x{LAYERS}", output="logits")
    made |= ml.CrossEntropy(name="end")(input="logits", target="next", output="loss")
    return made


# Strategy: mesh, options of train_step, and the float dtype that its losses are as exact as.
STRATEGIES: dict[str, tuple[dict[str, int], dict[str, Any], str]] = {
    "one device": ({}, {}, "float32"),
    "data": ({"data": 4}, {}, "float32"),
    "tensor": ({"tensor": 2}, {}, "float32"),
    "data, tensor": ({"data": 2, "tensor": 2}, {}, "float32"),
    "zero 1": ({"data": 4}, {"zero": 1}, "float32"),
    "zero 2": ({"data": 4}, {"zero": 2}, "float32"),
    "zero 3": ({"data": 4}, {"zero": 3}, "float32"),
    "hybrid": ({"node": 2, "data": 2}, {"zero": 3}, "float32"),
    "zero 3, tensor": ({"data": 2, "tensor": 2}, {"zero": 3}, "float32"),
    "pipeline, zero 1": (
        {"data": 2, "pipeline": 2}, {"zero": 1, "pipeline": PIPELINE}, "float32",
    ),
    "experts": ({"expert": 4}, {}, "float32"),
    "accumulation": ({"data": 2}, {"accumulate": 4}, "float32"),
    "bfloat16, master copies": (
        {"data": 2},
        {"mixed_precision_policy": {"params": "bfloat16", "compute": "bfloat16"}, "zero": 1},
        "bfloat16",
    ),
    "float16, loss scale": (
        {"data": 2},
        {"precision": ml.Precision(compute_dtype="float16"), "loss_scale": "dynamic"},
        "float16",
    ),
}  # fmt: skip


def make_step(backend: ml.Backend, options: dict[str, Any], experts: bool = False) -> TrainStep:
    axes = backend.mesh.names
    rows = tuple(name for name in ("node", "data", "expert") if name in axes)
    made = char_gpt(experts)
    if "expert" in axes:
        made.shard({"*.mlp.experts.*.weight": P("expert", None, None)})
    if "tensor" in axes:
        made.shard(MEGATRON)
    if "pipeline" in axes:
        for name, stage in {"embed": 0, "block0": 0, "block1": 1, "head": 1, "end": 1}.items():
            made.stage(name, stage)
    optimizer = ml.optim.adamw(RATE, eps=EPSILON)
    if "mixed_precision_policy" in options:
        optimizer = ml.optim.with_master_copies(optimizer)
    spec = P(rows) if rows else None
    given = {name: ml.TensorSpec((BATCH, LENGTH), "int32", spec) for name in ("ids", "next")}
    return ml.train_step(made, backend, optimizer, shapes=given, **options)


def losses_of(step: TrainStep, steps: int = STEPS) -> list[float]:
    ids = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
    starts = np.random.default_rng(5).integers(0, len(ids) - LENGTH - 1, (steps, BATCH))
    state, found = step.init(seed=0), []
    for rows in starts:
        places = rows[:, None] + np.arange(LENGTH)
        state, metrics = step(state, {"ids": ids[places], "next": ids[places + 1]})
        found.append(metrics["loss"].item())
    return found


@cache
def expected(experts: bool) -> list[float]:
    return losses_of(make_step(ml.NumpyBackend(), {}, experts))


def check(backend: ml.Backend, strategy: str) -> None:
    _, options, dtype = STRATEGIES[strategy]
    experts = strategy == "experts"
    wanted = expected(experts)
    assert wanted[-1] < (0.5 if runs_all() else 0.9) * wanted[0]
    found = losses_of(make_step(backend, options, experts))
    np.testing.assert_allclose(found, wanted, *TOLERANCE[dtype])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_it_learns_the_same(strategy: str) -> None:
    check(ml.NumpyBackend(ml.Mesh(**STRATEGIES[strategy][0])), strategy)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_learns_the_same_everywhere(backend: str, strategy: str) -> None:
    check(opened(backend, **STRATEGIES[strategy][0]), strategy)
