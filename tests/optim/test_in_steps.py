"""Every optimiser in a training step, its state split over devices: the same as on one."""

from __future__ import annotations

from functools import cache

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P, optim

from tests.profiles import quick
from tests.tolerances import TOLERANCE

OPTIMIZERS = {
    "momentum": optim.sgd(0.05, 0.9, nesterov=True),
    "adamw": optim.adamw(0.02, decay_mask="*.weight"),
    "clipped": optim.chain(optim.clip_by_global_norm(0.5), optim.adamw(0.02)),
    "adafactor": optim.adafactor(0.05, min_dim_size_to_factor=4, weight_decay=0.1),
    "muon": optim.muon(optim.warmup_stable_decay_schedule(0.02, 2, 2, 2), weight_decay=0.1),
    "lion": optim.lion(0.01),
    "adagrad": optim.adagrad(0.05),
    "rmsprop": optim.rmsprop(0.02, momentum=0.5, centered=True),
    "average": optim.with_ema(optim.adam(0.02), 0.9),
    "groups": optim.partition(
        {"slow": optim.sgd(0.01), "fast": optim.adam(0.05)}, {"*": "slow", "down.*": "fast"}
    ),
    "frozen": optim.freeze(optim.adam(0.02), "up.bias"),
}
STEPS = 6


@cache
def train(name: str, zero: int | None) -> tuple[dict, list, object]:
    model = ml.Model()
    model |= ml.Linear(12, name="up")(input="x", output="h")
    model |= ml.Tanh()(input="h", output="a")
    model |= ml.Linear(5, name="down")(input="a", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    backend = ml.NumpyBackend() if zero is None else ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    if zero is not None:
        model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    rng = np.random.default_rng(0)
    batch = {n: rng.normal(size=(8, s)).astype(np.float32) for n, s in (("x", 6), ("t", 5))}
    split = None if zero is None else P("data")
    shapes = {n: ml.TensorSpec(x.shape, sharding=split) for n, x in batch.items()}
    step = ml.train_step(model, backend, OPTIMIZERS[name], shapes=shapes, zero=zero or 0)
    state, losses = step.init(seed=0), []
    for _ in range(STEPS):
        state, metrics = step(state, batch)
        losses.append([metrics[key].item() for key in metrics])
    return {n: x.numpy() for n, x in state.params.items()}, losses, state.optimizer


@quick(lambda name, zero: zero == 3 or name == "frozen")
@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimiser_trains_split_as_on_one_device(name: str, zero: int) -> None:
    expected, losses, _ = train(name, None)
    found, split_losses, state = train(name, zero)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(split_losses, losses, rtol=rtol, atol=atol)
    assert losses[-1][0] < losses[0][0]
    for parameter, x in expected.items():
        np.testing.assert_allclose(found[parameter], x, rtol=rtol, atol=atol, err_msg=parameter)
    if zero and name == "adamw":
        assert "data" in str(state[0]["mu"]["up.weight"].sharding.spec)


def test_a_learning_rate_that_starts_as_nan_is_refused_by_a_step() -> None:
    model = ml.Model()
    model |= ml.Linear(1, name="line")(input="x", output="y")
    model |= ml.MeanSquaredError()(input="y", target="t", output="loss")
    optimizer = optim.adam(lambda step: 0.1 * mnp.sqrt(step - 1.0))
    shapes = {"x": (4, 2), "t": (4, 1)}
    step = ml.train_step(model, ml.NumpyBackend(), optimizer, shapes=shapes)
    text = "a schedule gives the learning rate nan at step 0; give one that returns a finite number"
    with pytest.raises(ml.OptionError, match=text):
        step.init()
