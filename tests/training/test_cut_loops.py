"""A Repeat that is cut over the stages of a pipeline is trained as on one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.ir import Phase
from mithril.runtime.training.step import TrainStep

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE
from tests.training.test_char_gpt import (
    BATCH,
    LENGTH,
    LETTERS,
    MEGATRON,
    RATE,
    STEPS,
    WIDTH,
    block,
    losses_of,
)

LAYERS = 4
STACK, BIAS = "blocks.mlp.up.weight", "blocks.mlp.up.bias"
PIPELINE = ml.PipelineOptions(schedule="1f1b", microbatch_size=4)
MESH = {"data": 2, "pipeline": 2}
OPTIMIZERS = {
    "adamw": ml.optim.adamw(RATE),
    "clipped": ml.optim.chain(ml.optim.clip_by_global_norm(0.1), ml.optim.adamw(RATE)),
    "adafactor": ml.optim.adafactor(1e-2),  # its factors of a stack are no moments of its shape
    "muon": ml.optim.muon(1e-2),
}

# Muon takes every direction of a gradient equally long, those too that are rounding alone: from one
# order of adding to another its losses part by a factor of ten in twenty steps.
STEPS_OF = dict.fromkeys(OPTIMIZERS, STEPS) | {"muon": min(STEPS, 50)}


def make_step(
    backend: ml.Backend, optimizer: str = "adamw", stages: tuple[int, ...] = (0, 1), **options: Any
) -> TrainStep:
    model, axes = ml.Model(), backend.mesh.names
    model |= ml.Embedding(len(LETTERS), WIDTH, name="embed")(input="ids", output="x0")
    model |= ml.Repeat(block("block", False), LAYERS, name="blocks")(input="x0", output="x1")
    model |= ml.Linear(len(LETTERS), name="head")(input="x1", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="next", output="loss")
    if "pipeline" in axes:
        last = max(stages)
        for name, stage in {"embed": 0, "blocks": [*stages], "head": last, "end": last}.items():
            model.stage(name, stage)
        options["pipeline"] = PIPELINE
    if "tensor" in axes:
        model.shard(MEGATRON)
    spec = P("data") if "data" in axes else None
    given = {name: ml.TensorSpec((BATCH, LENGTH), "int32", spec) for name in ("ids", "next")}
    return ml.train_step(model, backend, OPTIMIZERS[optimizer], shapes=given, **options)


@cache
def expected(optimizer: str) -> list[float]:
    return losses_of(make_step(ml.NumpyBackend(), optimizer), STEPS_OF[optimizer])


def check(step: TrainStep, optimizer: str = "adamw") -> None:
    found = losses_of(step, STEPS_OF[optimizer])
    np.testing.assert_allclose(found, expected(optimizer), *TOLERANCE["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_it_learns_the_same(zero: int) -> None:
    check(make_step(ml.NumpyBackend(ml.Mesh(**MESH)), zero=zero))


@pytest.mark.slow
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_it_learns_the_same_everywhere(backend: str, zero: int) -> None:
    check(make_step(opened(backend, **MESH), zero=zero))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name != "adamw"])
def test_an_optimiser_sees_whole_stacks(optimizer: str) -> None:
    """A norm, or the factors of a moment, are of the layers of all stages."""
    check(make_step(ml.NumpyBackend(ml.Mesh(**MESH)), optimizer, zero=1), optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "stages", "zero"),
    [
        ({"data": 2, "tensor": 2, "pipeline": 2}, (0, 1), 3),
        ({"pipeline": 4}, (0, 1, 2, 3), 0),
        ({"data": 2, "pipeline": 2}, (0, 1, 2, 3), 1),
        ({"data": 2, "pipeline": 2}, (1,), 3),
    ],
)
def test_meshes_and_stages(mesh: dict[str, int], stages: tuple[int, ...], zero: int) -> None:
    check(make_step(ml.NumpyBackend(ml.Mesh(**mesh)), stages=stages, zero=zero))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_each_stage_keeps_and_updates_its_layers(zero: int) -> None:
    step = make_step(ml.NumpyBackend(ml.Mesh(**MESH)), zero=zero)
    lies = {name: sharding.describe() for name, sharding in step.shardings.items()}
    moments = "P('pipeline', 'data', None)" if zero else "P('pipeline', None, None)"
    assert lies[f"optimizer.0.mu.{STACK}"] == lies[f"optimizer.0.nu.{STACK}"] == moments
    assert lies[STACK] == moments
    # What other layers keep lies on their own stage, their moments included.
    for name, stage in (("embed.weight", 0), ("head.weight", 1)):
        for kept in (name, f"optimizer.0.mu.{name}"):
            assert step.shardings[kept].mesh.devices == (stage, stage + 2), kept
    # Nothing of a stack goes from stage to stage for its update: what is sent are scalars.
    sent = [row for row in step.plan.collectives() if row.kind == "send"]
    updates = [row.bytes for row in sent if row.phase == Phase.update]
    assert updates and set(updates) == {4}, sent
    assert {row.phase for row in sent if row.bytes > 4} == {Phase.forward, Phase.backward}, sent
    over_stages = [row for row in step.plan.collectives() if "pipeline" in row.axes]
    assert over_stages and all(row.bytes == 4 for row in over_stages)  # the norm of gradients


def count_kept(mesh: dict[str, int], zero: int) -> int:
    """Return the most bytes that a device keeps from step to step."""
    memory = make_step(ml.NumpyBackend(ml.Mesh(**mesh)), zero=zero).memory()
    parts = (memory.of(device).parts for device in range(ml.Mesh(**mesh).size))
    return max(found["parameters"] + found["optimizer"] for found in parts)


@pytest.mark.parametrize(("zero", "share"), [(0, 1 / 2), (1, 1 / 4), (3, 1 / 4)])
def test_stages_and_zero_save_memory(zero: int, share: float) -> None:
    """Of a parameter and two moments: half on each stage, further split over `data`."""
    assert count_kept(MESH, zero) == pytest.approx(share * count_kept({"data": 2}, 0), rel=0.01)


@pytest.mark.slow
def test_its_parameters_are_evaluated_as_they_lie() -> None:
    backend = ml.NumpyBackend(ml.Mesh(**MESH))
    step = make_step(backend, zero=3)
    state, batch = step.init(seed=0), dict.fromkeys(("ids", "next"), np.ones((BATCH, LENGTH), "i"))
    loss = step.compiled.evaluate(state.params, batch)["loss"].item()
    state, metrics = step(state, batch)
    np.testing.assert_allclose(metrics["loss"].item(), loss, *TOLERANCE["float32"])
    assert step.compiled.evaluate(state.params, batch)["loss"].item() < loss
