"""A few positions of a split dimension: what one device reads, and no gather of the others."""

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
from mithril.errors import ShapeError
from mithril.ir import Builder, Graph
from mithril.mesh import Mesh
from mithril.transform import differentiate
from mithril.types import DType, TensorType

from tests.conformance.engines import BACKENDS, opened
from tests.engine.programs import on_one
from tests.graphs import run, values_for
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

F64, I32 = DType.float64, DType.int32
ALL = slice(None)
FOUR = ml.NumpyBackend(ml.Mesh(x=4))
Row = tuple[str, int]


def moved(function: Callable[..., Any], *specs: ml.TensorSpec, **options: Any) -> list[Row]:
    """Return the kinds and bytes of the collectives of a function on four devices."""
    plan = ml.jit(function, backend=FOUR, **options).plan(*specs)
    return [(row.kind, row.bytes) for row in plan.collectives()]


def check(graph: Graph, mesh: Mesh, values: dict[str, np.ndarray], spec: P) -> list[str]:
    """Compare values and gradients with one device's, what is exchanged with the plan."""
    expected = on_one(differentiate(graph, ["y"], ["x"]), values)
    found = run(graph, mesh, values, {"x": spec}, differentiated=["x"])
    assert found.outputs.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found.outputs[name], value, *TOLERANCE["float64"], err_msg=name)
    assert found.executed == list(found.plan.list_issued())
    return [row.kind for row in found.plan.collectives()]


# ------------------------------------------------------------------ slices


SEQUENCE = ml.TensorSpec((4, 2048, 1024), sharding=P(None, "x"))
ROWS = ml.TensorSpec((4096, 1024), sharding=P("x"))


@pytest.mark.parametrize("index", [-1, 0, slice(5, 6), 2047])
def test_one_position_moves_itself_only(index: int | slice) -> None:
    assert moved(lambda x: x[:, index], SEQUENCE) == [("all_reduce", 4 * 1024 * 4)]


def test_a_few_positions_are_reduced_and_most_are_gathered() -> None:
    assert moved(lambda x: x[10:14], ROWS) == [("all_reduce", 4 * 1024 * 4)]
    assert moved(lambda x: x[:3000], ROWS) == [("all_gather", 4096 * 1024 * 4)]


def test_the_gradient_of_a_position_is_written_where_it_lies() -> None:
    def slope(x: Any) -> Any:
        return ml.grad(lambda x: mnp.sum(mnp.sin(x[:, -1])))(x)

    assert moved(slope, SEQUENCE) == [("all_reduce", 4 * 1024 * 4)]


def test_one_of_every_two_rows_is_read_where_it_lies() -> None:
    def slope(x: Any) -> Any:
        return ml.grad(lambda x: mnp.sum(mnp.sin(x[1::2])))(x)

    assert moved(lambda x: x[::2], ROWS, out_shardings=P("x")) == []
    assert moved(slope, ROWS) == []


@st.composite
def indices(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    """Draw a position or a slice of each dimension."""
    index: list[int | slice] = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        part = slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3)))
        index.append(draw(st.sampled_from([ALL, start, part])))
    return tuple(index)


ONE = (P("a"), P(None, "a"))
PLACES = (
    *((Mesh(a=size), spec) for size in (2, 3) for spec in ONE),
    *((Mesh(a=2, b=2), spec) for spec in (*ONE, P("a", "b"), P(("a", "b")), P(None, ("b", "a")))),
)


@st.composite
def placed(draw: st.DrawFn) -> tuple[tuple[int, ...], Mesh, P]:
    """Draw a shape, a mesh, and how they lie on it."""
    return draw(st.tuples(*[st.integers(1, 9)] * 2)), *draw(st.sampled_from(PLACES))


@settings(max_examples=scaled(100), deadline=None)
@given(placed(), st.data())
def test_slices_of_split_dimensions(case: tuple[tuple[int, ...], Mesh, P], data: Any) -> None:
    shape, mesh, spec = case
    builder = Builder()
    x: Any = builder.input(TensorType(shape, F64), "x")
    graph = builder.build({"y": ops.sin(x[data.draw(indices(shape))])})
    check(graph, mesh, values_for(graph), spec)


def test_a_position_of_truth_values_and_integers() -> None:
    for values in (np.arange(7) % 2 == 0, np.arange(7).astype(np.uint8)):
        x = ml.NumpyBackend(ml.Mesh(x=3)).array(values, sharding=P("x"))
        for at in range(7):
            np.testing.assert_array_equal(x[at].numpy(), values[at])
            np.testing.assert_array_equal(x[at : at + 2].numpy(), values[at : at + 2])


def test_what_lies_beside_a_position_is_not_added() -> None:
    values = np.array([np.nan, 1.0, np.inf, -np.inf, 2.0], np.float32)
    x = ml.NumpyBackend(ml.Mesh(x=2)).array(values, sharding=P("x"))
    for at in range(5):
        np.testing.assert_array_equal(x[at].numpy(), values[at])


# ------------------------------------------------------------------ picking by position


VOCABULARY = ml.TensorSpec((512, 32768), sharding=P(None, "x"))
IDS = ml.TensorSpec((512, 1), "int32")
ROW = 512 * 4


def choose(logits: Any, ids: Any) -> Any:
    return mnp.take_along(mnp.log_softmax(logits, -1), ids, -1)


def test_log_probabilities_over_a_split_vocabulary() -> None:
    """The maximum, the sum and what is picked: a number for each token, each time."""
    assert moved(choose, VOCABULARY, IDS) == [("all_reduce", ROW)] * 3


def test_their_gradient_moves_a_number_for_each_token() -> None:
    def step(logits: Any, ids: Any) -> Any:
        return ml.value_and_grad(lambda x: mnp.mean(choose(x, ids)))(logits)

    rows = moved(step, VOCABULARY, IDS)
    assert {kind for kind, _ in rows} == {"all_reduce"}
    assert sum(size for _, size in rows) <= 4 * ROW + 4


def test_where_most_positions_are_picked_they_are_gathered() -> None:
    ids = ml.TensorSpec((512, 32768), "int32")
    rows = moved(lambda x, i: mnp.take_along(x, i, -1), VOCABULARY, ids)
    assert rows == [("all_gather", 512 * 32768 * 4)]


@settings(max_examples=scaled(60), deadline=None)
@given(placed(), st.integers(0, 1), st.integers(1, 4), st.integers(0, 99))
def test_picking_along_split_dimensions(
    case: tuple[tuple[int, ...], Mesh, P], axis: int, count: int, seed: int
) -> None:
    shape, mesh, spec = case
    chosen = tuple(count if i == axis else size for i, size in enumerate(shape))
    builder = Builder()
    x: Any = builder.input(TensorType(shape, F64), "x")
    at = builder.input(TensorType(chosen, I32), "at")
    graph = builder.build({"y": ops.sin(ops.take_along(x, at, axis))})
    values = values_for(graph)
    values["at"] = np.random.default_rng(seed).integers(0, shape[axis], chosen, np.int32)
    check(graph, mesh, values, spec)


def test_a_position_in_no_part_is_refused_as_on_one_device() -> None:
    x = FOUR.array(np.zeros((2, 10), np.float32), sharding=P(None, "x"))
    for wrong in (10, 11, 12, -1):
        with pytest.raises(ShapeError, match=rf"take_along meets id {wrong}; ids must lie in 0…9"):
            mnp.take_along(x, FOUR.array(np.full((2, 1), wrong, np.int32)), 1)


# ------------------------------------------------------------------ every backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_positions_on_every_backend(backend: str) -> None:
    """Of seven rows over two devices and five columns over two: forward and gradient."""
    on = opened(backend, a=2, b=2)
    rng = np.random.default_rng(0)
    x, ids = rng.standard_normal((7, 5)).astype(np.float32), rng.integers(0, 5, (7, 2), np.int32)

    def read(x: Any, ids: Any) -> Any:
        picked = mnp.take_along(mnp.log_softmax(x, -1), ids, -1)
        return mnp.sum(mnp.sin(x[-1])) + mnp.sum(x[2:5] ** 2) + mnp.sum(mnp.cos(picked))

    step = ml.value_and_grad(read)
    expected = ml.jit(step, backend=ml.NumpyBackend())(x, ids)
    found = ml.jit(step, backend=on, in_shardings=(P("a", "b"), P("a")))(x, ids)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), *TOLERANCE["float32"])
