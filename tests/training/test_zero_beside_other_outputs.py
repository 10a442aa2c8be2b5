"""ZeRO in steps of models with more scalar outputs than the loss: they are not differentiated."""

from __future__ import annotations

import re
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.profiles import quick
from tests.tolerances import TOLERANCE

WIDTHS = {"x": 5, "t": 3}


def make_model() -> ml.Model:
    """Return a model whose block of experts tells, besides, how evenly they are used."""
    block = ml.Model(name="block")
    block |= ml.MoE(num_experts=2, expert_dim=4, top_k=1, name="experts")(input="p", output="q")
    block += ml.Add(name="add")(inputs=["p", "q"], output="r")
    model = ml.Model()
    model |= ml.Linear(8, name="a")(input="x", output="h")
    model += block(p="h", r="g")
    model += ml.Linear(3, name="b")(input="g", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


def train(backend: ml.Backend, **options: Any) -> dict[str, np.ndarray]:
    """Return losses and parameters of three steps."""
    model = make_model()
    if "pipeline" in options:
        for layer, stage in {"a": 0, "block": 0, "b": 1, "end": 1}.items():
            model.stage(layer, stage)
    split = P("data") if "data" in backend.mesh.names else None
    shapes = {name: ml.TensorSpec((8, 4, w), sharding=split) for name, w in WIDTHS.items()}
    step = ml.train_step(model, backend, ml.optim.adamw(1e-2), shapes=shapes, **options)
    rng, state, losses = np.random.default_rng(0), step.init(seed=0), []
    for _ in range(3):
        batch = {name: rng.standard_normal((8, 4, w), np.float32) for name, w in WIDTHS.items()}
        state, metrics = step(state, batch)
        losses.append(metrics.numbers()["loss"])
    return {"loss": np.array(losses), **{n: x.numpy() for n, x in state.params.items()}}


@quick(lambda zero: zero == 3)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_experts_tell_may_need_a_whole_batch(zero: int) -> None:
    expected = train(ml.NumpyBackend())
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    found = train(backend, zero=zero, pipeline=ml.PipelineOptions(microbatch_size=2))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, *TOLERANCE["float32"], err_msg=name)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize(
    ("loss", "text"),
    [
        ("y", "train_step() minimises output 'y', which the model does not have; outputs: "),
        ("tokens_per_expert", "train_step() minimises 'tokens_per_expert', which is int32[2];"),
    ],
)
def test_a_loss_is_refused_with_every_stage(zero: int, loss: str, text: str) -> None:
    shapes = {n: ml.TensorSpec((8, 4, w), sharding=P("data")) for n, w in WIDTHS.items()}
    backend, rule = ml.NumpyBackend(ml.Mesh(data=2)), ml.optim.sgd(0.1)
    with pytest.raises(ml.GraphError, match=f"^{re.escape(text)}"):
        ml.train_step(make_model(), backend, rule, loss=loss, shapes=shapes, zero=zero)
