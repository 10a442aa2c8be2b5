"""Collectives in flat buffers: fewer of them, of the same bytes, with the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.cost import SIMULATED, Hardware, find_bucket_bytes
from mithril.ir import Builder, Cause, Graph, Node, Phase, Repeat, Tensor
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllGather, AllReduce, Collective, ReduceScatter
from mithril.partition.bucket_limits import count_moved
from mithril.partition.buckets import bucket_collectives
from mithril.plan import Plan, Port, Program
from mithril.plan.proof import prove_order
from mithril.types import DType, TensorType

from tests.graphs import Ran, members, on_one_device, run, values_for
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

NEVER = replace(SIMULATED, memory_bandwidth=1.0)
"""Copying takes so long that nothing is put into a buffer, but what is reduced in place."""
BATCH = 8
MESHES = [Mesh(data=2), Mesh(data=4), Mesh(data=3), Mesh(data=2, tensor=2)]
DTYPES = [DType.float32, DType.float64]
Case = tuple[Graph, Mesh, dict[str, P]]


# ------------------------------------------------------------------ numbers


def layers(shapes: Sequence[tuple[tuple[int, ...], DType]]) -> Graph:
    """Return a graph in which a batch meets parameters of some shapes, one after another."""
    builder = Builder()
    x = builder.input(TensorType((BATCH, 4), DType.float64), "x")
    for number, (shape, dtype) in enumerate(shapes):
        with builder.at(scope=f"layer_{number}"):
            w = builder.input(TensorType(shape, dtype), f"w{number}")
            flat = w.astype(DType.float64).reshape(-1)
            x = x + ops.tanh(x * ops.mean(flat * flat)) + ops.sum(ops.tanh(w)).astype(x.dtype)
    return builder.build({"y": x})


@st.composite
def cases(draw: st.DrawFn) -> Case:
    shape = st.lists(st.sampled_from([1, 2, 4, 5, 8]), min_size=1, max_size=3).map(tuple)
    shapes = draw(st.lists(st.tuples(shape, st.sampled_from(DTYPES)), min_size=2, max_size=6))
    mesh, rests = draw(st.sampled_from(MESHES)), {}
    for number, (dims, _) in enumerate(shapes):
        dimension = draw(st.integers(0, len(dims) - 1))
        axes = draw(st.sampled_from([mesh.names[:1], mesh.names]))
        rests[f"w{number}"] = P(*[None] * dimension, axes)
    return layers(shapes), mesh, rests


def planned(case: Case, hardware: Hardware) -> Ran:
    graph, mesh, rests = case
    return run(
        graph, mesh, values_for(graph), {"x": P("data")},
        at_rest=rests, differentiated=tuple(rests), hardware=hardware,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(cases())
def test_parameters_at_rest_travel_together_and_numbers_stay(case: Case) -> None:
    fused, apart = planned(case, SIMULATED), planned(case, NEVER)
    for name, value in apart.outputs.items():
        np.testing.assert_array_equal(fused.outputs[name], value, name)
    alone = on_one_device(case[0], values_for(case[0]), tuple(case[2]))
    for name, value in alone.items():
        tolerance = TOLERANCE[str(fused.outputs[name].dtype)]
        np.testing.assert_allclose(fused.outputs[name], value, *tolerance, name)
    assert tuple(fused.executed) == fused.plan.list_issued()
    assert fused.plan.bytes_by_axis() == apart.plan.bytes_by_axis()
    for phase in ("forward", "backward"):
        assert sorted(members(fused.plan, phase)) == sorted(members(apart.plan, phase))
    counts = [len(ran.plan.collectives()) for ran in (fused, apart)]
    assert counts[0] < counts[1] if list_alike(apart.plan) else counts[0] <= counts[1]


def list_alike(plan: Plan) -> list[object]:
    """Return ops, with dtypes, of gathers of which the forward has several that fit a buffer."""
    sizes: dict[tuple[Collective, DType], list[int]] = {}
    for node in plan.stages[0].program.graph.nodes:
        if isinstance(node.op, AllGather) and node.phase == Phase.forward:
            assert len(node.inputs) == 1, "none is put into a buffer where copying takes so long"
            key = node.op, node.inputs[0].type.dtype
            sizes.setdefault(key, []).append(node.op.count_bytes([node.inputs[0].type]))

    def fit(op: Collective, found: list[int]) -> bool:
        limit = find_bucket_bytes(op.name, op.axes, plan.mesh, SIMULATED)
        return len(found) > 1 and sum(found) <= limit

    return [key for key, found in sizes.items() if fit(key[0], found)]


# ------------------------------------------------------------------ what is put together


class Local:
    """A local program, written by hand, on two devices."""

    def __init__(self) -> None:
        self.builder, self.outputs = Builder(), {}

    def input(self, name: str, *shape: int) -> Tensor:
        return self.builder.input(TensorType(shape, DType.float32), name)

    def issue(self, op: Collective, x: Tensor, name: str, phase: Phase = Phase.backward) -> Tensor:
        cause = Cause(name, "there", "here", "who asks")
        with self.builder.at(scope=name, phase=phase, cause=cause):
            return self.builder.apply(op, x)[0]

    def bucketed(self, hardware: Hardware = SIMULATED, **outputs: Tensor) -> tuple[Node, ...]:
        graph, mesh = verify(self.builder.build(outputs)), Mesh(data=2)

        def port(name: str, type: TensorType) -> Port:
            return Port(name, type, Sharding.replicated(mesh, type.rank))

        entering = tuple(port(x.name, x.type) for x in graph.inputs)
        leaving = tuple(port(name, x.type) for name, x in graph.outputs.items())
        program = bucket_collectives(Program(mesh, graph, entering, leaving), hardware)
        verify(program.graph)
        prove_order(Plan.of_program(mesh, program))
        return program.graph.nodes


GATHER, SCATTER = AllGather(("data",), 0, 2), ReduceScatter(("data",), "sum", 0, 2)
SUM = AllReduce(("data",), "sum")


def issued(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """Return what the collectives move, in order."""
    causes = [node.cause for node in nodes if node.op.is_collective and node.cause]
    return [cause.parts or (cause.value,) for cause in causes]


def test_gathers_are_issued_with_the_first_of_them() -> None:
    local = Local()
    a, b, x = local.input("a", 4), local.input("b", 4), local.input("x", 8)
    first = ops.tanh(x * local.issue(GATHER, a, "a"))
    nodes = local.bucketed(y=first * local.issue(GATHER, b, "b"))
    assert issued(nodes) == [("a", "b")]
    assert nodes[0].op == GATHER
    assert [len(nodes[0].inputs), nodes[0].cause.value] == [2, "2 values"]


def test_a_cast_of_what_rests_comes_before_the_buffer() -> None:
    local = Local()
    a, b, x = local.input("a", 4), local.input("b", 4), local.input("x", 8)
    narrow = [ops.cast(a, DType.bfloat16)]
    first = x * ops.cast(local.issue(GATHER, narrow[0], "a"), DType.float32)
    narrow.append(ops.cast(b, DType.bfloat16))
    nodes = local.bucketed(y=first * ops.cast(local.issue(GATHER, narrow[1], "b"), DType.float32))
    assert [node.op.name for node in nodes[:3]] == ["cast", "cast", "all_gather"]
    assert issued(nodes) == [("a", "b")]


def test_what_is_computed_later_is_not_waited_for() -> None:
    """An activation is no parameter: it is there when it is there."""
    local = Local()
    a, x = local.input("a", 4), local.input("x", 4)
    first = local.issue(GATHER, a, "a")
    made = ops.concatenate([x, x], 0) * first
    second = local.issue(GATHER, made, "made")
    assert issued(local.bucketed(y=first, z=second)) == [("a",), ("made",)]


def test_gradients_are_scattered_with_the_last_of_them() -> None:
    local = Local()
    x = local.input("x", 8)
    first = local.issue(SCATTER, x + x, "a")
    second = local.issue(SCATTER, x * x, "b")
    nodes = local.bucketed(a=first * 2.0, b=second)
    assert issued(nodes) == [("a", "b")]
    assert [node.op.name for node in nodes][-1] == "multiply", "what waits for it comes last"


def test_what_a_collective_waits_for_comes_before_it() -> None:
    """The norm of all gradients, as clipping needs it, is a sum over what was scattered."""
    local = Local()
    x = local.input("x", 8)
    parts = [local.issue(SCATTER, f(x), name) for name, f in [("a", ops.tanh), ("b", ops.exp)]]
    squares = parts[0] * parts[0] + parts[1] * parts[1]
    norm = local.issue(SUM, squares, "norm", Phase.update)
    nodes = local.bucketed(a=parts[0] * norm, b=parts[1] * norm)
    assert issued(nodes) == [("a", "b"), ("norm",)]


def test_what_is_waited_for_sooner_is_not_held_back() -> None:
    local = Local()
    x, y = local.input("x", 8), local.input("y", 8)
    first = local.issue(SUM, x, "activation")
    second = local.issue(SUM, ops.tanh(first), "next activation")
    third = local.issue(SUM, y, "gradient")
    fourth = local.issue(SUM, y * y, "another")
    nodes = local.bucketed(y=second, z=third, w=fourth)
    assert issued(nodes) == [("activation",), ("next activation", "gradient", "another")]


def test_what_stands_behind_a_later_phase_is_waited_for() -> None:
    """At the end of a pipeline's run the loss, of the forward, is summed behind a gradient."""
    local = Local()
    a, b = local.input("a", 4), local.input("b", 4)
    gradient = local.issue(SUM, ops.tanh(a), "gradient")
    loss = local.issue(SUM, ops.exp(b), "loss", Phase.forward)
    nodes = local.bucketed(gradient=gradient * 2.0, loss=loss)
    assert issued(nodes) == [("gradient", "loss")]
    (bucket,) = (node for node in nodes if node.op.is_collective)
    assert bucket.phase == Phase.backward


def test_updated_parameters_are_gathered_together() -> None:
    local = Local()
    a, b = local.input("a", 4), local.input("b", 4)
    made = [
        local.issue(GATHER, ops.tanh(x) - x * x, name, Phase.update)
        for name, x in [("a", a), ("b", b)]
    ]
    assert issued(local.bucketed(a=made[0], b=made[1])) == [("a", "b")]


@pytest.mark.parametrize(
    ("sizes", "hardware", "wanted"),
    [
        ((100, 100), SIMULATED, [("0", "1")]),
        ((100, 500, 100), SIMULATED, [("0", "2"), ("1",)]),  # 4000 bytes take forty start-ups
        ((150, 150, 150), SIMULATED, [("0", "1"), ("2",)]),
        ((100, 100), NEVER, [("0",), ("1",)]),
    ],
)
def test_a_buffer_is_for_what_start_up_is_much_of(
    sizes: tuple[int, ...], hardware: Hardware, wanted: list[tuple[str, ...]]
) -> None:
    local = Local()
    given = [local.input(str(n), size // 2) for n, size in enumerate(sizes)]
    made = {str(n): local.issue(GATHER, x, str(n)) for n, x in enumerate(given)}
    found = issued(local.bucketed(hardware, **{f"y{n}": x for n, x in made.items()}))
    assert sorted(found) == sorted(wanted)


LATE = replace(SIMULATED, levels=[replace(x, latency=1e-2) for x in SIMULATED.levels])
"""A collective takes so long to start that all of a small model would fit one buffer."""
PART = 1 << 16
"""Elements of float32 in half of half a MiB."""


@pytest.mark.parametrize(("count", "wanted"), [(2, [2]), (4, [2, 2]), (16, [4] * 4)])
def test_a_bucket_is_a_fourth_of_what_rests_or_little(count: int, wanted: list[int]) -> None:
    """Of tensors of half a MiB."""
    assert find_bucket_bytes("all_gather", ["data"], Mesh(data=2), LATE) > 1 << 23
    local = Local()
    given = [local.input(f"p{n}", PART) for n in range(count)]
    whole = {f"y{n}": local.issue(GATHER, x, str(n)) for n, x in enumerate(given)}
    assert [len(parts) for parts in issued(local.bucketed(LATE, **whole))] == wanted
    local = Local()
    given = [local.input(f"p{n}", 2 * PART) for n in range(count)]
    parts = {f"y{n}": local.issue(SCATTER, x + x, str(n)) for n, x in enumerate(given)}
    assert [len(parts) for parts in issued(local.bucketed(LATE, **parts))] == wanted


def test_iterations_of_a_loop_count_in_what_is_moved() -> None:
    body, one = Builder(), TensorType((4,), DType.float32)
    x, w = body.input(one.with_shape((8,)), "x"), body.input(one, "w")
    with body.at(phase=Phase.forward):
        inside = body.build({"x": x * body.apply(GATHER, w)[0]})
    outer = Builder()
    start, stack = outer.input(x.type, "x"), outer.input(one.with_shape((5, 4)), "w")
    (made,) = outer.apply(Repeat(inside, 5, 1, 1), start, stack)
    again = outer.apply(GATHER, ops.sum(stack, 0))[0]
    assert count_moved(outer.build({"y": made + again})) == {"all_gather": 6 * 32}


# ------------------------------------------------------------------ plans of models


BY_LAYER = P("data")


def repeated(count: int, spec: P = BY_LAYER, **options: object) -> Plan:
    """Return the plan of a loop whose parameters rest split over four devices."""
    block = ml.Model()
    block |= ml.Linear(64, name="up")(input="input", output="h")
    block += ml.Gelu()(input="h", output="g")
    block += ml.Linear(16, name="down")(input="g", output="output")
    model = ml.Model()
    model |= ml.Repeat(block, count, name="blocks")(input="x", output="y")
    model.at_rest({"*": spec})
    shapes = {"x": ml.TensorSpec((4, 16), "float32", P("data"))}
    return ml.compile(model, ml.NumpyBackend(Mesh(data=4)), shapes=shapes, **options).plan


def test_stacks_at_rest_are_gathered_layer_by_layer() -> None:
    """Never more than a layer is whole: what a plan takes grows by the parts of a device alone."""
    few, many = (repeated(count).memory().peak for count in (4, 12))
    layer = 4 * (64 * 16 + 64 + 16 * 64 + 16)  # float32
    kept = 4 * 1 * (16 + 64 + 64)  # of activations, for the backward: of one sample, a layer
    parts = layer // 4
    # Parameters, gradients, and both again, as parts of each layer in place of whole layers.
    assert many - few <= 8 * (4 * parts + kept)
    assert repeated(12, P(None, "data")).memory().peak < repeated(12).memory().peak < 12 * layer * 2


def test_what_rests_has_no_limit_of_moves() -> None:
    """Nor has its gradient, which is brought back to where it rests."""
    limited = repeated(4, max_reshard_bytes=0)
    assert limited.list_issued() == repeated(4).list_issued()
    moved = [row.cause.value for row in limited.collectives() if row.kind == "all_to_all"]
    assert "gradients.blocks.up.weight" in moved


def test_a_note_says_how_stacks_rest_better() -> None:
    (note,) = (note for note in repeated(4).notes if "by repetition" in note)
    names = ("blocks.up.weight", "blocks.up.bias", "blocks.down.weight", "blocks.down.bias")
    assert all(name in note for name in names)
    assert "at_rest P(None, 'data') would save an all_to_all" in note
    assert not any("repetition" in note for note in repeated(4, P(None, "data")).notes)


def test_a_bucket_names_what_it_carries() -> None:
    plan = repeated(4)
    (row,) = (row for row in plan.collectives() if row.kind == "all_gather" and row.cause.parts)
    assert (row.cause.value, row.cause.consumer, row.times) == ("2 values", "value bucket", 4)
    assert row.cause.parts == ("blocks.up.bias", "blocks.down.bias")


def test_each_move_of_a_bucket_has_the_limit_of_moves() -> None:
    """A buffer is no hidden move: each value in it is one."""
    model = ml.Model()
    for name in ("a", "b"):
        model |= ml.Relu()(input=name, output=f"{name}_out")
    split, whole = P("data"), P()
    options = {
        "shapes": {name: ml.TensorSpec((8, 4), "float32", split) for name in ("a", "b")},
        "out_shardings": {"a_out": whole, "b_out": whole},
        "inference": True,
    }
    backend = ml.NumpyBackend(Mesh(data=2))
    rows = ml.compile(model, backend, max_reshard_bytes=128, **options).plan.collectives()
    assert [row.bytes for row in rows] in ([128, 128], [256])
    with pytest.raises(ml.PlanError, match=r"by all_gather over data, .*; 128 bytes, more than"):
        ml.compile(model, backend, max_reshard_bytes=127, **options).plan.collectives()
