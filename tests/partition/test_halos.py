"""Convolutions and pools over split images: rows at the edges of parts move, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P, ops
from mithril.ir import Builder, Graph
from mithril.mesh import Mesh
from mithril.transform import differentiate
from mithril.types import DType, TensorType

from tests.conformance.engines import BACKENDS, opened
from tests.engine.programs import on_one
from tests.graphs import run, values_for
from tests.profiles import quick, scaled
from tests.tolerances import TOLERANCE

F64 = DType.float64
FOUR = ml.NumpyBackend(ml.Mesh(x=4))
SPLIT = P(None, None, "x")
IMAGE = ml.TensorSpec((1, 64, 512, 512), sharding=SPLIT)
LINE = 64 * 512 * 4
"""Bytes of one row of the image."""
Row = tuple[str, int]


def weight(size: int) -> ml.TensorSpec:
    return ml.TensorSpec((64, 64, size, size))


def moved(function: Callable[..., Any], *specs: ml.TensorSpec, **options: Any) -> list[Row]:
    """Return the kinds and bytes of the collectives of a function on four devices."""
    plan = ml.jit(function, backend=FOUR, **options).plan(*specs)
    return [(row.kind, row.bytes) for row in plan.collectives()]


def slopes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that gives the gradients of a sum of sines."""
    return lambda *xs: ml.grad(
        lambda *xs: mnp.sum(mnp.sin(function(*xs))), argnums=tuple(range(len(xs)))
    )(*xs)


# ------------------------------------------------------------------ what moves


def test_a_convolution_sends_the_rows_that_its_windows_reach() -> None:
    def convolve(x: Any, w: Any) -> Any:
        return mnp.convolution(x, w, padding=1)

    assert moved(convolve, IMAGE, weight(3)) == [("permute", LINE)] * 2
    rows = moved(slopes(convolve), IMAGE, weight(3), out_shardings=(SPLIT, P()))
    assert sorted(rows) == [("all_reduce", 64 * 64 * 9 * 4)] + [("permute", LINE)] * 6


def test_padding_on_one_side_needs_rows_of_one_neighbour() -> None:
    def convolve(x: Any, w: Any) -> Any:
        return mnp.convolution(x, w, padding=((2, 0), (1, 1)))

    assert moved(convolve, IMAGE, weight(3)) == [("permute", 2 * LINE)]


@pytest.mark.parametrize("size", [1, 4])
def test_windows_side_by_side_send_nothing(size: int) -> None:
    def convolve(x: Any, w: Any) -> Any:
        return mnp.convolution(x, w, stride=size)

    assert moved(convolve, IMAGE, weight(size), out_shardings=SPLIT) == []
    rows = moved(slopes(convolve), IMAGE, weight(size), out_shardings=(SPLIT, P()))
    assert rows == [("all_reduce", 64 * 64 * size * size * 4)]


def test_windows_that_step_over_rows_send_what_they_reach_before_their_step() -> None:
    def convolve(x: Any, w: Any) -> Any:
        return mnp.convolution(x, w, stride=2, padding=1)

    assert moved(convolve, IMAGE, weight(3)) == [("permute", LINE)]


@pytest.mark.parametrize("pool", [mnp.max_pool, mnp.avg_pool])
def test_pools(pool: Callable[..., Any]) -> None:
    assert moved(slopes(lambda x: pool(x, 2)), IMAGE, out_shardings=SPLIT) == []
    rows = moved(lambda x: pool(x, 3, stride=2, padding=1), IMAGE, out_shardings=SPLIT)
    assert rows == [("permute", LINE)]


def test_other_sizes_are_gathered() -> None:
    """Windows that leave rows out at the ends, and means that divide by other numbers there."""
    everything = [("all_gather", 512 * LINE)]
    assert moved(mnp.convolution, IMAGE, weight(3)) == everything

    def pool(x: Any) -> Any:
        return mnp.avg_pool(x, 3, stride=1, padding=1, count_padding=False)

    assert moved(pool, IMAGE) == everything


def test_a_plan_says_why_rows_move() -> None:
    function = ml.jit(lambda x, w: mnp.convolution(x, w, padding=1), backend=FOUR)
    first, _ = function.plan(IMAGE, weight(3)).collectives()
    assert (first.cause.value, first.cause.required) == ("x", "rows beside the part")


# ------------------------------------------------------------------ what is computed


PLACES = (
    *((Mesh(x=size), SPLIT) for size in (2, 3, 4)),
    *((Mesh(x=2, y=2), spec) for spec in (P(None, None, "x", "y"), P(None, None, ("x", "y")))),
)


@st.composite
def windows(draw: st.DrawFn, is_pool: bool) -> tuple[int, int, int, tuple[int, int], int]:
    """Draw size, window, stride, padding and dilation of a dimension, often such as may split."""
    stride, window = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    dilation = 1 if is_pool else draw(st.integers(1, 2))
    extent = dilation * (window - 1) + 1
    before = draw(st.integers(0, extent - 1))
    after = draw(st.integers(0, extent - 1)) if draw(st.booleans()) else extent - 1 - before
    count = draw(st.integers(2, 12)) if stride == 1 else 4 * draw(st.integers(1, 3))
    size = max(count * stride, extent - before - after)
    return size, window, stride, (before, after), dilation


def check(graph: Graph, names: list[str], mesh: Mesh, spec: P) -> None:
    """Compare values and gradients with one device's, what is exchanged with the plan."""
    values = values_for(graph)
    expected = on_one(differentiate(graph, ["y"], names), values)
    found = run(graph, mesh, values, {"x": spec}, differentiated=names)
    for name, value in expected.items():
        np.testing.assert_allclose(found.outputs[name], value, *TOLERANCE["float64"], err_msg=name)
    assert found.executed == list(found.plan.list_issued())


@settings(max_examples=scaled(100), deadline=None)
@given(st.sampled_from(PLACES), st.tuples(windows(False), windows(False)), st.sampled_from([1, 2]))
def test_convolutions_are_those_of_one_device(
    place: tuple[Mesh, P], dims: tuple[Any, Any], groups: int
) -> None:
    sizes, window, stride, padding, dilation = zip(*dims, strict=True)
    builder = Builder()
    x: Any = builder.input(TensorType((2, 2 * groups, *sizes), F64), "x")
    w: Any = builder.input(TensorType((2 * groups, 2, *window), F64), "w")
    y = ops.convolution(x, w, stride=stride, padding=padding, dilation=dilation, groups=groups)
    check(builder.build({"y": ops.sin(y)}), ["x", "w"], *place)


@settings(max_examples=scaled(100), deadline=None)
@given(
    st.sampled_from(PLACES),
    st.tuples(windows(True), windows(True)),
    st.sampled_from(["max", "mean", "mean of all"]),
)
def test_pools_are_those_of_one_device(
    place: tuple[Mesh, P], dims: tuple[Any, Any], kind: str
) -> None:
    sizes, window, stride, padding, _ = zip(*dims, strict=True)
    builder = Builder()
    x: Any = builder.input(TensorType((2, 3, *sizes), F64), "x")
    shared = {"stride": stride, "padding": padding}
    if kind == "max":
        y = ops.max_pool(x - 3.0, window, **shared)
    else:
        y = ops.avg_pool(x, window, **shared, count_padding=kind == "mean of all")
    check(builder.build({"y": ops.sin(y)}), ["x"], *place)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_pools_of_integers(dtype: str) -> None:
    x = np.random.default_rng(0).integers(0, 9, (1, 1, 7)).astype(dtype)
    x = x - np.asarray(9, dtype) if dtype == "int32" else x

    def pool(x: Any) -> Any:
        return mnp.max_pool(x, 3, stride=1, padding=1)

    expected = ml.jit(pool, backend=ml.NumpyBackend())(x).numpy()
    on = ml.NumpyBackend(ml.Mesh(x=3))
    found = ml.jit(pool, backend=on, in_shardings=(SPLIT,))(x).numpy()
    np.testing.assert_array_equal(found, expected)


MASKED = np.random.default_rng(0).choice(
    np.asarray([-np.inf, np.finfo(np.float32).min, 0.5], np.float32),
    (2, 3, 8, 6),
    p=[0.9, 0.06, 0.04],
)
"""Images in which many windows see nothing."""


def pool_masked(backend: ml.Backend, spec: P | None, height: int, stride: int) -> np.ndarray:
    """Return the gradient of a max pool over masked images."""
    x = MASKED[:, :, :height]
    weights = np.random.default_rng(1).integers(1, 9, (2, 3, height // stride, 6))

    def pool(x: Any) -> Any:
        y = mnp.max_pool(x, 3, stride=(stride, 1), padding=1)
        return mnp.sum(y * weights.astype(np.float32))

    shardings = {} if spec is None else {"in_shardings": (spec,)}
    made = ml.jit(ml.grad(pool), backend=backend, **shardings)(x)
    return made.numpy()


@pytest.mark.parametrize(("height", "stride"), [(8, 1), (8, 2), (7, 1)])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_windows_that_see_nothing_give_their_gradient_to_the_image(
    place: tuple[Mesh, P], height: int, stride: int
) -> None:
    mesh, spec = place
    expected = pool_masked(ml.NumpyBackend(), None, height, stride)
    assert np.count_nonzero(expected[MASKED[:, :, :height] == -np.inf])
    found = pool_masked(ml.NumpyBackend(mesh), spec, height, stride)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_masked_images_on_every_backend(backend: str) -> None:
    on = opened(backend, x=2, y=2)
    found = pool_masked(on, P(None, None, "x", "y"), 8, 1)
    np.testing.assert_array_equal(found, pool_masked(ml.NumpyBackend(), None, 8, 1))


@quick(lambda backend, height: height == 7)
@pytest.mark.parametrize("height", [7, 8])
@pytest.mark.parametrize("backend", BACKENDS)
def test_images_on_every_backend(backend: str, height: int) -> None:
    """Rows over two devices and columns over two, unevenly: forward and gradients."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 4, height, 6)).astype(np.float32)
    w = rng.standard_normal((4, 2, 3, 3)).astype(np.float32)

    def compute(x: Any, w: Any) -> Any:
        x = mnp.convolution(mnp.sin(x), w, padding=1, groups=2)
        x = mnp.max_pool(x, 3, stride=1, padding=1) + mnp.avg_pool(x, 3, stride=1, padding=1)
        return mnp.sum(mnp.sin(mnp.convolution(x, w, stride=(1, 2), padding=1, groups=2)))

    step = ml.value_and_grad(compute, argnums=(0, 1))
    expected = ml.jit(step, backend=ml.NumpyBackend())(x, w)
    on = opened(backend, x=2, y=2)
    found = ml.jit(step, backend=on, in_shardings=(P(None, None, "x", "y"), P()))(x, w)
    for ours, theirs in zip((found[0], *found[1]), (expected[0], *expected[1]), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-4)
