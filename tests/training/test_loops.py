"""Steps of a model whose layers are a loop: a layer is whole at a time, in each direction."""

from __future__ import annotations

from functools import cache

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, LOCKSTEP, opened
from tests.graphs import members
from tests.profiles import quick
from tests.tolerances import TOLERANCE
from tests.training.test_step import BATCH, Momentum

LAYERS, WIDTH, HIDDEN = 3, 8, 16
UP, DOWN = 4 * HIDDEN * WIDTH, 4 * WIDTH * HIDDEN


def model(spec: P | None = None) -> ml.Model:
    block = ml.Model()
    block |= ml.Linear(HIDDEN, name="up")(input="input", output="h")
    block += ml.Gelu()(input="h", output="g")
    block += ml.Linear(WIDTH, name="down")(input="g", output="output")
    made = ml.Model()
    made |= ml.Repeat(block, LAYERS, name="blocks")(input="x", output="y")
    made += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    if spec is not None:
        made.at_rest({"*": spec})
    return made


def make_step(on: ml.Backend, spec: P | None = None, **options: object) -> ml.TrainStep:
    lies = P(*on.mesh.names[:1])
    shapes = {name: ml.TensorSpec((BATCH, WIDTH), "float32", lies) for name in "xt"}
    return ml.train_step(model(spec), on, Momentum(), shapes=shapes, **options)


def train(step: ml.TrainStep) -> dict[str, np.ndarray]:
    """Return the parameters after two steps, and the last loss."""
    state, rng = step.init(seed=0), np.random.default_rng(0)
    for _ in range(2):
        batch = {n: rng.standard_normal((BATCH, WIDTH)).astype(np.float32) for n in "xt"}
        state, metrics = step(state, batch)
    found = {name: x.numpy() for name, x in state.params.items()}
    return {**found, "loss": metrics["loss"].numpy()}


@cache
def on_one_device() -> dict[str, np.ndarray]:
    return train(make_step(ml.NumpyBackend()))


STRATEGIES: dict[str, tuple[P | None, dict[str, object]]] = {
    "zero 1": (None, {"zero": 1}),
    "zero 2": (None, {"zero": 2}),
    "zero 3": (None, {"zero": 3}),
    "zero 3, accumulate 2": (None, {"zero": 3, "accumulate": 2}),
    "at rest by layer": (P("data"), {}),
    "at rest by rows": (P(None, "data"), {}),
}


@quick(lambda backend, strategy: backend == LOCKSTEP)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_loops_are_trained_as_on_one_device(backend: str, strategy: str) -> None:
    spec, options = STRATEGIES[strategy]
    found = train(make_step(opened(backend, data=2), spec, **options))
    for name, value in on_one_device().items():
        np.testing.assert_allclose(found[name], value, *TOLERANCE["float32"], err_msg=name)


@pytest.mark.parametrize("strategy", ["zero 2", "zero 3", "at rest by layer", "at rest by rows"])
def test_gradients_of_a_layer_are_scattered_where_they_are_made(strategy: str) -> None:
    """Not of all layers after the loop, of which the whole would have to be kept until then."""
    spec, options = STRATEGIES[strategy]
    plan = make_step(ml.NumpyBackend(ml.Mesh(data=2)), spec, **options).plan
    scattered = [row[2:] for row in members(plan, "backward") if row[0] == "reduce_scatter"]
    vectors = [(4 * HIDDEN, LAYERS), (4 * WIDTH, LAYERS)]
    assert sorted(scattered) == sorted([(UP, LAYERS), (DOWN, LAYERS), *vectors])


def test_whole_stacks_are_gathered_before_the_loop() -> None:
    """Zero 1 gathers each of them once, for both phases."""
    plan = make_step(ml.NumpyBackend(ml.Mesh(data=2)), zero=1).plan
    gathered = [row for row in plan.collectives() if row.kind == "all_gather"]
    assert {(row.phase, row.times) for row in gathered} == {("forward", 1)}
    assert sum(len(row.cause.parts) or 1 for row in gathered) == 4
