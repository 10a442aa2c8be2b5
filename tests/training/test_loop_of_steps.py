"""`ml.train` over a plan of `ml.train_step`, on batches of `ml.data.batches`, gone on with elsewhere."""

from __future__ import annotations

from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.runtime.training.state import TrainState

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.training.test_step import ATOL, BATCH, OUT, RTOL, WIDTH, Momentum, model

ROWS, STEPS, STOP = 5 * BATCH, 12, 7


def make_run(backend: ml.Backend) -> tuple[ml.TrainStep, TrainState, ml.data.Batches]:
    """Return a step, its first state, and its batches."""
    draw = np.random.default_rng(3).standard_normal
    data = {n: draw((ROWS, size)).astype(np.float32) for n, size in (("x", WIDTH), ("t", OUT))}
    batches = ml.data.batches(
        data, BATCH, backend=backend, sharding=P("data"), shuffle=4, epochs=None
    )
    step = ml.train_step(model(), backend, Momentum(), shapes=batches.shapes)
    return step, step.init(seed=0), batches


@quick(lambda backend: backend in ("jax", "mlx"))
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_goes_on_on_another_backend(backend: str, tmp_path: Path) -> None:
    options = {"log_every": 1, "progress": False}
    _, whole = ml.train(*make_run(ml.NumpyBackend(ml.Mesh(data=1))), steps=STEPS, **options)
    path = tmp_path / "run"
    here = make_run(ml.NumpyBackend(ml.Mesh(data=4)))
    _, first = ml.train(*here, steps=STOP, save=path, **options)
    step, state, batches = make_run(opened(backend, data=2))
    found = ml.load(path, like={"state": state, "step": 0, "batches": batches.state()})
    batches.restore(found["batches"])
    state, rest = ml.train(
        step, found["state"], batches, steps=STEPS, start=found["step"], **options
    )
    assert int(state.step) == STEPS
    losses = {**first["loss"], **rest["loss"]}
    assert [*losses] == [*whole["loss"]] == [*range(1, STEPS + 1)]
    np.testing.assert_allclose([*losses.values()], [*whole["loss"].values()], rtol=RTOL, atol=ATOL)
    assert losses[STEPS] < losses[1]
