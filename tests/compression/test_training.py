"""Steps of training with compressed gradients: every strategy, and as good a loss."""

from __future__ import annotations

from functools import cache
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.plan.names import FACTOR

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE
from tests.training import test_cut_loops
from tests.training.test_char_gpt import (
    LENGTH,
    LETTERS,
    PIPELINE,
    TEXT,
    WIDTH,
    losses_of,
    make_step,
)

FORMS: dict[str, Any] = {
    "fp16": "fp16", "bf16": "bf16", "int8": ml.GradientCompression("int8", block=32),
}  # fmt: skip
KEEPING: dict[str, Any] = {
    "powersgd": ml.GradientCompression("powersgd", rank=4),
    "int8, error feedback": ml.GradientCompression("int8", block=32, error_feedback=True),
}
"""Forms that keep a state from step to step."""
ALL = {**FORMS, **KEEPING}
STRATEGIES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "data": ({"data": 2}, {}),
    "data, tensor": ({"data": 2, "tensor": 2}, {}),
    "zero 2, accumulation": ({"data": 2}, {"zero": 2, "accumulate": 2}),
    "zero 3": ({"data": 2}, {"zero": 3}),
    "accumulation": ({"data": 2}, {"accumulate": 2}),
    "recomputed": ({"data": 2}, {"checkpointing": "all"}),
    "pipeline, zero 1": ({"data": 2, "pipeline": 2}, {"zero": 1, "pipeline": PIPELINE}),
}


@cache
def train(backend: ml.Backend, strategy: str, form: str, steps: int) -> list[float]:
    """Return the losses of a small GPT of characters."""
    options = {**STRATEGIES[strategy][1], "gradient_compression": ALL.get(form)}
    step = make_step(backend, options)
    rows = [row for row in step.plan.collectives() if row.cause.compressed]
    assert bool(rows) == (form in ALL)
    ids = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
    starts = np.random.default_rng(5).integers(0, len(ids) - LENGTH - 1, (steps, 16))
    state, found = step.init(seed=0), []
    for batch in starts:
        places = batch[:, None] + np.arange(LENGTH)
        state, metrics = step(state, {"ids": ids[places], "next": ids[places + 1]})
        found.append(metrics["loss"].item())
    return found


def on_numpy(strategy: str) -> ml.Backend:
    return opened("numpy", **STRATEGIES[strategy][0])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_is_nearly_the_plain_one(strategy: str, form: str) -> None:
    backend = on_numpy(strategy)
    plain, found = (train(backend, strategy, f, 4) for f in ("", form))
    np.testing.assert_allclose(found, plain, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_is_nearly_the_plain_one_everywhere(backend: str, form: str) -> None:
    plain = train(on_numpy("data"), "data", "", 4)
    found = train(opened(backend, data=2), "data", form, 4)
    np.testing.assert_allclose(found, plain, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if "tensor" not in name])
def test_powersgd_is_the_same_under_every_strategy(strategy: str) -> None:
    """Of a matrix that is split over `tensor` each part has factors of its own."""
    wanted, found = (train(on_numpy(s), s, "powersgd", 4) for s in ("data", strategy))
    np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["data", "zero 3", "pipeline, zero 1"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_powersgd_is_the_same_everywhere(backend: str, strategy: str) -> None:
    axes = STRATEGIES[strategy][0]
    wanted = train(on_numpy("data"), "data", "powersgd", 4)
    found = train(opened(backend, **axes), strategy, "powersgd", 4)
    np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"])


@pytest.mark.slow
def test_a_stack_that_is_cut_over_stages_has_factors_on_each() -> None:
    found = {}
    for zero in (0, 3):
        backend = opened("numpy", **test_cut_loops.MESH)
        step = test_cut_loops.make_step(
            backend, zero=zero, gradient_compression=KEEPING["powersgd"]
        )
        found[zero] = losses_of(step)
        kept = step.init(seed=0).compression
        names = [name for name in kept if "blocks.mlp.up.weight" in name and FACTOR in name]
        assert [kept[name].shape for name in names] == [(2, 2, WIDTH, 4)] * 2
    np.testing.assert_allclose(found[3], found[0], *TOLERANCE["float32"])
    assert found[0][-1] < 0.7 * found[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("form", ALL)
def test_300_steps_learn_as_much(form: str) -> None:
    plain, found = (np.mean(train(on_numpy("data"), "data", f, 300)[-20:]) for f in ("", form))
    assert plain < 0.5 * train(on_numpy("data"), "data", "", 300)[0]
    assert abs(found - plain) <= 0.02 * plain


@pytest.mark.parametrize("form", FORMS)
def test_gradients_of_a_stack_are_compressed_slice_by_slice(form: str) -> None:
    model = ml.Model()
    block = ml.Linear(16, bias=False, name="line")
    model |= ml.Repeat(block, 3, name="blocks")(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {name: ml.TensorSpec((8, 16), sharding=P("data")) for name in "xt"}
    rows = {n: np.random.default_rng(7).normal(size=(8, 16)).astype(np.float32) for n in "xt"}
    found = {}
    for compression in (None, FORMS[form]):
        step = ml.train_step(
            model, ml.NumpyBackend(ml.Mesh(data=2)), ml.optim.sgd(0.1), shapes=shapes, zero=2,
            gradient_compression=compression,
        )  # fmt: skip
        state, _ = step(step.init(seed=0), rows)
        found[compression is None] = next(iter(state.params.values())).numpy()
        compressed = [row for row in step.plan.collectives() if row.cause.compressed]
        assert {row.times for row in compressed} == (set() if compression is None else {3})
    assert np.any(found[True] != found[False])
    np.testing.assert_allclose(found[True], found[False], rtol=0.02, atol=2e-3)
