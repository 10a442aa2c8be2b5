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


def hold(axes: dict[str, int], form: Any, split: Any) -> ml.TrainStep:
    """Return a step whose state holds what its gradients lost."""
    shapes = {"x": ml.TensorSpec((16, 8), sharding=split), "t": ml.TensorSpec((16, 8))}
    model = ml.Model()
    model |= ml.Linear(8, name="line")(input="x", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    backend = ml.NumpyBackend(ml.Mesh(axes), gradient_compression=form)
    return ml.train_step(model, backend, ml.optim.sgd(0.1), shapes=shapes)


def advance(step: ml.TrainStep, state: ml.TrainState, seed: int) -> ml.TrainState:
    rng = np.random.default_rng(seed)
    for _ in range(3):
        state, _ = step(state, {n: rng.standard_normal((16, 8), np.float32) for n in "xt"})
    return state


POWERSGD = ml.GradientCompression("powersgd", rank=2)


def test_what_is_kept_has_a_dimension_for_each_axis() -> None:
    step = hold({"tensor": 3, "data": 2}, POWERSGD, P("data"))
    kept = step.init(seed=0).compression
    assert {name: (x.shape, x.sharding.spec) for name, x in kept.items()} == {
        "compression.factor.line.weight": ((2, 3, 1, 8, 2), P("data", "tensor", None, None, None)),
        "compression.lost.line.weight": ((2, 3, 8, 8), P("data", "tensor", None, None)),
    }


@pytest.mark.parametrize("form", [POWERSGD, KEEPING])
def test_a_state_goes_on_where_axes_lie_in_another_order(form: Any, tmp_path: Any) -> None:
    split = P(("node", "data")) if form is KEEPING else P("data")
    step = hold({"node": 2, "data": 2}, form, split)
    other = hold({"data": 2, "node": 2}, form, split)
    state = advance(step, step.init(seed=0), 0)
    ml.save(tmp_path / "state", state)
    wanted = advance(step, state, 1).params["line.weight"]
    loaded = ml.load(tmp_path / "state", like=other.init(seed=1))
    found = advance(other, loaded, 1).params["line.weight"]
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), *TOLERANCE["float32"])
    first, *others = (part.data for part in found.addressable_shards)
    assert all(np.array_equal(first, x) for x in others)


def test_a_state_of_other_axes_is_refused(tmp_path: Any) -> None:
    step = hold({"data": 4}, POWERSGD, P("data"))
    ml.save(tmp_path / "state", step.init(seed=0))
    other = hold({"data": 2, "tensor": 2}, POWERSGD, P("data"))
    with pytest.raises(ml.CheckpointError, match=r"float32\[4, 8, 8\].*float32\[2, 2, 8, 8\]"):
        ml.load(tmp_path / "state", like=other.init(seed=0))
    between = hold(AXES, KEEPING, P(("node", "data")))
    ml.save(tmp_path / "between", between.init(seed=0))
    inside = ml.GradientCompression("fp16", axes="data", error_feedback=True)
    other = hold(AXES, inside, P(("node", "data")))
    with pytest.raises(ml.CheckpointError, match=r"compression\.lost\.line\.weight over data"):
        ml.load(tmp_path / "between", like=other.init(seed=0))
