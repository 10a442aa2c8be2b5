"""From ZeRO's stage 2 on no device adds up more of the gradients than its own part."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.runtime.training.step import TrainStep

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE

WIDTH, BATCH, COUNT = 16, 16, 4
PIPELINE = ml.PipelineOptions(schedule="1f1b", microbatch_size=2)
CUTS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "accumulation": ({"data": 2}, {"accumulate": COUNT}),
    "pipeline": ({"data": 2, "pipeline": 2}, {"pipeline": PIPELINE}),
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"precision": ml.Precision(compute_dtype="bfloat16")},  # gradients are casts
}


def make_step(backend: ml.Backend, **options: Any) -> TrainStep:
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="x", output="h")
    model |= ml.Repeat(ml.Linear(WIDTH), 2, name="deep")(input="h", output="g")
    model |= ml.Linear(WIDTH, name="last")(input="g", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    if "pipeline" in backend.mesh.names:
        for name, stage in {"first": 0, "deep": 0, "last": 1, "end": 1}.items():
            model.stage(name, stage)
    spec = P("data") if "data" in backend.mesh.names else None
    shapes = {name: ml.TensorSpec((BATCH, WIDTH), sharding=spec) for name in ("x", "t")}
    return ml.train_step(model, backend, ml.optim.adam(1e-2), shapes=shapes, **options)


def losses_of(step: TrainStep) -> list[float]:
    state, found = step.init(seed=0), []
    draws = np.random.default_rng(1)
    for _ in range(4):
        batch = {name: draws.standard_normal((BATCH, WIDTH)).astype("f") for name in ("x", "t")}
        state, metrics = step(state, batch)
        found.append(metrics["loss"].item())
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("cut", CUTS)
def test_stage_1_scatters_once_and_stage_2_each_micro_batch(cut: str, precision: str) -> None:
    mesh, options = CUTS[cut]
    found = {}
    for zero in (1, 2, 3):
        step = make_step(
            ml.NumpyBackend(ml.Mesh(**mesh)), zero=zero, **options, **PRECISIONS[precision]
        )
        backward = [row for row in step.plan.collectives() if row.phase.name == "backward"]
        reduces = [row for row in backward if row.kind in ("reduce_scatter", "all_reduce")]
        assert {row.kind for row in reduces} == {"reduce_scatter"}
        memory = step.memory()
        gradients = max(memory.of(d).parts["gradients"] for d in range(step.backend.mesh.size))
        found[zero] = {row.times for row in reduces}, gradients
    assert found[1][0] == {1}
    assert found[2][0] == found[3][0] == {COUNT, 2 * COUNT}  # in the loop, in each iteration
    if precision == "float32":  # else the gradients of a micro-batch are the largest, in 16 bits
        assert found[2][1] < 0.6 * found[1][1]


@quick(lambda backend, cut, zero: backend == "numpy")
@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("backend", ["numpy", *BACKENDS])
def test_both_learn_as_one_device(backend: str, cut: str, zero: int) -> None:
    mesh, options = CUTS[cut]
    wanted = losses_of(make_step(ml.NumpyBackend()))
    found = losses_of(make_step(opened(backend, **mesh), zero=zero, **options))
    np.testing.assert_allclose(found, wanted, *TOLERANCE["float32"])


@pytest.mark.parametrize("cut", ["", *CUTS])
def test_what_rests_is_gathered_once_for_all_micro_batches(cut: str) -> None:
    mesh, options = CUTS.get(cut, ({"data": 2}, {}))
    step = make_step(ml.NumpyBackend(ml.Mesh(**mesh)), zero=3, **options)
    rows = [row for row in step.plan.collectives() if row.kind == "all_gather"]
    last = [row for row in rows if "last.weight" in (row.cause.value, *row.cause.parts)]
    # Without micro-batches each phase gathers it, so that it is not there in between.
    assert [row.times for row in last] == ([1] if cut else [1, 1])


def test_a_forward_alone_of_a_model_with_scattered_gradients() -> None:
    """With `zero=2` gradients leave scattered; an evaluation without them has none to scatter."""
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    compiled = ml.compile(ml.Linear(8), backend, shapes={"input": (16, 4)}, zero=2)
    params, x = compiled.randomize_params(seed=0), backend.ones(16, 4)
    (y,) = compiled.evaluate(params, {"input": x}).values()
    weight = params["weight"].numpy()
    np.testing.assert_allclose(
        y.numpy() - params["bias"].numpy(), np.ones((16, 4)) @ weight.T, *TOLERANCE["float32"]
    )
