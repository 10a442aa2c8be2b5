"""The golden rows of the partitioner: which collectives a plan has, over what, with how many bytes.

Every case also runs: outputs and gradients equal one device, and the collectives carried out are the
plan's list.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.ir import Builder, Graph
from mithril.mesh import Mesh, P
from mithril.types import DType, TensorType

from tests.graphs import (
    BLOCK_PARAMETERS,
    MEGATRON_BLOCK,
    MEGATRON_MLP,
    MLP_PARAMETERS,
    Ran,
    Specs,
    block,
    block_shapes,
    mlp,
    on_one_device,
    run,
    values_for,
)
from tests.tolerances import TOLERANCE

B, S, D, H = 4, 4, 32, 64
ACTIVATION = 4 * B * S * D
"""Bytes of b·s·d float32 numbers in the MLP."""
BLOCK_ACTIVATION = 4 * 2 * 8 * 32
"""The same in the block."""
NORMS = {"layer_norm", "layer_norm_gradient"}
FUSED = {*NORMS, "gelu", "gelu_gradient", "attention", "attention_gradient", "softmax"}


def checked(
    graph: Graph, mesh: Mesh, inputs: Specs, differentiated: tuple[str, ...], **more: object
) -> Ran:
    """Run a case and hold it against one device and against its own plan."""
    values = values_for(graph)
    ran = run(graph, mesh, values, inputs, differentiated=differentiated, **more)
    expected = on_one_device(graph, values, differentiated)
    assert set(ran.outputs) == set(expected)
    rtol, atol = TOLERANCE["float32"]
    for name, value in expected.items():
        np.testing.assert_allclose(ran.outputs[name], value, rtol=rtol, atol=atol, err_msg=name)
    assert ran.executed == [(r.kind, r.axes, r.bytes) for r in ran.plan.collectives()]
    return ran


def all_reduce(axis: str, moved: int) -> tuple[str, tuple[str, ...], int]:
    return ("all_reduce", (axis,), moved)


def test_data_parallel_mlp_reduces_all_gradients_in_one_bucket() -> None:
    ran = checked(mlp(), Mesh(data=4), {"x": P("data")}, MLP_PARAMETERS)
    assert ran.rows("forward") == []
    assert ran.rows("backward") == [all_reduce("data", 4 * (2 * D * H + D + H))]


def test_data_parallel_scalar_loss_travels_with_the_gradient() -> None:
    builder = Builder()
    x = builder.input(TensorType((B * S, D), DType.float32), "x")
    weight = builder.input(TensorType((D, D), DType.float32), "weight")
    graph = builder.build({"loss": ops.mean(x @ weight)})
    ran = checked(graph, Mesh(data=4), {"x": P("data")}, ("weight",))
    assert ran.rows("forward") == []
    assert ran.rows("backward") == [all_reduce("data", 4 + 4 * D * D)]


def test_megatron_mlp_without_input_gradient() -> None:
    ran = checked(mlp(), Mesh(tensor=4), MEGATRON_MLP, MLP_PARAMETERS, compute=[*MEGATRON_MLP])
    assert ran.rows("forward") == [all_reduce("tensor", ACTIVATION)]
    assert ran.rows("backward") == []


def test_megatron_mlp_with_input_gradient() -> None:
    wanted = (*MLP_PARAMETERS, "x")
    ran = checked(mlp(), Mesh(tensor=4), MEGATRON_MLP, wanted, compute=[*MEGATRON_MLP])
    assert ran.rows("forward") == [all_reduce("tensor", ACTIVATION)]
    assert ran.rows("backward") == [all_reduce("tensor", ACTIVATION)]


@pytest.mark.parametrize("expanded", [set(), NORMS, FUSED], ids=["fused", "norms", "all"])
def test_megatron_block_has_two_all_reduces_each_way(expanded: set[str]) -> None:
    wanted = (*BLOCK_PARAMETERS, "x")
    kernels = frozenset(KERNELS) - expanded
    ran = checked(
        block(), Mesh(tensor=4), MEGATRON_BLOCK, wanted, compute=[*MEGATRON_BLOCK], kernels=kernels
    )
    assert ran.rows("forward") == [all_reduce("tensor", BLOCK_ACTIVATION)] * 2
    assert ran.rows("backward") == [all_reduce("tensor", BLOCK_ACTIVATION)] * 2


@pytest.mark.parametrize("expanded", [set(), NORMS], ids=["fused", "norms"])
def test_block_without_input_gradient_reduces_the_gains_of_its_first_norm_instead(
    expanded: set[str],
) -> None:
    """Fewer bytes than the row asks for: only two gradients of d numbers wait for that sum."""
    ran = checked(
        block(),
        Mesh(tensor=4),
        MEGATRON_BLOCK,
        BLOCK_PARAMETERS,
        compute=[*MEGATRON_BLOCK],
        kernels=frozenset(KERNELS) - expanded,
    )
    assert ran.rows("forward") == [all_reduce("tensor", BLOCK_ACTIVATION)] * 2
    gains = 2 * 4 * 32
    assert ran.rows("backward") == [
        all_reduce("tensor", BLOCK_ACTIVATION),
        all_reduce("tensor", gains),
    ]


def test_block_on_two_dimensions_adds_one_bucket_of_local_bytes(
    golden: Callable[[str, str], None],
) -> None:
    inputs = {**MEGATRON_BLOCK, "x": P("data")}
    wanted = (*BLOCK_PARAMETERS, "x")
    ran = checked(block(), Mesh(data=2, tensor=2), inputs, wanted, compute=[*MEGATRON_BLOCK])
    half = BLOCK_ACTIVATION // 2
    local = 0
    for name, shape in block_shapes().items():
        split = any(MEGATRON_BLOCK.get(name, P()).axes(d) for d in range(len(shape)))
        local += 4 * int(np.prod(shape)) // (2 if split else 1)
    assert ran.rows("forward") == [all_reduce("tensor", half)] * 2
    assert ran.rows("backward") == [all_reduce("tensor", half)] * 2 + [all_reduce("data", local)]
    golden("block_2d_plan.txt", str(ran.plan))


def test_splitting_and_merging_heads_moves_nothing() -> None:
    builder = Builder()
    x = builder.input(TensorType((2, 8, 32), DType.float32), "x")
    heads = x.reshape(2, 8, 4, 8).transpose(0, 2, 1, 3)
    merged = (heads * 2.0).transpose(0, 2, 1, 3).reshape(2, 8, 32)
    graph = builder.build({"y": merged})
    ran = checked(graph, Mesh(tensor=4), {"x": P(None, None, "tensor")}, ("x",))
    assert ran.plan.collectives() == ()
    assert ran.plan.stages[0].program.outputs[0].sharding.spec == P(None, None, "tensor")


def test_replicated_output_is_gathered_and_its_gradient_sliced() -> None:
    ran = checked(mlp(), Mesh(data=4), {"x": P("data")}, MLP_PARAMETERS, outputs={"y": P()})
    assert ran.rows("forward") == [("all_gather", ("data",), ACTIVATION)]
    assert ran.rows("backward") == [all_reduce("data", 4 * (2 * D * H + D + H))]


def test_minor_dimension_split_before_a_merge_costs_one_all_to_all() -> None:
    builder = Builder()
    x = builder.input(TensorType((8, 16, 64), DType.float32), "x")
    graph = builder.build({"y": x.reshape(128, 64) * 2.0})
    values = values_for(graph)
    ran = run(graph, Mesh(data=4), values, {"x": P(None, "data")})
    assert ran.rows("forward") == [("all_to_all", ("data",), 4 * 8 * 16 * 64 // 4)]
    np.testing.assert_array_equal(ran.outputs["y"], values["x"].reshape(128, 64) * 2)
