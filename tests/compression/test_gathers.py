"""Parameters at rest travel in 16 bits, and rest in all of theirs."""

from __future__ import annotations

from typing import Any

import mithril as ml
import ml_dtypes
import numpy as np
import pytest
from mithril import P
from mithril.plan import Issued, Plan

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE
from tests.training.test_char_gpt import losses_of, make_step

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16}
NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def count_gathered(plan: Plan) -> int:
    """Return the bytes that forward and backward gather."""
    rows = (row for row in plan.collectives() if row.kind == "all_gather" and row.phase != "update")
    return sum(row.bytes * row.times for row in rows)


def check_line(backend: ml.Backend, dtype: str | None) -> Plan:
    """Check a product, and its gradients, against what is read of the weight."""
    model = ml.Model()
    model |= ml.Linear(8, bias=False, name="line")(input="x", output="y")
    shapes = {"x": ml.TensorSpec((4, 6), sharding=P("data"))}
    compiled = ml.compile(
        model, backend, shapes=shapes, zero=3, gather_dtype=dtype, differentiable=["x"]
    )
    params, rng = compiled.randomize_params(seed=0), np.random.default_rng(0)
    x, slope = (rng.standard_normal(size, np.float32) for size in ((4, 6), (4, 8)))
    weight = np.array(params["line.weight"].numpy())
    read = weight if dtype is None else weight.astype(DTYPES[dtype]).astype(np.float32)
    issued: list[Issued] = []
    outputs, found = compiled.evaluate(params, {"x": x}, {"y": slope}, observe=issued.append)
    np.testing.assert_allclose(outputs["y"].numpy(), x @ read.T, *TOLERANCE["float32"])
    np.testing.assert_allclose(found["x"].numpy(), slope @ read, *TOLERANCE["float32"])
    np.testing.assert_allclose(found["line.weight"].numpy(), slope.T @ x, *TOLERANCE["float32"])
    np.testing.assert_array_equal(params["line.weight"].numpy(), weight)
    # XLA's compiler for processors gathers bfloat16 in float32 (docs/communication.md).
    width = 2 if (backend.name, dtype) == ("jax", "bf16") else 1
    planned = [(*row[:2], width * row[2]) for row in compiled.plan.list_issued() if row[0] == "all_gather"]  # fmt: skip
    assert sorted(one.row for one in issued if one.kind == "all_gather") == planned
    return compiled.plan


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_computed_with_is_what_travels(dtype: str) -> None:
    plan, plain = (check_line(ml.NumpyBackend(ml.Mesh(data=2)), d) for d in (dtype, None))
    assert count_gathered(plan) * 2 == count_gathered(plain) > 0
    carried = {r.cause.compressed for r in plan.collectives() if r.kind == "all_gather"}
    assert carried == {f"parameters as {NAMES[dtype]}"}
    (note,) = [note for note in plan.notes if "gather_dtype" in note]
    sent = count_gathered(plan) // 2
    assert f"of parameters a device sends {sent} bytes a step in place of {2 * sent}" in note


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_so_it_is_on_every_backend(backend: str, dtype: str) -> None:
    check_line(opened(backend, data=2), dtype)


@pytest.mark.parametrize(
    "options", [{}, {"checkpointing": "all"}, {"accumulate": 2}], ids=["kept", "again", "in parts"]
)
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_step_gathers_half_the_bytes(zero: int, options: dict[str, Any]) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    plain, made = (
        make_step(backend, {"zero": zero, "gather_dtype": dtype, **options})
        for dtype in (None, "bf16")
    )
    assert count_gathered(made.plan) * 2 == count_gathered(plain.plan) > 0
    assert "compressed parameters as bfloat16" in made.explain()


@pytest.mark.slow
def test_training_goes_as_well() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2), gather_dtype="bf16")
    plain = make_step(backend, {"zero": 3, "gather_dtype": None, "gradient_compression": None})
    made = make_step(ml.NumpyBackend(ml.Mesh(data=2)), {"zero": 3})
    assert count_gathered(plain.plan) * 2 == count_gathered(made.plan)
    np.testing.assert_allclose(losses_of(plain), losses_of(made), rtol=0.02)


def test_layers_of_a_loop_travel_so_one_by_one() -> None:
    model = ml.Model()
    model |= ml.Repeat(ml.Linear(16, bias=False, name="line"), 3, name="blocks")(
        input="x", output="y"
    )
    shapes = {"x": ml.TensorSpec((4, 16), sharding=P("data"))}
    backend = ml.NumpyBackend(ml.Mesh(data=2), gather_dtype="bf16")
    compiled = ml.compile(model, backend, shapes=shapes, zero=3)
    rows = [row for row in compiled.plan.collectives() if row.cause.compressed]
    assert {(row.kind, row.bytes, row.times) for row in rows} == {("all_gather", 2 * 16 * 16, 3)}


def test_the_update_reads_all_digits() -> None:
    model = ml.Model()
    model |= ml.Linear(8, bias=False, name="line")(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {n: ml.TensorSpec((4, 8), sharding=P("data")) for n in "xt"}
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    step = ml.train_step(
        model, backend, ml.optim.sgd(1e-6), shapes=shapes, zero=3, gather_dtype="bf16"
    )
    state = step.init(seed=0)
    before = np.array(state.params["line.weight"].numpy())
    state, _ = step(state, {n: np.ones((4, 8), np.float32) for n in "xt"})
    after = state.params["line.weight"].numpy()
    np.testing.assert_allclose(after, before, *TOLERANCE["float32"])
    assert np.abs(before - before.astype(ml_dtypes.bfloat16).astype(np.float32)).max() > 1e-4
    assert np.any(after != before)


@pytest.mark.parametrize("options", [{}, {"zero": 3, "param_dtype": "bfloat16"}], ids=str)
def test_a_plan_says_where_it_changes_nothing(options: dict[str, Any]) -> None:
    dtype = options.pop("param_dtype", None)
    backend = ml.NumpyBackend(ml.Mesh(data=2), param_dtype=dtype)
    compiled = ml.compile(
        ml.Linear(4), backend, shapes={"input": (4, 4)}, gather_dtype="bf16", **options
    )
    assert "gather_dtype='bfloat16' changes nothing" in compiled.explain()
