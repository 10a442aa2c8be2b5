"""PowerSGD and error feedback: each step is the formula on the terms of all devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.plan import Issued
from mithril.plan.names import FACTOR, LOST

from tests.compression.formulas import (
    add_blocks,
    add_cast,
    lose_blocks,
    lose_cast,
    multiply_low_rank,
)
from tests.conformance.engines import BACKENDS, opened
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

ROWS, COLUMNS, BATCH, RATE, BLOCK, STEPS = 12, 7, 8, 0.5, 8, 4
NAME = "line.weight"
Form = ml.GradientCompression
FORMS: dict[str, ml.GradientCompression] = {
    "powersgd": Form("powersgd"),
    "powersgd of rank 2": Form("powersgd", rank=2),
    "powersgd, nothing fed back": Form("powersgd", rank=2, error_feedback=False),
    "fp16": Form("fp16", error_feedback=True),
    "bf16": Form("bf16", error_feedback=True),
    "int8": Form("int8", block=BLOCK, error_feedback=True),
}
DTYPES = {"fp16": "float16", "bf16": "bfloat16", "int8": "bfloat16"}
"""As what results are exact: rounding for the way may go the other way on another backend."""


def line(rows: int) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(rows, bias=False, name="line")(input="x", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


class Recorder:
    """Notes the collectives that steps carry out."""

    def __init__(self) -> None:
        self.issued: list[Issued] = []

    def run(self, bound: Any, given: Any, observe: Any) -> Any:
        del observe
        return bound.executable(given, self.issued.append)


class Steps:
    """Steps of gradient descent on one matrix, and what devices put in."""

    def __init__(self, backend: ml.Backend, form: Any, rows: int = ROWS, columns: int = COLUMNS, **options: Any) -> None:
        self.backend, self.rows, self.columns = backend, rows, columns
        self.count = backend.mesh.sizes["data"]
        sizes = {"x": columns, "t": rows}
        shapes = {n: ml.TensorSpec((BATCH, k), sharding=P("data")) for n, k in sizes.items()}
        self.step = ml.train_step(
            line(rows), backend, ml.optim.sgd(RATE), shapes=shapes, gradient_compression=form,
            **options,
        )  # fmt: skip
        self.state = self.step.init(seed=1)
        self.rng = np.random.default_rng(rows * columns)

    def kept(self, kind: str) -> np.ndarray:
        """Return what compression keeps of the matrix, an entry for each device."""
        return np.array(self.state.compression[f"{kind}{NAME}"].numpy())

    def terms(self, weight: np.ndarray, batch: dict[str, np.ndarray]) -> np.ndarray:
        """Return the gradients of the parts of a batch that devices have."""
        slope = 2 * (batch["x"] @ weight.T - batch["t"]) / np.float32(BATCH * self.rows)
        cut = (np.split(values, self.count) for values in (slope, batch["x"]))
        return np.stack([s.T @ v for s, v in zip(*cut, strict=True)])

    def advance(self) -> tuple[np.ndarray, np.ndarray]:
        """Make a step; return the terms of the devices, and the gradient that was applied."""
        draw = self.rng.standard_normal
        batch = {
            n: draw((BATCH, k), np.float32) for n, k in (("x", self.columns), ("t", self.rows))
        }
        before = np.array(self.state.params[NAME].numpy())
        self.state, _ = self.step(self.state, batch)
        return self.terms(before, batch), (before - self.state.params[NAME].numpy()) / RATE


def expect(
    form: ml.GradientCompression, terms: np.ndarray, factor: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the sum, what each device lost, and the next factor."""
    if factor is not None:
        return multiply_low_rank(terms, factor)
    if form.form == "int8":
        return add_blocks(terms, BLOCK), lose_blocks(terms, BLOCK), None
    return add_cast(terms, form.form), lose_cast(terms, form.form), None


def check_steps(made: Steps, form: ml.GradientCompression) -> None:
    """Check each step against the formula on what the state had before it."""
    tolerance = TOLERANCE[DTYPES.get(form.form, "float32")]
    for _ in range(STEPS):
        lost = made.kept(LOST) if form.keeps_error else np.float32(0)
        factor = made.kept(FACTOR)[0, 0] if form.form == "powersgd" else None
        terms, found = made.advance()
        total, after, turned = expect(form, terms + lost, factor)
        size = np.abs(terms).max()
        np.testing.assert_allclose(found / size, total / size, *tolerance)
        if form.keeps_error:
            np.testing.assert_allclose(made.kept(LOST) / size, after / size, *tolerance)
            assert np.abs(after).max() > 0
        if turned is not None:
            for entry in made.kept(FACTOR):
                np.testing.assert_allclose(entry[0] / size, turned / size, *tolerance)


@pytest.mark.parametrize("zero", [0, 2])
@pytest.mark.parametrize("form", FORMS)
def test_each_step_is_the_formula(form: str, zero: int) -> None:
    check_steps(Steps(ml.NumpyBackend(ml.Mesh(data=4)), FORMS[form], zero=zero), FORMS[form])


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_step_is_the_formula_on_every_backend(backend: str, form: str) -> None:
    made, recorder = Steps(opened(backend, data=2), FORMS[form]), Recorder()
    made.backend.open_profile = recorder
    try:
        check_steps(made, FORMS[form])
    finally:
        made.backend.open_profile = None
    # XLA's compiler for processors carries sums of bfloat16 in float32 (docs/communication.md).
    width = 2 if (backend, form) == ("jax", "bf16") else 1
    rows = made.step.plan.collectives()
    planned = [(r.kind, r.axes, (width if r.cause.compressed else 1) * r.bytes) for r in rows]
    assert sorted(one.row for one in recorder.issued) == sorted(planned * STEPS)


@settings(max_examples=scaled(25), deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    rank=st.integers(1, 3),
    devices=st.sampled_from([2, 4]),
)
def test_matrices_of_any_shape(sizes: tuple[int, int], rank: int, devices: int) -> None:
    form = Form("powersgd", rank=rank)
    made = Steps(ml.NumpyBackend(ml.Mesh(data=devices)), form, *sizes)
    rows, columns = sizes
    assert bool(made.state.compression) == ((rows + columns) * rank < rows * columns)
    if made.state.compression:
        return check_steps(made, form)
    terms, found = made.advance()
    return np.testing.assert_allclose(found, terms.sum(axis=0), *TOLERANCE["float32"])
