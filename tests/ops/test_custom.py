"""Ops that users define: sharded, differentiated, written and read like any other; misuse is told."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.errors import GraphError
from mithril.ir import Graph
from mithril.ir.serialize import graph_from_json, graph_to_json
from mithril.mesh import Mesh
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.transform import gradient_of
from mithril.types import DType, TensorType

from tests.graphs import Ran, on_one_device, run, values_for
from tests.ops.custom_ops import F64, I32, Define, activation_model, f64, graph_of
from tests.ops.test_gradients import STEP
from tests.tolerances import TOLERANCE


def assert_equal_everywhere(
    graph: Graph, specs: Sequence[P], mesh: Mesh, differentiated: bool = True
) -> Ran:
    """Assert that a graph does on a mesh what it does on one device and what its plan says."""
    values = values_for(graph)
    names = [v.name for v in graph.inputs if v.type.dtype.is_float] if differentiated else []
    inputs = {f"x{i}": spec for i, spec in enumerate(specs)}
    ran = run(graph, mesh, values, inputs, differentiated=names)
    rtol, atol = TOLERANCE["float64"]
    for name, value in on_one_device(graph, values, names).items():
        np.testing.assert_allclose(ran.outputs[name], value, rtol=rtol, atol=atol, err_msg=name)
    assert ran.executed == [(r.kind, r.axes, r.bytes) for r in ran.plan.collectives()]
    return ran


def assert_gradients_are_differences(graph: Graph) -> None:
    """Compare all gradients with central differences of fourth order."""
    values = values_for(graph)
    names = [value.name for value in graph.inputs if value.type.dtype.is_float]
    found = on_one_device(graph, values, names)
    seeds = {name: values[f"output_gradients.{name}"] for name in graph.outputs}

    def total(name: str, index: tuple[int, ...], step: float) -> float:
        moved = values[name].copy()
        moved[index] += step
        outputs = on_one_device(graph, {**values, name: moved}, ())
        return sum(float((outputs[n] * seed).sum()) for n, seed in seeds.items())

    rtol, atol = TOLERANCE["float64"]
    for name in names:
        for index in np.ndindex(values[name].shape):
            near = total(name, index, STEP) - total(name, index, -STEP)
            far = total(name, index, 2 * STEP) - total(name, index, -2 * STEP)
            slope = (8 * near - far) / (12 * STEP)
            gradient = found[gradient_of(name)][index]
            np.testing.assert_allclose(gradient, slope, rtol=rtol, atol=atol)


MESH = Mesh(a=2, b=2)
SPECS = [P(), P("a"), P(None, "a"), P("a", "b"), P(("a", "b")), P(None, ("a", "b")), P("b", "a")]


# ------------------------------------------------------------------ they are ops like any other


@pytest.mark.parametrize("size", [8, 7, 1])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_an_elementwise_op_is_split_without_collectives(
    softsign: Define, spec: P, size: int
) -> None:
    graph = graph_of(softsign, f64(8, size))
    ran = assert_equal_everywhere(graph, [spec], MESH)
    x, y = values_for(graph)["x0"], ran.outputs["y0"]
    np.testing.assert_allclose(y, x / (1 + abs(x)), rtol=TOLERANCE["float64"][0])
    if size == 8:
        assert not ran.rows("forward")
        assert not ran.rows("backward") or spec != P()


@pytest.mark.parametrize("size", [8, 6, 7])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_factor_that_results_lack_makes_partial_sums(moments: Define, spec: P, size: int) -> None:
    graph = graph_of(lambda x: moments(x, order=3), f64(4, size))
    ran = assert_equal_everywhere(graph, [spec], MESH)
    x = values_for(graph)["x0"]
    np.testing.assert_allclose(ran.outputs["y1"], (x**3).sum(-1), rtol=TOLERANCE["float64"][0])
    if size == 8 and spec == P(None, "a"):
        assert {row[0] for row in ran.rows("forward")} == {"all_reduce"}


def test_padding_never_reaches_a_kernel_that_sums() -> None:
    """exp(0) is not 0: an uneven dimension is not cut where a kernel would see its padding."""
    total = ml.define_op(
        "exp_sum",
        shapes=lambda x: x.with_shape(x.shape[:1]),
        rule="b n -> b",
        kernels={"numpy": lambda x: np.exp(x).sum(1)},
    )
    ran = assert_equal_everywhere(
        graph_of(total, f64(4, 7)), [P("a", "b")], MESH, differentiated=False
    )
    assert [row[0] for row in ran.rows("forward")] == ["all_gather"]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_a_whole_factor_is_gathered_or_expanded(norm: Define, spec: P) -> None:
    graph = graph_of(norm, f64(4, 8), f64(8))
    ran = assert_equal_everywhere(graph, [spec, P()], MESH, differentiated=False)
    used = {node.op.name for node in ran.plan.stages[0].program.graph.nodes}
    assert ("my.norm" in used) == (len(spec) < 2)
    assert all(row[0] == "all_reduce" for row in ran.rows("forward"))


def test_a_whole_factor_is_gathered_where_there_is_no_expansion() -> None:
    order = ml.define_op(
        "in_order",
        shapes=lambda x: x,
        rule="... n -> ... n",
        whole=["n"],
        kernels={"numpy": lambda x: np.sort(x, -1)},
    )
    graph = graph_of(order, f64(2, 4, 8))
    ran = assert_equal_everywhere(graph, [P(None, "a", "b")], MESH, differentiated=False)
    assert [row[:2] for row in ran.rows("forward")] != []
    assert_equal_everywhere(graph_of(order, f64(8)), [P("a")], MESH, differentiated=False)


def test_a_maximum_is_reduced_as_one() -> None:
    largest = ml.define_op(
        "largest",
        shapes=lambda x: x.with_shape(x.shape[:1]),
        rule="b n -> b",
        reductions={"n": "max"},
        kernels={"numpy": lambda x: x.max(1)},
    )
    graph = graph_of(largest, f64(4, 8))
    ran = assert_equal_everywhere(graph, [P(None, "a")], MESH, differentiated=False)
    assert [row[0] for row in ran.rows("forward")] == ["all_reduce"]
    reductions = [n.op for n in ran.plan.stages[0].program.graph.nodes if n.op.is_collective]
    assert [op.attributes["reduction"] for op in reductions] == ["max"]


@pytest.mark.parametrize(("linear", "kind"), [([(0,)], "linear"), ([], "not")])
def test_partial_sums_pass_a_linear_op(linear: list[tuple[int, ...]], kind: str) -> None:
    """x @ w is a partial sum; a linear op may run before it is reduced, another one may not."""
    half = ml.define_op(
        f"rows_{kind}",
        shapes=lambda x: x.with_shape((1, x.shape[1])),
        rule="b n -> _ n",
        whole=["b"],
        linear=linear,
        kernels={"numpy": lambda x: x[:1] * 0.5},
    )
    graph = graph_of(lambda x, w: half(x @ w), f64(64, 8), f64(8, 4))
    ran = assert_equal_everywhere(graph, [P(None, "a"), P("a")], Mesh(a=2), differentiated=False)
    ((_, _, moved),) = ran.rows("forward")
    assert moved == (1 if linear else 64) * 4 * 8


def test_indices_are_in_range_in_the_padding() -> None:
    def pick(name: str, indices: tuple[int, ...]) -> Graph:
        take = ml.define_op(
            name,
            shapes=lambda table, ids: table.with_shape((*ids.shape, *table.shape[1:])),
            rule="v d, n -> n d",
            whole=["v"],
            indices=indices,
            kernels={"numpy": lambda table, ids: table[ids]},
        )
        return graph_of(
            lambda table, x: take(table, 3 - x), TensorType((3, 2), F64), TensorType((5,), I32)
        )

    values = {"x0": np.arange(6.0).reshape(3, 2), "x1": np.array([1, 2, 3, 1, 2], np.int32)}
    ran = run(pick("pick", (1,)), Mesh(a=2), values, {"x1": P("a")})
    np.testing.assert_array_equal(ran.outputs["y0"], values["x0"][3 - values["x1"]])
    with pytest.raises(IndexError):  # the padding holds 0, and 3 - 0 is out of range
        run(pick("pick_unsafe", ()), Mesh(a=2), values, {"x1": P("a")})


def test_gradients_equal_differences(softsign: Define, moments: Define) -> None:
    assert_gradients_are_differences(graph_of(softsign, f64(2, 3)))
    assert_gradients_are_differences(graph_of(lambda x: moments(x, order=3), f64(2, 3)))
    one_used = graph_of(lambda x: moments(x, order=2)[1] * 2.0, f64(2, 3))
    assert_gradients_are_differences(one_used)


def test_the_gradient_of_an_expansion_stands_in(norm: Define) -> None:
    graph = graph_of(lambda x, gain: norm(x, gain, epsilon=0.1), f64(2, 3), f64(3))
    assert_gradients_are_differences(graph)
    large = graph_of(lambda x, gain: norm(x, gain, epsilon=0.1), f64(4, 8), f64(8))
    ran = assert_equal_everywhere(large, [P("a"), P()], MESH)
    assert "my.norm" in {node.op.name for node in ran.plan.stages[0].program.graph.nodes}
    assert_equal_everywhere(large, [P("a", "b"), P()], MESH)


def test_a_loop_runs_it(softsign: Define) -> None:
    graph = graph_of(lambda x: ops.repeat(softsign, x, count=3), f64(4, 8))
    assert_gradients_are_differences(graph_of(lambda x: ops.repeat(softsign, x, count=3), f64(3)))
    assert_equal_everywhere(graph, [P("a", "b")], MESH)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_every_float_dtype_passes(softsign: Define, dtype: str) -> None:
    host = np.linspace(-2, 2, 8)
    x = ml.NumpyBackend(device_mesh=(2,)).array(host, dtype=dtype, sharding=P("data"))
    found = softsign(x)
    assert found.dtype == dtype
    rtol, atol = TOLERANCE[dtype]
    wide = found.numpy().astype(np.float64)
    np.testing.assert_allclose(wide, host / (1 + abs(host)), rtol=rtol, atol=atol)


def test_a_result_may_have_another_dtype() -> None:
    positive = ml.define_op(
        "positive",
        shapes=lambda x: TensorType(x.shape, "bool"),  # type: ignore[arg-type]
        rule="elementwise",
        kernels={"numpy": lambda x: x > 0},
    )
    found = positive(ml.NumpyBackend().array([1.0, -1.0]))
    assert found.dtype == DType.bool_
    assert found.numpy().tolist() == [True, False]


def flipped_rule(x: TensorType, axis: int) -> str:
    return ("n b -> n b", "a n -> a n")[axis]


def test_a_rule_may_depend_on_an_attribute() -> None:
    flipped = ml.define_op(
        "flipped",
        shapes=lambda x: x,
        rule=flipped_rule,
        whole=["n"],
        attributes={"axis": 0},
        kernels={"numpy": np.flip},
    )
    graph = graph_of(lambda x: flipped(x, axis=1), f64(4, 8))
    assert not assert_equal_everywhere(graph, [P("a")], MESH, False).rows("forward")
    assert assert_equal_everywhere(graph, [P(None, "a")], MESH, False).rows("forward")
    assert_equal_everywhere(graph_of(flipped, f64(4, 8)), [P(None, "a")], MESH, False)


def test_dimensions_of_two_factors() -> None:
    heads = ml.define_op(
        "split_heads",
        shapes=lambda x, size: x.with_shape((*x.shape[:-1], x.shape[-1] // size, size)),
        rule="... (h d) -> ... h d",
        whole=["d"],
        attributes={"size": int},
        kernels={"numpy": lambda x, size: x.reshape(*x.shape[:-1], -1, size)},
    )
    graph = graph_of(lambda x: heads(x, size=4), f64(2, 16))
    assert not assert_equal_everywhere(graph, [P("a", "b")], MESH, False).rows("forward")


@pytest.mark.parametrize(("flops", "local"), [(1, (64, 64)), (10**12, (32, 64))])
def test_flops_price_the_op(flops: int, local: tuple[int, ...]) -> None:
    """Cheap work is done on every device, dear work is split and its result gathered."""
    costly = ml.define_op(
        "costly",
        shapes=lambda x: x,
        rule="elementwise",
        flops=lambda x: flops * x.size,
        kernels={"numpy": np.tanh},
    )

    def function(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
        made = costly(x)
        return made, made + y, made + z

    graph = graph_of(function, *[f64(64, 64)] * 3)
    rows, columns = P("a"), P(None, "a")
    inputs, outputs = {"x1": rows, "x2": columns}, {"y0": P(), "y1": rows, "y2": columns}
    plan = run(graph, Mesh(a=2), values_for(graph), inputs, outputs=outputs).plan
    first = next(n for n in plan.stages[0].program.graph.nodes if n.op.name == "costly")
    assert first.outputs[0].type.shape == local
    assert first.op.cost([f64(2)], [f64(2)]).flops == 2 * flops


# ------------------------------------------------------------------ models and arrays


def test_a_model_trains_alike_on_a_mesh_and_on_one_device(softsign: Define) -> None:
    rng = np.random.default_rng(0)
    x, g = (rng.standard_normal((8, n)).astype(np.float32) for n in (6, 4))
    found = []
    for mesh in (Mesh(), Mesh(data=2, tensor=2)):
        backend = ml.NumpyBackend(mesh)
        split = P("data") if mesh.size > 1 else P()
        compiled = ml.compile(activation_model(softsign), backend)
        params = compiled.randomize_params(seed=3)
        inputs = {"input": backend.array(x, sharding=split)}
        outputs, gradients = compiled.evaluate(
            params, inputs, {"output": backend.array(g, sharding=split)}
        )
        after = {name: p - 0.1 * gradients[name] for name, p in params.items()}
        trained = compiled.evaluate(after, inputs)["output"]
        found.append([outputs["output"], *gradients.values(), trained])
    rtol, atol = TOLERANCE["float32"]
    for one, many in zip(*found, strict=True):
        np.testing.assert_allclose(one.numpy(), many.numpy(), rtol=rtol, atol=atol)


def test_arrays_are_computed_with_at_once(moments: Define) -> None:
    host = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    x = ml.NumpyBackend(device_mesh=(2, 2)).array(host, sharding=P(None, "data"))
    total, cubes = moments(x, order=3)
    np.testing.assert_array_equal(total.numpy(), host.sum(-1))
    np.testing.assert_array_equal(cubes.numpy(), (host**3).sum(-1))


def test_a_function_shows_its_name_and_arguments(norm: Define) -> None:
    assert norm.__name__ == "norm"
    assert "my.norm" in norm.__doc__
    assert str(inspect.signature(norm)) == "(*operands, epsilon: float = 1e-06)"


# ------------------------------------------------------------------ text and JSON


def test_it_prints_and_is_written_and_read_back(norm: Define, moments: Define) -> None:
    graph = graph_of(lambda x, g: moments(norm(x, g), order=2), f64(4, 8), f64(8))
    assert "my.norm[epsilon=1e-06](x0, x1)" in str(graph)
    assert "moments[order=2]" in str(graph)
    assert str(graph_from_json(graph_to_json(graph))) == str(graph)
    plan = run(graph, MESH, values_for(graph), {"x0": P("a")}).plan
    assert plan_to_json(plan_from_json(plan_to_json(plan))) == plan_to_json(plan)


def test_attributes_of_every_type_are_read_back() -> None:
    settings = {
        "flag": True, "count": 3, "share": float("inf"), "word": "a", "pair": ((1, 2.0), "x"),
        "kind": F64,
    }  # fmt: skip
    typed = ml.define_op(
        "typed",
        shapes=lambda x: x,
        rule="elementwise",
        attributes={key: type(value) for key, value in settings.items()},
        kernels={"numpy": lambda x, **settings: x},
    )
    given = {**settings, "count": np.int64(3), "pair": [[1, 2.0], "x"], "kind": "float64"}
    graph = graph_of(lambda x: typed(x, **given), f64(2))
    (node,) = graph_from_json(graph_to_json(graph)).nodes
    assert node.op.attributes == settings
    assert node.op == graph.nodes[0].op
    assert len({node.op, graph.nodes[0].op}) == 1
    assert type(node.op.attributes["kind"]) is DType


def test_a_plan_with_an_op_that_is_not_defined_is_refused() -> None:
    op = ml.define_op("gone", shapes=lambda x: x, rule="elementwise", kernels={"numpy": np.tanh})
    text = graph_to_json(graph_of(op, f64(2))).replace('"gone"', '"gone_elsewhere"')
    with pytest.raises(GraphError, match="op 'gone_elsewhere' is not known here; import it first"):
        graph_from_json(text)
