"""Ops that users define: sharded, differentiated, written and read like any other; misuse is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.engine.kernels import KERNELS, kernels_for
from mithril.engine.numpy_engine import NumpyEngine
from mithril.errors import BackendError, GraphError, OptionError, ShapeError
from mithril.ir import Builder, Graph, registry
from mithril.ir.serialize import graph_from_json, graph_to_json, plan_from_json, plan_to_json
from mithril.mesh import Mesh
from mithril.runtime import Backend
from mithril.transform import gradient_of
from mithril.types import DType, TensorType

from tests.graphs import Ran, on_one_device, run, values_for
from tests.ops.test_gradients import STEP
from tests.tolerances import TOLERANCE

F32, F64, I32 = DType.float32, DType.float64, DType.int32
Define = Callable[..., Any]


@pytest.fixture
def softsign() -> Define:
    """An elementwise op with a gradient."""
    return ml.define_op(
        "my.softsign",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"numpy": lambda x: x / (1 + np.abs(x))},
        gradient=lambda inputs, outputs, cotangents: [
            cotangents[0] / ((ops.abs(inputs[0]) + 1.0) * (ops.abs(inputs[0]) + 1.0))
        ],
    )


def moments_kernel(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    return x.sum(-1), (x**order).sum(-1)


@pytest.fixture
def moments() -> Define:
    """Two results, an attribute, and a factor that both results lack: partial sums when split."""
    return ml.define_op(
        "moments",
        shapes=lambda x: [x.with_shape(x.shape[:-1])] * 2,
        rule="... n -> ..., ...",
        attributes={"order": int},
        kernels={"numpy": moments_kernel},
        gradient=lambda inputs, outputs, cotangents, order: [
            wide(cotangents[0], inputs[0])
            + wide(cotangents[1], inputs[0]) * order * inputs[0] ** float(order - 1)
        ],
    )


def wide(x: Any, like: Any) -> Any:
    return ops.broadcast_to(x.reshape(*x.shape, 1), like.shape)


def norm_kernel(x: np.ndarray, gain: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(epsilon)) * gain


def norm_expansion(x: Any, gain: Any, epsilon: float) -> Any:
    return x * ops.rsqrt(ops.mean(x * x, -1, keepdims=True) + epsilon) * gain


@pytest.fixture
def norm() -> Define:
    """A kernel that needs a whole dimension, and an expansion that does not."""
    return ml.define_op(
        "my.norm",
        shapes=lambda x, gain: x,
        rule="... n, n -> ... n",
        expandable=["n"],
        attributes={"epsilon": 1e-6},
        kernels={"numpy": norm_kernel},
        expand=norm_expansion,
    )


def graph_of(function: Callable[..., Any], *types: TensorType) -> Graph:
    """Return the graph of a function over inputs x0, x1, …, with results y0, y1, …."""
    builder = Builder()
    with builder.at(scope="layer", source=None):
        found = function(*(builder.input(t, f"x{i}") for i, t in enumerate(types)))
    results = found if isinstance(found, tuple) else (found,)
    return builder.build({f"y{i}": y for i, y in enumerate(results)})


def f64(*shape: int) -> TensorType:
    return TensorType(shape, F64)


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


def activation_model(softsign: Define) -> ml.Model:
    @ml.layer
    def Softsign(input):  # noqa: N802
        return softsign(input)

    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="input", output="hidden")
    model += Softsign(name="act")(input="hidden", output="active")
    model += ml.Linear(4, name="down")(input="active", output="output")
    model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    return model


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


# ------------------------------------------------------------------ defining again


def scaled(name: str, factor: float) -> Define:
    return ml.define_op(
        name, shapes=lambda x: x, rule="elementwise", kernels={"numpy": lambda x: x * factor}
    )


def test_the_same_place_may_define_an_op_again() -> None:
    x = ml.NumpyBackend().ones(2)
    twice = scaled("scaled", 2.0)
    assert twice(x).numpy().tolist() == [2.0, 2.0]
    thrice = scaled("scaled", 3.0)
    assert thrice(x).numpy().tolist() == [3.0, 3.0]
    assert twice(x).numpy().tolist() == [2.0, 2.0]  # who kept the old one keeps it


def test_another_place_may_not() -> None:
    scaled("scaled_once", 2.0)
    with pytest.raises(GraphError, match=r"^op 'scaled_once' is already defined by .*test_custom, in scaled; choose another name$"):  # fmt: skip
        ml.define_op(
            "scaled_once", shapes=lambda x: x, rule="elementwise", kernels={"numpy": np.tanh}
        )
    with pytest.raises(GraphError, match=r"^op 'exp' is already defined by mithril.ops.functions"):
        scaled("exp", 2.0)


def test_a_notebook_cell_may_run_again() -> None:
    """Cells have another file name each time, and one module."""
    cell = """
import mithril as ml
op = ml.define_op("celled", shapes=lambda x: x, rule="elementwise", attributes={"by": 1},
                  kernels={"numpy": lambda x, by: x + by})
"""
    for number in range(2):
        exec(compile(cell, f"<cell {number}>", "exec"), {"__name__": "__main__"})
    with pytest.raises(GraphError, match="op 'celled' is already defined by __main__"):
        exec(compile(cell, "<cell 2>", "exec"), {"__name__": "another"})


def test_an_op_that_lost_its_kernel_says_so() -> None:
    def define(**how: Any) -> Define:
        return ml.define_op("lost", shapes=lambda x: x, rule="elementwise", **how)

    old = define(kernels={"torch": np.tanh})
    define(kernels={"numpy": np.tanh})
    with pytest.raises(BackendError, match=r"^op 'lost' was defined again and has no kernel for backend 'numpy' as it was before; make the layer anew$"):  # fmt: skip
        old(ml.NumpyBackend().ones(2))


# ------------------------------------------------------------------ backends


@dataclass(frozen=True, slots=True)
class OtherEngine(NumpyEngine):
    """An engine of another name, as a plugin would bring it."""

    name = "other"


def test_an_engine_finds_the_kernels_of_its_name() -> None:
    double = ml.define_op(
        "double",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"numpy": lambda x: x * 2, "other": lambda x: x + x + 0.5},
    )
    assert set(kernels_for("other", KERNELS)) - set(kernels_for("third", KERNELS)) >= {"double"}
    assert set(kernels_for("third", KERNELS)) == set(KERNELS)
    other = Backend(OtherEngine(Mesh(a=2)))
    assert double(other.ones(2)).numpy().tolist() == [2.5, 2.5]
    assert double(ml.NumpyBackend().ones(2)).numpy().tolist() == [2.0, 2.0]


def test_a_backend_without_a_kernel_takes_the_expansion(norm: Define) -> None:
    other = Backend(OtherEngine(Mesh(a=2)))
    rng = np.random.default_rng(0)
    x, gain = rng.standard_normal((4, 8)), rng.standard_normal(8)
    found = norm(other.array(x), other.array(gain), epsilon=0.5)
    rtol, atol = TOLERANCE[found.dtype]
    np.testing.assert_allclose(found.numpy(), norm_kernel(x, gain, 0.5), rtol=rtol, atol=atol)
    graph = graph_of(norm, f64(4, 8), f64(8))
    used = run(graph, Mesh(), values_for(graph), kernels=frozenset(KERNELS)).plan.stages[0].program
    assert "my.norm" not in {node.op.name for node in used.graph.nodes}


def test_a_backend_with_neither_is_refused(softsign: Define) -> None:
    other = Backend(OtherEngine(Mesh(data=2, tensor=2)))
    model = activation_model(softsign)
    with pytest.raises(BackendError, match=r"^op 'my.softsign' at 'act' \(test_custom.py:\d+\) has no kernel in backend 'other' and no expansion; it has kernels for 'numpy'; give define_op one for 'other', or expand=…$"):  # fmt: skip
        ml.compile(model, other, shapes={"input": (4, 6)})
    with pytest.raises(BackendError, match=r"^op 'my.softsign' has no kernel in backend 'other'"):
        softsign(other.ones(2))


# ------------------------------------------------------------------ wrong kernels


def wrong(kernel: Callable[..., Any], results: int = 1) -> Any:
    """Run an op with this kernel on float32 [2, 3]."""
    op = ml.define_op(
        "wrong",
        shapes=lambda x: [x] * results,
        rule="a b -> " + ", ".join(["a b"] * results),
        kernels={"numpy": kernel},
    )
    return op(ml.NumpyBackend().ones(2, 3))


@pytest.mark.parametrize(
    ("kernel", "results", "returned"),
    [
        (lambda x: x.sum(1), 1, "float32[2]"),
        (lambda x: x.astype(np.float64), 1, "float64[2, 3]"),
        (lambda x: (x,), 1, "float32[2, 3]"),
        (lambda x: 1.0, 1, "float"),
        (lambda x: None, 1, "NoneType"),
        (lambda x: x, 2, "float32[2, 3]"),
        (lambda x: (x, x > 0), 2, "float32[2, 3], bool[2, 3]"),
        (lambda x: [x] * 3, 2, "float32[2, 3], float32[2, 3], float32[2, 3]"),
        (lambda x: (), 2, "nothing"),
    ],
)
def test_a_kernel_that_returns_something_else_is_told(
    kernel: Callable[..., Any], results: int, returned: str
) -> None:
    promised = ", ".join(["float32[2, 3]"] * results)
    with pytest.raises(ShapeError) as error:
        wrong(kernel, results)
    assert str(error.value) == (
        f"op 'wrong': its numpy kernel returned {returned} for float32[2, 3]; shapes= promises "
        f"{promised}; make them equal"
    )


def test_a_kernel_is_checked_at_every_call() -> None:
    calls: list[int] = []

    def kernel(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x if len(calls) < 2 else x[:1]

    op = ml.define_op("fickle", shapes=lambda x: x, rule="a -> a", kernels={"numpy": kernel})
    x = ml.NumpyBackend().ones(2)
    op(x)
    with pytest.raises(ShapeError, match=r"op 'fickle': its numpy kernel returned float32\[1\]"):
        op(x)


def test_a_kernel_cannot_write_into_its_operands() -> None:
    def kernel(x: np.ndarray) -> np.ndarray:
        x += 1
        return x

    with pytest.raises(ValueError, match="read-only") as error:
        wrong(kernel)
    assert error.value.__notes__ == [
        "in the numpy kernel of op 'wrong' for float32[2, 3], which it cannot write to"
    ]


def test_dtypes_of_frameworks_are_known_by_their_last_word() -> None:
    class Foreign:
        """An array of a framework with names such as `torch.float32`."""

        def __init__(self, shape: tuple[int, ...]) -> None:
            self.shape, self.dtype = shape, "torch.float32"

    ml.define_op("foreign", shapes=lambda x: x, rule="a -> a", kernels={"torch": lambda x: x})
    op = registry()["foreign"]()
    kernel = kernels_for("torch", {})["foreign"](op, [TensorType((2,), F32)], np)
    assert kernel(Foreign((2,))).shape == (2,)
    with pytest.raises(
        ShapeError, match=r"its torch kernel returned float32\[3\] for float32\[3\]"
    ):
        kernel(Foreign((3,)))


# ------------------------------------------------------------------ errors name layer and line


def test_errors_name_the_layer_and_the_line() -> None:
    op = ml.define_op("flat", shapes=lambda x: x, rule="b n -> b n", kernels={"numpy": lambda x: x})

    @ml.layer
    def Flat(input):  # noqa: N802
        return op(input)

    model = ml.Model()
    model |= Flat(name="flat_0")(input="input")
    compiled = ml.compile(model, ml.NumpyBackend())
    with pytest.raises(ShapeError, match=r"^op 'flat': rule 'b n -> b n' does not fit types float32\[2, 3, 4\], float32\[2, 3, 4\] \(in layer 'flat_0', .*test_custom.py:\d+\)$"):  # fmt: skip
        compiled.evaluate({}, {"input": np.ones((2, 3, 4), np.float32)})
    x = np.ones((2, 3), np.float32)
    compiled.evaluate({}, {"input": x})


def test_a_missing_gradient_names_the_layer_and_the_line() -> None:
    op = ml.define_op(
        "flat_end", shapes=lambda x: x, rule="elementwise", kernels={"numpy": np.sign}
    )

    @ml.layer
    def End(input):  # noqa: N802
        return op(input)

    model = ml.Model()
    model |= ml.Linear(3, name="linear")(input="input", output="hidden")
    model += End(name="end")(input="hidden", output="output")
    compiled = ml.compile(model, ml.NumpyBackend())
    params = compiled.randomize_params()
    x = np.ones((2, 3), np.float32)
    compiled.evaluate(params, {"input": x})
    with pytest.raises(GraphError, match=r"^op 'flat_end' has no gradient; give define_op a gradient=, or stop gradients before it with stop_gradient \(in layer 'end', .*test_custom.py:\d+\)$"):  # fmt: skip
        compiled.evaluate(params, {"input": x}, {"output": x})


def test_a_result_that_is_not_split_as_the_rule_says_is_told() -> None:
    op = ml.define_op(
        "fixed",
        shapes=lambda x: x.with_shape((8,)),
        rule="n -> n",
        kernels={"numpy": lambda x: x},
    )
    graph = graph_of(op, f64(8))
    with pytest.raises(ShapeError, match=r"^op 'fixed': shapes= gives float64\[8\] for a part of its operands \(float64\[4\]\), where its rule promises float64\[4\]; put the factors that may not be split into whole= \(in layer 'layer'\)$"):  # fmt: skip
        run(graph, Mesh(a=2), values_for(graph), {"x0": P("a")})


def test_options_are_checked_when_the_op_is_used(moments: Define) -> None:
    x = ml.NumpyBackend().ones(2, 3)
    with pytest.raises(
        OptionError, match="op 'moments' needs attribute 'order', a int; pass order=…"
    ):
        moments(x)
