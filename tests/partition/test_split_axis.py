"""Ops along a dimension that devices share: what one device computes, for a few numbers exchanged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh, P
from mithril.types import DType, TensorType

from tests.graphs import Ran, on_one_device, run, values_for
from tests.mesh.strategies import specs
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

F32, F64 = DType.float32, DType.float64
MESHES = [Mesh(a=2), Mesh(a=4), Mesh(a=2, b=3), Mesh(a=3, b=2), Mesh(a=2, b=4)]
Along = Callable[[Tensor, int], dict[str, Tensor]]
DECIDED: dict[str, Along] = {
    "any": lambda x, i: {
        "in each row": ops.any(ops.less(x, -1.0), i),
        "in one": ops.any(ops.isnan(x)),
        "kept": ops.any(x, (i, (i + 1) % 3), keepdims=True),
    },
    "all": lambda x, i: {
        "in each row": ops.all(ops.less(x, 1.0), i),
        "in one": ops.all(ops.isfinite(x)),
        "kept": ops.all(x, (i, (i + 1) % 3), keepdims=True),
    },
    "argmax": lambda x, i: {
        "first": ops.argmax(x, i),
        "in one": ops.argmax(x),
        "of truth": ops.argmax(ops.less(x, 0.0), i),
        "of integers": ops.argmax(ops.cast(ops.less(x, 0.0), DType.int8), i, keepdims=True),
    },
    "argmin": lambda x, i: {
        "first": ops.argmin(x, i),
        "of truth": ops.argmin(ops.less(x, 0.0), i),
        "of integers": ops.argmin(ops.cast(ops.less(x, 0.0), DType.uint8), i),
    },
    "argsort": lambda x, i: {
        "up": ops.argsort(x, i),
        "down": ops.argsort(x, i, descending=True),
        "sorted": ops.sort(x, i, descending=True),
    },
    "top_k": lambda x, i: {
        f"{name} of {k}": y
        for k in {1, 2, -(-x.shape[i] // 2), x.shape[i]}
        if k <= x.shape[i]
        for name, y in zip(("values", "positions"), ops.top_k(x, k, i), strict=True)
    },
}
"""What one device decides to the last bit, for numbers with ties, NaN and infinities."""
COMPUTED: dict[str, Along] = {
    "cumsum": lambda x, i: {"forth": ops.cumsum(x, i), "back": ops.cumsum(x, i, reverse=True)},
    "cumprod": lambda x, i: {"forth": ops.cumprod(x, i), "back": ops.cumprod(x, i, reverse=True)},
    "prod": lambda x, i: {
        "row": ops.prod(x, i),
        "all": ops.prod(x),
        "two": ops.prod(x, (i, (i + 1) % 3), keepdims=True),
    },
    "sort": lambda x, i: {"up": ops.sort(x, i), "down": ops.sort(x, i, descending=True)},
    "top_k": lambda x, i: {"largest": ops.top_k(x, 2, i)[0]},
}
"""What has gradients."""


@st.composite
def splits(draw: st.DrawFn, least: int = 1) -> tuple[Mesh, tuple[int, ...], int, P]:
    """Draw a mesh, a shape, a dimension, and how the tensor is split: parts may be empty."""
    mesh = draw(st.sampled_from(MESHES))
    shape = tuple(draw(st.integers(least, 9)) for _ in range(3))
    return mesh, shape, draw(st.integers(0, 2)), draw(specs(mesh, 3))


def graph_of(along: Along, shape: tuple[int, ...], axis: int, dtype: DType = F64) -> Graph:
    builder = Builder()
    return builder.build(along(builder.input(TensorType(shape, dtype), "x"), axis))


def is_as_planned(ran: Ran) -> bool:
    rows = [(r.kind, r.axes, r.bytes) for r in ran.plan.collectives()]
    return ran.executed == rows == list(ran.plan.list_issued())


@pytest.mark.parametrize("name", DECIDED)
@settings(max_examples=scaled(60))
@given(split=splits(), seed=st.integers(0, 99), dtype=st.sampled_from([F64, F32]))
def test_decisions_are_those_of_one_device(
    name: str, split: tuple[Mesh, tuple[int, ...], int, P], seed: int, dtype: DType
) -> None:
    mesh, shape, axis, spec = split
    graph = graph_of(DECIDED[name], shape, axis, dtype)
    rng = np.random.default_rng(seed)
    odd = [np.nan, -np.inf, np.inf, -1.0, 2.0, 0.0]
    x = rng.choice(odd[rng.integers(0, 5) :], shape).astype(dtype.numpy)
    ran = run(graph, mesh, {"x": x}, {"x": spec}, compute=["x"])
    for output, expected in on_one_device(graph, {"x": x}, ()).items():
        np.testing.assert_array_equal(ran.outputs[output], expected, err_msg=output)
    assert is_as_planned(ran)


@pytest.mark.parametrize("name", COMPUTED)
@settings(max_examples=scaled(40))
@given(split=splits(2), data=st.data())
def test_numbers_and_gradients_are_those_of_one_device(
    name: str, split: tuple[Mesh, tuple[int, ...], int, P], data: st.DataObject
) -> None:
    mesh, shape, axis, spec = split
    graph = graph_of(COMPUTED[name], shape, axis)
    values = values_for(graph)
    values["x"] = values["x"] + np.sign(values["x"])
    if name != "top_k" and data.draw(st.booleans()):
        values["x"][tuple(size // 2 for size in shape)] = 0.0  # what products are not divided by
    promised = {name: data.draw(specs(mesh, v.type.rank)) for name, v in graph.outputs.items()}
    ran = run(
        graph, mesh, values, {"x": spec}, compute=["x"], differentiated=["x"], outputs=promised
    )
    for output, expected in on_one_device(graph, values, ["x"]).items():
        np.testing.assert_allclose(ran.outputs[output], expected, *TOLERANCE["float64"], output)
    assert is_as_planned(ran)


ROWS, COLUMNS, K = 32, 6, 3
ROW, DEVICES = 4 * COLUMNS, 4
"""Bytes of a row of float32."""
COSTS: dict[str, tuple[Callable[[Tensor], object], list[tuple[str, int]]]] = {
    "all": (lambda x: ops.all(ops.isfinite(x)), [("all_reduce", 1)]),
    "any": (lambda x: ops.any(ops.less(x, 0.0), 0), [("all_reduce", COLUMNS)]),
    "argmax": (lambda x: ops.argmax(x, 0), [("all_gather", DEVICES * ROW)] * 2),
    "argmin": (lambda x: ops.argmin(x[:, 0]), [("all_gather", DEVICES * 4)] * 2),
    "top_k": (lambda x: ops.top_k(x, K, 0)[1], [("all_gather", DEVICES * K * ROW)] * 2),
    "cumsum": (lambda x: ops.cumsum(x, 0), [("all_gather", DEVICES * ROW)]),
    "cumprod": (lambda x: ops.cumprod(x, 0), [("all_gather", DEVICES * ROW)]),
    "prod": (ops.prod, [("all_gather", DEVICES * 4)]),
}


@pytest.mark.parametrize("rows", [ROWS, ROWS - 3])
@pytest.mark.parametrize("name", COSTS)
def test_little_is_exchanged(name: str, rows: int) -> None:
    make, expected = COSTS[name]
    builder = Builder()
    x = builder.input(TensorType((rows, COLUMNS), F32), "x")
    graph = builder.build({"y": make(x)})
    ran = run(graph, Mesh(a=DEVICES), values_for(graph), {"x": P("a")})
    assert [(kind, size) for kind, _, size in ran.executed] == expected
    assert is_as_planned(ran)


def test_the_gradient_of_a_running_sum_exchanges_one_row() -> None:
    graph = graph_of(lambda x, i: {"y": ops.cumsum(x, i)}, (ROWS, 2, 3), 0, F32)
    places = {"gradients": {"y": P("a")}, "differentiated": ["x"]}
    ran = run(graph, Mesh(a=DEVICES), values_for(graph), {"x": P("a")}, **places)
    assert ran.rows("forward") == ran.rows("backward") == [("all_gather", ("a",), DEVICES * ROW)]


@pytest.mark.parametrize("rows", [ROWS, 8 * ROWS])
@pytest.mark.parametrize("make", [ops.prod, ops.cumprod])
def test_gradients_of_products_exchange_few_rows(make: Callable[..., Tensor], rows: int) -> None:
    graph = graph_of(lambda x, i: {"y": make(x, i)}, (rows, 2, 3), 0, F32)
    gradients = {"y": P("a")} if make is ops.cumprod else {}
    ran = run(
        graph, Mesh(a=DEVICES), values_for(graph), {"x": P("a")}, compute=["x"],
        differentiated=["x"], gradients=gradients,
    )  # fmt: skip
    backward = [size for _, _, size in ran.rows("backward")]
    assert sum(backward) <= (10 if make is ops.cumprod else 6) * ROW
    assert is_as_planned(ran)


def test_rows_are_brought_together_to_be_sorted() -> None:
    """Four devices hold a quarter of the rows, then of the columns, then of the rows again."""
    graph = graph_of(lambda x, i: {"y": ops.sort(x, i)}, (ROWS, 64, 1), 0, F32)
    places = {"outputs": {"y": P("a")}, "gradients": {"y": P("a")}, "differentiated": ["x"]}
    ran = run(graph, Mesh(a=DEVICES), values_for(graph), {"x": P("a")}, **places)
    moved = [("all_to_all", ("a",), 4 * ROWS * 64 // DEVICES)]
    assert ran.rows("forward") == 2 * moved
    assert {kind for kind, *_ in ran.rows("backward")} == {"all_to_all"}
    assert is_as_planned(ran)


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 3), (8, 4)], ids=str)
def test_what_no_other_dimension_can_be_split_for_is_gathered(shape: tuple[int, ...]) -> None:
    """A vector, few columns, and what is so small that one gather costs less than two exchanges."""
    builder = Builder()
    x = builder.input(TensorType(shape, F32), "x")
    graph = builder.build({"y": ops.sort(x, 0)})
    values = values_for(graph)
    ran = run(graph, Mesh(a=DEVICES), values, {"x": P("a")}, outputs={"y": P("a")})
    assert [kind for kind, *_ in ran.executed] == ["all_gather"]
    np.testing.assert_array_equal(ran.outputs["y"], np.sort(values["x"], 0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_running_sums_are_rounded_once(dtype: str) -> None:
    """Sums of parts travel in float32: 2049 is no number of either dtype."""
    graph = graph_of(lambda x, i: {"y": ops.cumsum(x, i)}, (4096, 1, 1), 0, DType(dtype))
    x = np.ones((4096, 1, 1), DType(dtype).numpy)
    ran = run(graph, Mesh(a=4), {"x": x}, {"x": P("a")})
    np.testing.assert_array_equal(ran.outputs["y"], on_one_device(graph, {"x": x}, ())["y"])


def test_what_lies_behind_is_not_added() -> None:
    """Infinity on a later device is no part of a running sum before it."""
    graph = graph_of(lambda x, i: {"y": ops.cumsum(x, i), "p": ops.cumprod(x, i)}, (8, 1, 1), 0)
    x = np.ones((8, 1, 1))
    x[5], x[6] = np.inf, np.nan
    ran = run(graph, Mesh(a=4), {"x": x}, {"x": P("a")})
    for name, expected in on_one_device(graph, {"x": x}, ()).items():
        np.testing.assert_array_equal(ran.outputs[name], expected)


def test_one_device_runs_the_op_alone() -> None:
    builder = Builder()
    x = builder.input(TensorType((8, 6), F32), "x")
    made = {
        "all": ops.all(ops.isfinite(x)), "argmax": ops.argmax(x, 0), "top_k": ops.top_k(x, 2, 0)[0],
        "cumsum": ops.cumsum(x, 0), "prod": ops.prod(x, 0),
    }  # fmt: skip
    graph = builder.build(made)
    (stage,) = run(graph, Mesh(), values_for(graph)).plan.stages
    names = [node.op.name for node in stage.program.graph.nodes]
    assert sorted(names) == sorted(["isfinite", *made])
