"""Compressed sums are the formula on whole tensors, take fewer bytes, and leave other sums alone."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.ops.collective import class_of
from mithril.plan import Issued, Plan

from tests.compression.formulas import add_blocks, add_cast
from tests.conformance.engines import BACKENDS, opened
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

FORMS = ["fp16", "bf16", "int8"]
BLOCK = 8
EXACT = {"fp16": "float16", "bf16": "bfloat16", "int8": "float32"}


def form_of(name: str, **more: Any) -> ml.GradientCompression:
    return ml.GradientCompression(name, **({"block": BLOCK} if name == "int8" else {}), **more)


def sum_of(terms: np.ndarray, form: str, dimension: int | None = None) -> np.ndarray:
    return add_blocks(terms, BLOCK, dimension) if form == "int8" else add_cast(terms, form)


def linear(outputs: int) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(outputs, bias=False, name="line")(input="x", output="y")
    return model


class Gradient:
    """The gradient of a weight of shape (rows, columns), of which each device makes a term."""

    def __init__(
        self, backend: ml.Backend, rows: int, columns: int, compression: Any, **options: Any
    ) -> None:
        rng, batch = np.random.default_rng(rows * 100 + columns), 2 * backend.mesh.size
        split = P(tuple(backend.mesh.names))
        # Products are exact, and terms have more digits than 16 bits hold.
        x = rng.integers(-127, 128, (batch, columns)).astype(np.float32)
        slope = rng.integers(-127, 128, (batch, rows)).astype(np.float32)
        shapes = {"x": ml.TensorSpec(x.shape, sharding=split)}
        self.compiled = ml.compile(
            linear(rows), backend, shapes=shapes, gradient_compression=compression, **options
        )
        params = self.compiled.randomize_params(seed=0)
        self.issued: list[Issued] = []
        given = {"x": backend.array(x, sharding=split)}
        seed = {"y": backend.array(slope, sharding=split)}
        _, found = self.compiled.evaluate(params, given, seed, observe=self.issued.append)
        self.found = np.asarray(found["line.weight"].numpy())
        cut = (np.split(values, backend.mesh.size) for values in (slope, x))
        self.terms = np.stack([s.T @ v for s, v in zip(*cut, strict=True)])

    @property
    def plan(self) -> Plan:
        return self.compiled.plan


def count_sent(plan: Plan) -> float:
    """Return the bytes that a device sends for gradients."""
    rows = [row for row in plan.collectives() if row.phase == "backward"]
    sizes = plan.mesh.sizes
    groups = [int(np.prod([sizes[axis] for axis in row.axes])) for row in rows]
    return sum(
        class_of(row.kind).traffic(row.bytes, n).bytes for row, n in zip(rows, groups, strict=True)
    )


@pytest.mark.parametrize("form", FORMS)
def test_the_sum_is_the_formula_bit_for_bit(form: str) -> None:
    made = Gradient(ml.NumpyBackend(ml.Mesh(data=4)), 12, 7, form_of(form))
    np.testing.assert_array_equal(made.found, sum_of(made.terms, form))
    whole = made.terms.sum(axis=0, dtype=np.float32)
    assert np.any(made.found != whole), "something is lost"


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sum_is_the_formula_on_every_backend(backend: str, form: str) -> None:
    made = Gradient(opened(backend, data=4), 12, 7, form_of(form))
    # Libraries that add 16 bits up round after every addition, of numbers as large as the terms.
    rtol, atol = TOLERANCE[EXACT[form]]
    size = np.abs(made.terms).max()
    np.testing.assert_allclose(made.found / size, sum_of(made.terms, form) / size, rtol, atol)
    # XLA's compiler for processors carries sums of bfloat16 in float32 (docs/communication.md).
    width = 2 if (backend, form) == ("jax", "bf16") else 1
    rows = sorted((row.kind, row.axes, width * row.bytes) for row in made.plan.collectives())
    assert sorted((one.kind, one.axes, one.bytes) for one in made.issued) == rows


@settings(max_examples=scaled(40), deadline=None)
@given(
    form=st.sampled_from(FORMS),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    devices=st.sampled_from([2, 3, 5]),
)
def test_any_shape_on_any_number_of_devices(
    form: str, sizes: tuple[int, int], devices: int
) -> None:
    made = Gradient(ml.NumpyBackend(ml.Mesh(data=devices)), *sizes, form_of(form))
    is_compressed = any(row.cause.compressed for row in made.plan.collectives())
    wanted = sum_of(made.terms, form) if is_compressed else made.terms.sum(axis=0)
    np.testing.assert_allclose(made.found, wanted, *TOLERANCE["float32"])
    assert is_compressed or form == "int8"


@pytest.mark.parametrize(("form", "share"), [("fp16", 0.5), ("bf16", 0.5), ("int8", 0.26)])
def test_a_device_sends_a_part_of_the_bytes(form: str, share: float) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    plain = count_sent(Gradient(backend, 64, 64, None).plan)
    made = Gradient(backend, 64, 64, form)
    assert count_sent(made.plan) <= share * plain
    (note,) = [note for note in made.plan.notes if "gradient_compression" in note]
    assert f"{round(count_sent(made.plan))} bytes" in note
    assert f"in place of {round(plain)}" in note
    assert f"compressed {form}" in made.compiled.explain()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_scattered_is_compressed(form: str) -> None:
    made = Gradient(ml.NumpyBackend(ml.Mesh(data=4)), 16, 8, form_of(form), zero=2)
    kinds = [row.kind for row in made.plan.collectives() if row.cause.compressed]
    assert set(kinds) == ({"all_to_all"} if form == "int8" else {"reduce_scatter"})
    np.testing.assert_array_equal(made.found, sum_of(made.terms, form, 0))


@pytest.mark.parametrize("zero", [0, 2])
@pytest.mark.parametrize("form", FORMS)
def test_one_axis_alone_is_compressed(form: str, zero: int) -> None:
    options: dict[str, Any] = {"zero": 2, "zero_axis": ("pod", "data")} if zero else {}
    backend = ml.NumpyBackend(ml.Mesh(pod=2, data=2))
    made = Gradient(backend, 16, 8, form_of(form, axes="pod"), **options)
    rows = made.plan.collectives()
    assert {row.axes for row in rows if row.cause.compressed} == {("pod",)}
    assert any("data" in row.axes and not row.cause.compressed for row in rows)
    if not zero:
        pods = made.terms.reshape(2, 2, 16, 8).sum(axis=1)
        np.testing.assert_array_equal(made.found, sum_of(pods, form))
    rtol, atol = TOLERANCE["bfloat16"]
    whole = made.terms.sum(axis=0)
    size = np.abs(whole).max()
    np.testing.assert_allclose(made.found / size, whole / size, rtol, atol)


def test_large_gradients_do_not_overflow_because_they_are_divided_first() -> None:
    assert float(np.finfo(np.float16).max) < 80000.0
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    compiled = ml.compile(linear(1), backend, gradient_compression="fp16")
    x = backend.array(np.full((4, 3), 20000.0, np.float32), sharding=P("data"))
    ones = backend.array(np.ones((4, 1), np.float32), sharding=P("data"))
    params = compiled.randomize_params(seed=0)
    _, gradients = compiled.evaluate(params, {"x": x}, {"y": ones})
    np.testing.assert_allclose(gradients["line.weight"].numpy(), 80000.0, *TOLERANCE["float16"])


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_stays_so(form: str, bad: float) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled = ml.compile(linear(4), backend, gradient_compression=form_of(form))
    values = np.ones((2, 32), np.float32)
    values[1, 3] = bad
    x = backend.array(values, sharding=P("data"))
    ones = backend.array(np.ones((2, 4), np.float32), sharding=P("data"))
    params = compiled.randomize_params(seed=0)
    _, gradients = compiled.evaluate(params, {"x": x}, {"y": ones})
    assert not np.isfinite(gradients["line.weight"].numpy()[:, 3]).any()


def test_a_gradient_of_16_bits_travels_as_it_is() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    shapes = {"x": ml.TensorSpec((8, 6), "bfloat16", P("data"))}
    precision = ml.Precision("bfloat16")
    compiled = ml.compile(
        linear(4), backend, shapes=shapes, precision=precision, gradient_compression="fp16"
    )
    (row,) = [row for row in compiled.plan.collectives() if row.cause.compressed]
    assert (row.kind, row.bytes) == ("all_reduce", 2 * 4 * 6)


def test_other_sums_and_names_are_left_alone() -> None:
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="x", output="h")
    model |= ml.Linear(8, name="down")(input="h", output="y")
    model += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    shapes = {name: ml.TensorSpec((8, 8), sharding=P("data")) for name in "xt"}
    forms = {"*.weight": "bf16", "up.*": None}
    backend = ml.NumpyBackend(ml.Mesh(data=2), gradient_compression=forms)
    step = ml.train_step(model, backend, ml.optim.sgd(0.1), shapes=shapes)
    rows = step.plan.collectives()
    names = {row.cause.value for row in rows if row.cause.compressed}
    assert names == {"gradients.down.weight"}
    loss, others = 4, 4 * (16 * 8 + 16 + 8)
    assert sum(row.bytes for row in rows if not row.cause.compressed) == loss + others
    plain = ml.train_step(
        model, backend, ml.optim.sgd(0.1), shapes=shapes, gradient_compression={"*": None}
    )
    assert not any(row.cause.compressed for row in plain.plan.collectives())


def test_one_device_has_nothing_to_compress_and_says_so() -> None:
    made = Gradient(ml.NumpyBackend(), 4, 3, "fp16")
    np.testing.assert_array_equal(made.found, made.terms[0])
    assert any("compresses nothing" in note for note in made.plan.notes)
