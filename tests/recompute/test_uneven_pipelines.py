"""Pipelines that compute again, with ZeRO, on batches that neither micro-batches nor devices cut."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.profiles import quick
from tests.tolerances import TOLERANCE

STAGES = {"a": 0, "act": 1, "c": 1, "end": 1}
WIDTHS = {"x": 5, "t": 2}
FULL = {"checkpointing": "all", "rematerialization_policy": {"data": "full"}}


def make_model() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(7, name="a")(input="x", output="h")
    model += ml.Tanh(name="act")(input="h", output="g")
    model += ml.Linear(2, name="c")(input="g", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    for layer, stage in STAGES.items():
        model.stage(layer, stage)
    return model


def train(backend: ml.Backend, size: int, **options: Any) -> dict[str, np.ndarray]:
    """Return losses and parameters of three steps."""
    split = P("data") if "data" in backend.mesh.names else None
    shapes = {name: ml.TensorSpec((size, w), sharding=split) for name, w in WIDTHS.items()}
    rule = ml.optim.sgd(0.1, momentum=0.9)
    step = ml.train_step(make_model(), backend, rule, shapes=shapes, **options)
    rng, state, losses = np.random.default_rng(0), step.init(seed=0), []
    for _ in range(3):
        batch = {name: rng.standard_normal((size, w), np.float32) for name, w in WIDTHS.items()}
        state, metrics = step(state, batch)
        losses.append(metrics.numbers()["loss"])
    return {"loss": np.array(losses), **{n: x.numpy() for n, x in state.params.items()}}


def check(size: int, data: int, **options: Any) -> None:
    expected = train(ml.NumpyBackend(), size)
    backend = ml.NumpyBackend(ml.Mesh(data=data, pipeline=2))
    found = train(backend, size, pipeline=ml.PipelineOptions(microbatch_size=1), **options)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, *TOLERANCE["float32"], err_msg=name)


@quick(lambda size, data, zero, asked: (size, data, zero) == (7, 2, 3))
@pytest.mark.parametrize("asked", ["all", "selective"])
@pytest.mark.parametrize("zero", [1, 3])
@pytest.mark.parametrize("data", [2, 3])
@pytest.mark.parametrize("size", [5, 7, 9])
def test_layers_are_computed_again(size: int, data: int, zero: int, asked: str) -> None:
    check(size, data, zero=zero, checkpointing=asked)


@quick(lambda size, zero: (size, zero) == (7, 3))
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("size", [5, 7])
def test_a_batch_that_is_gathered_again_is_cut_in_each_run(size: int, zero: int) -> None:
    check(size, 2, zero=zero, **FULL)


def test_a_budget_may_gather_again() -> None:
    check(5, 2, zero=3, checkpointing=0.9)


def test_gradients_of_a_model_alone() -> None:
    x = {name: np.ones((7, width), np.float32) for name, width in WIDTHS.items()}
    one = ml.compile(make_model(), ml.NumpyBackend(), shapes={n: v.shape for n, v in x.items()})
    ours = ml.compile(
        make_model(), ml.NumpyBackend(ml.Mesh(data=2, pipeline=2)), zero=3, checkpointing="all",
        shapes={n: ml.TensorSpec(v.shape, sharding=P("data")) for n, v in x.items()},
        pipeline=ml.PipelineOptions(microbatch_size=1),
    )  # fmt: skip
    seed = {"loss": np.float32(1)}
    _, expected = one.evaluate(one.randomize_params(0), x, seed)
    _, found = ours.evaluate(ours.randomize_params(0), x, seed)
    for name, value in expected.items():
        np.testing.assert_allclose(
            found[name].numpy(), value.numpy(), *TOLERANCE["float32"], err_msg=name
        )
