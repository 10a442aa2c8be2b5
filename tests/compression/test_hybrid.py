"""Gradients that are scattered inside nodes and summed between them: together, once, compressed."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE

AXES = {"node": 2, "data": 2}
KEEPING = ml.GradientCompression("fp16", axes="node", error_feedback=True)


def make(backend: ml.Backend, **options: Any) -> ml.TrainStep:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model += ml.Tanh()
    model += ml.Linear(8, name="down")(output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {n: ml.TensorSpec((16, 8), sharding=P(("node", "data"))) for n in "xt"}
    return ml.train_step(model, backend, ml.optim.adamw(0.01), shapes=shapes, **options)


def list_sums(step: ml.TrainStep) -> list[tuple[tuple[str, ...], int, int, str]]:
    """Return the axes of each sum of gradients, its bytes, how often it is taken, and as what."""
    return [
        (row.axes, row.bytes, row.times, row.cause.compressed)
        for row in step.plan.collectives()
        if row.phase == "backward" and row.kind in ("all_reduce", "reduce_scatter")
    ]


def follow(step: ml.TrainStep) -> list[float]:
    rng, state, losses = np.random.default_rng(0), step.init(seed=0), []
    for _ in range(3):
        batch = {n: rng.standard_normal((16, 8), np.float32) for n in "xt"}
        state, metrics = step(state, batch)
        losses.append(metrics["loss"].item())
    return losses


WHOLE = 4 * (2 * 8 * 8 + 2 * 8)
"""The bytes of all gradients."""


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize(
    ("zero", "inside", "between"),
    [(0, WHOLE, WHOLE // 2), (1, WHOLE, WHOLE // 4), (3, WHOLE, WHOLE // 4)],
)
def test_only_what_goes_between_nodes_is_compressed(
    zero: int, inside: int, between: int, accumulate: int
) -> None:
    options = {"gradient_compression": KEEPING, "accumulate": accumulate}
    step = make(ml.NumpyBackend(ml.Mesh(AXES)), zero=zero, **options)
    assert list_sums(step) == [(("data",), inside, 1, ""), (("node",), between, 1, "fp16")]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_gradients_are_scattered_together_and_once(accumulate: int) -> None:
    step = make(ml.NumpyBackend(ml.Mesh(AXES)), zero=1, accumulate=accumulate)
    assert list_sums(step) == [(("data",), WHOLE, 1, ""), (("node",), WHOLE // 2, 1, "")]


@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_that_of_one_device(backend: str, zero: int, accumulate: int) -> None:
    found = follow(make(opened(backend, **AXES), zero=zero, accumulate=accumulate))
    wanted = follow(make(ml.NumpyBackend(ml.Mesh(node=1, data=1))))
    np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "form", [KEEPING, "fp16", "int8", ml.GradientCompression("powersgd", rank=2)]
)
def test_a_compressed_step_is_nearly_the_plain_one(form: Any, zero: int) -> None:
    options = {"zero": zero, "accumulate": 2}
    plain = follow(make(opened("numpy", **AXES), **options))
    found = follow(make(opened("numpy", **AXES), gradient_compression=form, **options))
    np.testing.assert_allclose(found, plain, rtol=0.02)
