"""Graphs, programs and plans print like programs."""

from __future__ import annotations

from collections.abc import Callable

from mithril import ops
from mithril.ir import Builder, Graph, Phase, Source
from mithril.ir.printer import print_graph
from mithril.mesh import Mesh, P
from mithril.plan.printer import print_program
from mithril.transform import differentiate
from mithril.types import DType, TensorType

from tests.graphs import MEGATRON_MLP, MLP_PARAMETERS, mlp, run, values_for

F32 = DType.float32


def linear() -> Graph:
    """One layer whose nodes know where they come from."""
    builder = Builder()
    x = builder.input(TensorType((2, 3), F32), "x")
    weight = builder.input(TensorType((4, 3), F32), "weight")
    with builder.at(scope="head", source=Source("/home/me/model.py", 7)):
        y = ops.einsum("bi,oi->bo", x, weight)
    return builder.build({"y": builder.assign_name(ops.relu(y), "hidden"), "sum": ops.sum(y, 1)})


def test_a_graph_prints_like_a_program() -> None:
    assert str(linear()) == print_graph(linear())
    assert str(linear()) == (
        "graph(\n"
        "  x: float32[2, 3],\n"
        "  weight: float32[4, 3],\n"
        ")\n"
        "  %2: float32[2, 4] = einsum[equation='bi,oi->bo'](x, weight)  # head model.py:7\n"
        "  hidden: float32[2, 4] = relu(%2)\n"
        "  %4: float32[2] = sum[axes=(1,), keepdims=False](%2)\n"
        "  return y=hidden, sum=%4"
    )


def test_the_backward_part_is_announced_once() -> None:
    lines = str(differentiate(linear(), ["y"], ["weight"])).splitlines()
    assert lines.count("  # backward") == 1
    assert "  # forward" not in lines
    assert lines[-1].startswith("  return y=hidden, sum=%")
    assert "gradients.weight=gradients.weight" in lines[-1]


def test_a_phase_is_announced_whenever_it_changes() -> None:
    builder = Builder()
    x = builder.input(TensorType((2,), F32), "x")
    with builder.at(phase=Phase.backward):
        y = ops.exp(x)
    graph = builder.build({"z": ops.exp(y)})
    assert [line for line in str(graph).splitlines() if line.startswith("  # ")] == [
        "  # backward",
        "  # forward",
    ]


def test_values_of_one_name_are_told_apart() -> None:
    builder = Builder()
    x = builder.input(TensorType((2,), F32), "x")
    y = builder.assign_name(ops.exp(x), "h")
    z = builder.assign_name(ops.exp(y), "h")
    printed = str(builder.build({"z": z}))
    assert "  h: float32[2] = exp(x)\n  %2: float32[2] = exp(h)\n  return z=%2" in printed


def test_a_node_with_several_results_prints_them_all() -> None:
    builder = Builder()
    x = builder.input(TensorType((2, 3), F32), "x")
    gain = builder.input(TensorType((3,), F32), "gain")
    printed = str(builder.build({"y": ops.layer_norm(x, gain, gain)}))
    assert (
        "  %2: float32[2, 3], %3: float32[2], %4: float32[2] = "
        "layer_norm[epsilon=1e-05](x, gain, gain)" in printed
    )


def test_the_empty_graph_prints() -> None:
    assert str(Graph((), (), {})) == "graph(\n)\n  return "


def test_a_program_prints_ports_shards_and_collectives(golden: Callable[[str, str], None]) -> None:
    plan = run(mlp(), Mesh(tensor=2), values_for(mlp()), MEGATRON_MLP, compute=[*MEGATRON_MLP]).plan
    program = plan.stages[0].program
    printed = print_program(program)
    golden("mlp_program.txt", printed)
    assert printed.startswith("program on Mesh(tensor=2)\ngraph(\n")
    for port in program.inputs:
        assert f"  {port.name}: {port.type} {port.sharding.describe()},\n" in printed


def test_a_plan_prints_where_everything_is_and_why_it_moves(
    golden: Callable[[str, str], None],
) -> None:
    graph = mlp()
    inputs = {**MEGATRON_MLP, "x": P("data")}
    plan = run(
        graph, Mesh(data=2, tensor=2), values_for(graph), inputs,
        compute=[*MEGATRON_MLP], differentiated=MLP_PARAMETERS,
    ).plan  # fmt: skip
    golden("mlp_2d_plan.txt", str(plan))
    for row in plan.collectives():
        assert f"  {row.kind} over {' x '.join(row.axes)}: {row.cause.value}" in str(plan)
    for axes, moved in plan.bytes_by_axis().items():
        assert f"{axes}: {moved}" in str(plan).splitlines()[-1]


def test_a_plan_that_moves_nothing_says_so() -> None:
    lines = str(run(mlp(), Mesh(data=2), values_for(mlp()), {"x": P("data")}).plan).splitlines()
    assert lines[0] == "plan on Mesh(data=2), 2 devices"
    assert lines[-3:] == [
        "forward collectives: none",
        "backward collectives: none",
        "bytes per device by mesh axis: none",
    ]
