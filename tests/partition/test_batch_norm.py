"""Norms of channels on meshes: one exchange forward, one sum backward, and the numbers of one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.testing.evaluate import assert_close
from mithril.types import DType

from tests.profiles import scaled

CHANNELS = 6
Arrays = dict[str, np.ndarray]


def model() -> ml.Model:
    made = ml.Model()
    made |= ml.BatchNorm(name="norm")(
        input="x", running_mean="mean", running_variance="variance", output="y",
        new_mean="new_mean", new_variance="new_variance",
    )  # fmt: skip
    return made


def run(
    made: ml.Model,
    backend: ml.Backend,
    x: np.ndarray,
    spec: P | None = None,
    has_statistics: bool = True,
) -> tuple[ml.CompiledModel, Arrays]:
    """Return all outputs and gradients."""
    given = {"x": backend.array(x, sharding=spec or P())}
    if has_statistics:
        given |= {"mean": backend.zeros(CHANNELS), "variance": backend.ones(CHANNELS)}
    compiled = ml.compile(made, backend, shapes=given)
    slope = np.random.default_rng(1).standard_normal(x.shape).astype(x.dtype)
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, given, {"y": slope})
    found = {**outputs, **{f"gradients.{n}": g for n, g in gradients.items()}}
    return compiled, {name: array.numpy() for name, array in found.items()}


def kinds(compiled: ml.CompiledModel, phase: str) -> list[tuple[str, int]]:
    return [(r.kind, r.bytes) for r in compiled.plan.collectives() if r.phase == phase]


def check(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert_close(found[name], array, DType.float32)


def images(*shape: int, away: float = 3.0) -> np.ndarray:
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    return x + np.float32(away)


def test_a_split_batch_costs_one_exchange_forward_and_one_sum_backward() -> None:
    x, mesh = images(8, CHANNELS, 4, 4), ml.Mesh(data=4)
    _, expected = run(model(), ml.NumpyBackend(), x)
    compiled, found = run(model(), ml.NumpyBackend(mesh), x, P("data"))
    check(found, expected)
    numbers = 2 * 4 * CHANNELS  # two float32 a channel
    assert kinds(compiled, "forward") == [("all_gather", 4 * numbers)]
    assert kinds(compiled, "backward") == [("all_reduce", numbers)]
    (row,) = [r for r in compiled.plan.collectives() if r.kind == "all_gather"]
    assert row.cause.required == "moments of the whole batch"
    assert row.cause.value == "x"


def test_what_lies_on_one_device_is_one_op() -> None:
    compiled, _ = run(model(), ml.NumpyBackend(), images(4, CHANNELS, 3))
    names = [node.op.name for node in compiled.plan.stages[0].program.graph.nodes]
    assert names.count("batch_norm") == names.count("batch_norm_gradient") == 1


@pytest.mark.parametrize("away", [0.0, 3e3])
@pytest.mark.parametrize("batch", [7, 5, 4])
def test_variances_are_no_differences_of_large_numbers(batch: int, away: float) -> None:
    """Parts of any sizes, one of them empty, far from zero and from one another."""
    x = images(batch, CHANNELS, 2, 2, away=away)
    x[0] += np.float32(100.0)
    exact = x.astype(np.float64).var((0, 2, 3))
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    _, found = run(model(), backend, x, P("data"))
    count = x.size // CHANNELS
    unbiased = 0.9 + 0.1 * exact * count / (count - 1)
    np.testing.assert_allclose(found["new_variance"], unbiased, rtol=1e-5)


@st.composite
def meshes(draw: st.DrawFn) -> tuple[tuple[int, ...], P]:
    """Draw a shape, and how it is split."""
    shape = (draw(st.integers(2, 7)), CHANNELS, draw(st.integers(2, 5)), draw(st.integers(2, 4)))
    axes = draw(st.permutations(["a", "c", None, None]))
    return shape, P(*axes)


@settings(max_examples=scaled(30))
@given(meshes(), st.booleans())
def test_any_split_gives_the_numbers_of_one_device(case: tuple, is_group: bool) -> None:
    shape, spec = case
    made = model()
    if is_group:
        made = ml.Model()
        made |= ml.GroupNorm(3, name="norm")(input="x", output="y")
    x = images(*shape)
    _, expected = run(made, ml.NumpyBackend(), x, None, not is_group)
    _, found = run(made, ml.NumpyBackend(ml.Mesh(a=2, c=3)), x, spec, not is_group)
    check(found, expected)
