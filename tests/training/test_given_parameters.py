"""Parameters that a user begins with stay the user's, whatever they are and wherever they lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mithril as ml
import numpy as np
import pytest

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.profiles import quick
from tests.training.test_step import batches, model, shapes


def as_drawn(backend: ml.Backend, zero: int) -> Mapping[str, Any]:
    """Return the parameters of the model alone."""
    rows = ml.P(*backend.mesh.names)
    return ml.compile(model(), backend, shapes=shapes(rows)).randomize_params(seed=1)


def as_unplaced(backend: ml.Backend, zero: int) -> Mapping[str, Any]:
    return {n: backend.array(x.numpy()) for n, x in as_drawn(backend, zero).items()}


def as_state(backend: ml.Backend, zero: int) -> Mapping[str, Any]:
    """Return the parameters of another state."""
    return make_step(backend, zero).init(seed=1).params


def as_numpy(backend: ml.Backend, zero: int) -> Mapping[str, Any]:
    return {n: x.numpy() for n, x in as_drawn(backend, zero).items()}


def as_framework(backend: ml.Backend, zero: int) -> Mapping[str, Any]:
    """Return arrays of the library that the backend runs on."""
    make: Callable[[np.ndarray], Any]
    if backend.name == "jax":
        import jax.numpy as jnp

        make = jnp.asarray
    elif backend.name == "torch":
        import torch

        make = torch.tensor
    elif backend.name == "mlx":
        import mlx.core as mx

        make = mx.array
    else:
        make = np.array
    return {n: make(x) for n, x in as_numpy(backend, zero).items()}


def make_step(backend: ml.Backend, zero: int, made: ml.Model | None = None) -> ml.TrainStep:
    rows = ml.P(*backend.mesh.names)
    optimizer = ml.optim.adamw(1e-2)
    return ml.train_step(made or model(), backend, optimizer, shapes=shapes(rows), zero=zero)


def train(step: ml.TrainStep, state: ml.TrainState) -> list[float]:
    losses = []
    for batch in batches():
        state, metrics = step(state, batch)
        losses.append(metrics["loss"].item())
    return losses


@pytest.mark.parametrize("axes", [{}, {"data": 2}], ids=str)
@pytest.mark.parametrize("given", [as_drawn, as_unplaced, as_state, as_numpy, as_framework])
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
@quick(
    lambda backend, given, axes: (
        backend in ("numpy", "mlx")
        or (backend in ("jax", LOCKSTEP) and not axes and given in (as_drawn, as_framework))
    )
)
def test_what_a_state_begins_with_stays_the_users(
    backend: str, given: Callable[..., Mapping[str, Any]], axes: dict[str, int]
) -> None:
    on = opened(backend, **axes)
    for zero in (0, 1, 3) if axes else (0,):
        step, params = make_step(on, zero), given(on, zero)
        before = {name: np.asarray(x).copy() for name, x in params.items()}
        first, second = step.init(params=params), step.init(params=params)
        assert train(step, first) == train(step, second)
        for name, x in params.items():
            np.testing.assert_array_equal(np.asarray(x), before[name])


def test_one_array_may_be_several_parameters() -> None:
    made, on = ml.Model(), ml.NumpyBackend()
    for number, port in enumerate("xyz"):
        made |= ml.Linear(3, name=f"line_{number}", bias=False)(input=port, output="yzo"[number])
    made += ml.MeanSquaredError(name="end")(input="o", target="t", output="loss")
    rows = {"x": (4, 3), "t": (4, 3)}
    step, weight = ml.train_step(made, on, ml.optim.sgd(0.1), shapes=rows), on.eye(3)
    state = step.init(params=dict.fromkeys(step.compiled.parameters, weight))
    batch = {"x": np.ones((4, 3), np.float32), "t": np.zeros((4, 3), np.float32)}
    state, _ = step(state, batch)
    np.testing.assert_array_equal(weight.numpy(), np.eye(3))


def test_numbers_stay_those_of_others() -> None:
    """A loop gives the same 1.0 as the gradient of its loss."""

    @ml.layer(parameters=("scale",))
    def Scale(x):  # noqa: N802
        return x * ml.parameter("scale", (), ml.Constant(1.0))

    made, one = ml.Model(), 1.0
    made |= Scale(name="scale")(x="x", output="y")
    made |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    rows = {"x": (4, 3), "t": (4, 3)}
    step = ml.train_step(made, ml.NumpyBackend(), ml.optim.sgd(0.1), shapes=rows)
    batch = {"x": np.ones((4, 3), np.float32), "t": np.zeros((4, 3), np.float32)}
    state, _ = step(step.init(params={"scale.scale": one}), batch)
    step.compiled.evaluate(state.params, batch, {"loss": one})


def test_frozen_parameters_are_not_copied() -> None:
    made, on = model(), ml.NumpyBackend()
    made.freeze("up.*")
    step, params = make_step(on, 0, made), as_drawn(on, 0)
    state = step.init(params=params)
    shared = {name for name, x in state.params.items() if x.shards is params[name].shards}
    assert shared == {"up.weight", "up.bias"}
    train(step, state)
    assert np.isfinite(params["up.weight"].numpy()).all()
