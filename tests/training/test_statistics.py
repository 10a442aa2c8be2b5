"""Running statistics: a step gives them back to the layers that keep them, in any precision."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE
from tests.training.test_step import OUT, WIDTH, Momentum, batches, shapes


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.BatchNorm(name="norm")(
        input="x", running_mean="mean", running_variance="variance", output="h"
    )
    made += ml.Linear(OUT, name="down")(output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return made


def make(backend: ml.Backend, **options: Any) -> ml.TrainStep:
    given = {**shapes(P("data")), "mean": (WIDTH,), "variance": (WIDTH,)}
    return ml.train_step(model(), backend, Momentum(), shapes=given, **options)


def follow(step: ml.TrainStep) -> dict[str, np.ndarray]:
    """Return the statistics after a few steps, which are checked to begin at 0 and 1."""
    assert step.inputs == ("x", "t")
    state = step.init()
    assert state.statistics["mean"].numpy().tolist() == [0.0] * WIDTH
    assert state.statistics["variance"].numpy().tolist() == [1.0] * WIDTH
    for batch in batches():
        state, _ = step(state, batch)
    return {name: x.numpy() for name, x in state.statistics.items()}


def by_hand(dtype: str) -> dict[str, np.ndarray]:
    """Return the same of batches in the dtype that layers compute in."""
    mean, variance = np.zeros(WIDTH), np.ones(WIDTH)
    for batch in batches():
        x = ml.NumpyBackend().array(batch["x"]).astype(dtype).astype("float32").numpy()
        mean = 0.9 * mean + 0.1 * x.mean(0)
        variance = 0.9 * variance + 0.1 * x.var(0, ddof=1)
    return {"mean": mean, "variance": variance}


def test_running_statistics_are_fed_back() -> None:
    found = follow(make(ml.NumpyBackend(ml.Mesh(data=2))))
    for name, expected in by_hand("float32").items():
        np.testing.assert_allclose(found[name], expected, *TOLERANCE["float32"])


@quick(lambda backend, dtype, zero: dtype == "bfloat16" and zero == 0)
@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_stay_in_float32(backend: str, dtype: str, zero: int) -> None:
    policy = {"params": "float32", "compute": dtype}
    found = follow(make(opened(backend, data=2), mixed_precision_policy=policy, zero=zero))
    for name, expected in by_hand(dtype).items():
        assert found[name].dtype == np.float32
        np.testing.assert_allclose(found[name], expected, *TOLERANCE["float32"])


@pytest.mark.parametrize("inference", [False, True])
def test_statistics_of_a_model_in_16_bits_come_and_go_in_float32(inference: bool) -> None:
    backend = ml.NumpyBackend()
    batch = {**batches(1)[0], "mean": np.full(WIDTH, 1e-5, np.float32)}
    batch["variance"] = np.full(WIDTH, 1 + 1e-5, np.float32)
    policy = {"params": "bfloat16", "compute": "bfloat16"}
    compiled = ml.compile(model(), backend, mixed_precision_policy=policy, inference=inference)
    made = compiled.evaluate(compiled.randomize_params(), batch)
    for name in ("mean", "variance"):
        after = made[f"new_{name}"].numpy()
        assert after.dtype == np.float32
        assert (after == batch[name]).all() == inference
