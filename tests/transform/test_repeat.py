"""Loops: what they compute, their gradients, and how they are planned."""

from __future__ import annotations

import json
from collections.abc import Callable

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.engine import Engine
from mithril.errors import GraphError, ShapeError
from mithril.ir import Builder, Graph, Repeat, Tensor
from mithril.ir.rewrite import all_nodes
from mithril.ir.serialize import graph_from_json, graph_to_json
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.transform import differentiate, eliminate_dead, gradient_of
from mithril.types import DType, TensorType

from tests.graphs import Ran, members, on_one_device, run, values_for
from tests.mesh.strategies import specs
from tests.profiles import scaled
from tests.tolerances import DIFFERENCES, TOLERANCE

F64 = DType.float64
N, D, H = 3, 8, 16
SLOPE = dict(zip(("rtol", "atol"), DIFFERENCES, strict=True))
PARAMETERS = ("x", "up", "down", "shared")


def block(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    hidden = ops.relu(ops.einsum("bd,hd->bh", x, up))
    return ops.tanh(x + ops.einsum("bh,dh->bd", hidden, down))


def stack(looped: bool, batch: int = 8) -> Graph:
    """Three blocks with stacked weights and one shared gain, and the sum after each block."""
    builder = Builder()

    def tensor(name: str, *shape: int) -> Tensor:
        return builder.input(TensorType(shape, F64), name)

    x, shared = tensor("x", batch, D), tensor("shared", D)
    up, down = tensor("up", N, H, D), tensor("down", N, D, H)

    def step(x: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
        y = block(x, up, down) * shared
        return y, ops.sum(y)

    if looped:
        y, sums = ops.repeat(step, x, stacked=(up, down))
    else:
        y, found = x, []
        for i in range(N):
            y, total = step(y, up[i], down[i])
            found.append(total.reshape(1))
        sums = ops.concatenate(found, 0)
    return builder.build({"y": y, "sums": sums})


def close(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    rtol, atol = TOLERANCE["float64"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


# ------------------------------------------------------------------ values and gradients


def test_a_loop_is_its_iterations_written_out() -> None:
    looped, unrolled = stack(True), stack(False)
    values = values_for(looped)
    assert len(looped.nodes) == 1
    close(on_one_device(looped, values, PARAMETERS), on_one_device(unrolled, values, PARAMETERS))


def test_reverse_takes_and_puts_slices_from_the_end() -> None:
    x = np.arange(3.0)
    stacked = np.arange(12.0).reshape(4, 3)
    backend = ml.NumpyBackend()

    def step(x: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        return x + s, x * s

    last, made = ops.repeat(step, backend.array(x), stacked=(backend.array(stacked),), reverse=True)
    state, rows = x, []
    for row in stacked[::-1]:
        rows.append(state * row)
        state = state + row
    np.testing.assert_allclose(last.numpy(), state)
    np.testing.assert_allclose(made.numpy(), rows[::-1])


def two_carried(reverse: bool) -> Graph:
    """A loop that carries two values, stacks a third and reads an invariant and integers."""
    builder = Builder()
    x = builder.input(TensorType((2,), F64), "x")
    w = builder.input(TensorType((3, 2), F64), "w")
    c = builder.input(TensorType((2,), F64), "c")
    n = builder.input(TensorType((3,), DType.int32), "n")

    def step(a: Tensor, b: Tensor, w: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        scaled = ops.sin(a * w) + b * c * ops.cast(n, F64)
        return scaled, a * 0.5 + b, a * b

    a, b, made = ops.repeat(step, (x, x * 2.0), stacked=(w, n), reverse=reverse)
    return builder.build({"loss": ops.sum(a * b) + ops.sum(made * made)})


@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_agree_with_finite_differences(reverse: bool) -> None:
    graph = two_carried(reverse)
    values = values_for(graph)
    found = on_one_device(graph, values, ("x", "w", "c"))
    seed = values["output_gradients.loss"]
    for name in ("x", "w", "c"):
        for index in np.ndindex(values[name].shape):
            moved = []
            for step_size in (1e-6, -1e-6):
                changed = {**values, name: values[name].copy()}
                changed[name][index] += step_size
                moved.append(run(graph, Mesh(), changed).outputs["loss"])
            slope = (moved[0] - moved[1]) / 2e-6 * seed
            np.testing.assert_allclose(found[gradient_of(name)][index], slope, **SLOPE)


def test_loops_in_loops_and_second_gradients() -> None:
    def graph(looped: bool) -> Graph:
        builder = Builder()
        x = builder.input(TensorType((4,), F64), "x")
        w = builder.input(TensorType((2, 3, 4), F64), "w")

        def inner(x: Tensor, w: Tensor) -> Tensor:
            return ops.sin(x * w)

        def outer(x: Tensor, rows: Tensor) -> Tensor:
            if looped:
                return ops.repeat(inner, x, stacked=(rows,)) + x
            y = x
            for i in range(3):
                y = inner(y, rows[i])
            return y + x

        y = x
        if looped:
            y = ops.repeat(outer, x, stacked=(w,))
        else:
            for i in range(2):
                y = outer(y, w[i])
        first = builder.build({"y": y})
        joint = differentiate(first, ["y"], ["w"])
        return Graph(joint.inputs, joint.nodes, {"g": joint.outputs[gradient_of("w")]})

    looped, unrolled = verify(graph(True)), graph(False)
    values = values_for(looped)
    wanted = ("x", "w", "output_gradients.y")
    close(on_one_device(looped, values, wanted), on_one_device(unrolled, values, wanted))


def test_only_what_the_backward_loop_needs_is_stacked() -> None:
    builder = Builder()
    x = builder.input(TensorType((4,), F64), "x")
    graph = builder.build({"y": ops.repeat(lambda x: ops.tanh(x * 3.0) + 1.0, x, count=5)})
    joint = verify(differentiate(graph, ["y"], ["x"]))
    forward, backward = (node for node in joint.nodes if isinstance(node.op, Repeat))
    assert len(forward.outputs) == 2, "the carry, and the stack of tanh"
    assert len(backward.inputs) == 2, "the cotangent, and that stack"
    assert forward.op.reverse != backward.op.reverse


def test_unused_stacks_are_not_made() -> None:
    graph = stack(True)
    smaller = eliminate_dead(Graph(graph.inputs, graph.nodes, {"y": graph.outputs["y"]}))
    (node,) = smaller.nodes
    assert len(node.outputs) == 1
    assert "sum" not in {inner.op.name for inner in all_nodes(smaller)}


# ------------------------------------------------------------------ plans

TENSOR = {"up": P(None, "t", None), "down": P(None, None, "t")}
CASES = {
    "data": (Mesh(data=4), {"x": P("data")}, {}),
    "uneven": (Mesh(data=3), {"x": P("data")}, {}),
    "tensor": (Mesh(t=4), TENSOR, {"compute": list(TENSOR)}),
    "both": (Mesh(data=2, t=2), {"x": P("data"), **TENSOR}, {"compute": list(TENSOR)}),
    "stack split over its layers": (Mesh(data=3), {"up": P("data")}, {}),
    "at rest": (
        Mesh(data=4),
        {"x": P("data")},
        {"at_rest": {"up": P(None, "data"), "down": P(None, "data"), "shared": P("data")}},
    ),
    "at rest, stacks split over their layers": (
        Mesh(data=2),
        {"x": P("data")},
        {"at_rest": {"up": P("data"), "down": P("data"), "shared": P("data")}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_loop_on_a_mesh_equals_one_device(case: str) -> None:
    mesh, inputs, options = CASES[case]
    graph = stack(True)
    values = values_for(graph)
    ran = run(graph, mesh, values, inputs, differentiated=PARAMETERS, **options)
    close(ran.outputs, on_one_device(graph, values, PARAMETERS))
    assert tuple(ran.executed) == ran.plan.list_issued()


def rows(case: str) -> list[tuple[str, str, int, int]]:
    mesh, inputs, options = CASES[case]
    graph = stack(True)
    ran = run(graph, mesh, values_for(graph), inputs, differentiated=PARAMETERS[1:], **options)
    return [(str(r.phase)[0], r.kind, r.bytes, r.times) for r in ran.plan.collectives()]


def test_gradients_of_stacks_are_reduced_once_after_the_loop() -> None:
    gradients = 8 * (2 * N * D * H + D)
    assert rows("data") == [("b", "all_reduce", 8 * N + gradients, 1)]


def test_tensor_parallel_blocks_reduce_once_an_iteration() -> None:
    assert rows("tensor") == [("f", "all_reduce", 8 * 8 * D, N), ("b", "all_reduce", 8 * 8 * D, N)]


def test_what_is_kept_at_rest_is_gathered_and_scattered_slice_by_slice() -> None:
    weight, graph, found = 8 * D * H, stack(True), rows("at rest")
    mesh, inputs, options = CASES["at rest"]
    ran = run(graph, mesh, values_for(graph), inputs, differentiated=PARAMETERS[1:], **options)
    gathers, scatters = (
        ("all_gather", ("data",), weight, N),
        ("reduce_scatter", ("data",), weight, N),
    )
    assert members(ran.plan, "forward").count(gathers) == 2
    assert members(ran.plan, "backward").count(gathers) == 2
    assert members(ran.plan, "backward").count(scatters) == 2
    pairs = [("f", "all_gather"), ("b", "all_gather"), ("b", "reduce_scatter")]
    assert all(found.count((*pair, 2 * weight, N)) == 1 for pair in pairs), "in one buffer each"
    assert max(row[2] for row in found) == 2 * weight


def test_stacks_that_rest_split_over_their_layers_are_gathered_slice_by_slice() -> None:
    """What a device has is exchanged once for a part of every layer, and back."""
    mesh, inputs, options = CASES["at rest, stacks split over their layers"]
    graph = stack(True)
    ran = run(graph, mesh, values_for(graph), inputs, differentiated=PARAMETERS[1:], **options)
    whole, half = 8 * D * H, 8 * 4 * D * H // 2  # one layer's; of 3 layers, padded to 4
    once, again = (members(ran.plan, phase) for phase in ("forward", "backward"))
    for found in (once, again):
        assert found.count(("all_gather", ("data",), whole, N)) == 2
        assert max(row[2] for row in found if row[0] == "all_gather") == whole
    assert once.count(("all_to_all", ("data",), half, 1)) == 2, "to a part of each layer"
    assert again.count(("all_to_all", ("data",), half, 1)) == 4, "again, and of gradients back"
    assert again.count(("reduce_scatter", ("data",), whole, N)) == 2


def test_planning_sees_the_body_once() -> None:
    def nodes(count: int) -> int:
        builder = Builder()
        x = builder.input(TensorType((8, D), F64), "x")
        up = builder.input(TensorType((count, H, D), F64), "up")
        down = builder.input(TensorType((count, D, H), F64), "down")
        graph = builder.build({"y": ops.repeat(block, x, stacked=(up, down))})
        ran = run(graph, Mesh(data=2), values_for(graph), {"x": P("data")}, differentiated=("up",))
        return len(list(all_nodes(ran.plan.stages[0].program.graph)))

    assert nodes(2) == nodes(12)


RandomLoop = tuple[Graph, Mesh, dict[str, P], list[str]]


@st.composite
def random_loops(draw: st.DrawFn) -> RandomLoop:
    """A loop with a random body, a mesh, and how inputs lie or are computed with on it."""
    kinds = st.sampled_from(["up", "norm", "tanh", "swap", "softmax"])
    steps = draw(st.lists(kinds, min_size=1, max_size=4))
    mesh = draw(st.sampled_from([Mesh(a=2), Mesh(a=4), Mesh(a=3), Mesh(a=2, b=2)]))

    def body(x: Tensor, square: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        for step in steps:
            if step == "up":
                x = x + ops.einsum("rd,ed->re", x, square)
            elif step == "norm":
                x = ops.layer_norm(x, gain, gain)
            elif step == "swap":
                x = x.T
            else:
                x = getattr(ops, step)(x)
        return x, ops.mean(x, 0)

    builder = Builder()
    x = builder.input(TensorType((6, 6), F64), "x")
    square = builder.input(TensorType((3, 6, 6), F64), "square")
    gain = builder.input(TensorType((3, 6), F64), "gain")
    y, means = ops.repeat(body, x, stacked=(square, gain))
    graph = builder.build({"y": y, "means": means})
    inputs = {value.name: draw(specs(mesh, value.type.rank)) for value in graph.inputs}
    compute = [name for name in ("square", "gain") if draw(st.booleans())]
    return graph, mesh, inputs, compute


def compare(loop: RandomLoop, **engine: Callable[[Mesh], Engine]) -> Ran:
    """Compare a loop and its gradients on a mesh with one simulated device."""
    graph, mesh, inputs, compute = loop
    values, wanted = values_for(graph), ("x", "square", "gain")
    ran = run(graph, mesh, values, inputs, compute=compute, differentiated=wanted, **engine)
    close(ran.outputs, on_one_device(graph, values, wanted))
    return ran


@settings(max_examples=scaled(40))
@given(random_loops())
def test_random_bodies_equal_one_device(loop: RandomLoop) -> None:
    ran = compare(loop)
    assert tuple(ran.executed) == ran.plan.list_issued()


# ------------------------------------------------------------------ text, JSON, mistakes


def test_a_loop_prints_its_body_inside() -> None:
    text = str(stack(True)).splitlines()
    at = next(i for i, line in enumerate(text) if "repeat[3 times, 1 carried]" in line)
    assert text[at + 1] == "    graph("
    assert "      up: float64[16, 8]," in text


def test_loops_survive_json() -> None:
    graph = stack(True)
    joint = differentiate(graph, ["y"], ["up"])
    again = graph_from_json(graph_to_json(joint))
    assert str(again) == str(joint)
    values = values_for(joint)
    close(run(again, Mesh(), values).outputs, run(joint, Mesh(), values).outputs)
    mesh, inputs, options = CASES["both"]
    plan = run(graph, mesh, values_for(graph), inputs, **options).plan
    assert json.loads(plan_to_json(plan_from_json(plan_to_json(plan)))) == json.loads(
        plan_to_json(plan)
    )


def array(*shape: int) -> ml.Array:
    return ml.NumpyBackend().ones(*shape)


MISTAKES = {
    "no count": (lambda: ops.repeat(lambda x: x, array(2)), GraphError, "repeat runs None times"),
    "count 0": (
        lambda: ops.repeat(lambda x: x, array(2), count=0),
        GraphError,
        "repeat runs 0 times; give a positive integer",
    ),
    "other leading size": (
        lambda: ops.repeat(lambda x, y: x, array(2), stacked=(array(3, 2),), count=2),
        ShapeError,
        r"repeat runs 2 times over stacked float32\[3, 2\]; its first dimension must be 2",
    ),
    "no carry": (lambda: ops.repeat(lambda: (), (), count=2), GraphError, "repeat has no carry"),
    "too few results": (
        lambda: ops.repeat(lambda x, y: x, (array(2), array(2)), count=2),
        GraphError,
        "repeat has 2 carries and its function returns 1 values",
    ),
    "carry changes": (
        lambda: ops.repeat(lambda x: x.sum(), array(2), count=2),
        ShapeError,
        r"carries 'carry_0' into an iteration as float32\[2\] and out of it as float32\[\]",
    ),
    "foreign operands": (
        lambda: Repeat(stack(True).nodes[0].op.body, 3, 1, 2).infer([]),  # type: ignore[attr-defined]
        ShapeError,
        r"repeat takes float64\[8, 8\].* it is given nothing",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case: str) -> None:
    make, error, text = MISTAKES[case]
    with pytest.raises(error, match=text):
        make()


# ------------------------------------------------------------------ after


def test_after_is_its_first_operand_whatever_the_layout_of_the_second() -> None:
    check_after()


def check_after(**engine: Callable[[Mesh], Engine]) -> None:
    builder = Builder()
    x = builder.input(TensorType((8, 4), F64), "x")
    other = builder.input(TensorType((6, 8), F64), "other")
    graph = builder.build({"y": ops.after(x, other * 2.0) * 3.0})
    values = values_for(graph)
    ran = run(
        graph,
        Mesh(a=2),
        values,
        {"x": P("a"), "other": P(None, "a")},
        differentiated=("x", "other"),
        **engine,
    )
    assert ran.plan.collectives() == ()
    close(ran.outputs, on_one_device(graph, values, ("x", "other")))
    np.testing.assert_allclose(ran.outputs["y"], values["x"] * 3)
    assert "after" in {node.op.name for node in graph.nodes}
    np.testing.assert_allclose(ran.outputs[gradient_of("other")], 0)
