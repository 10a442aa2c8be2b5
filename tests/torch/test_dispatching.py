"""Rows that are dispatched in the order in which experts multiply them, and results that are turned."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
import torch
from mithril.ir import Builder, Graph
from mithril.ops.moe import moe_dispatch
from mithril.types import DType, TensorType
from mithril_torch.program.dispatching import DispatchByExpert, dispatch_by_expert
from mithril_torch.program.fusion_text import write_fusion
from mithril_torch.program.fusions import Fusion, form_fusions
from mithril_torch.program.runtime_library import moe

from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of PyTorch's own
GROUPS, ROWS, EXPERTS, CAPACITY, FEATURES = 2, 6, 3, 4, 8


def build(function: Any) -> Graph:
    builder = Builder()
    x = builder.input(TensorType((GROUPS, ROWS, FEATURES), DType.float32), "x")
    slots = EXPERTS * CAPACITY
    ids = builder.input(TensorType((GROUPS, slots), DType.int32), "ids")
    back = builder.input(TensorType((GROUPS, ROWS), DType.int32), "back")
    return builder.build({"y": function(moe_dispatch(x, ids, back))})


def for_experts(rows: Any) -> Any:
    return mnp.transpose(rows.reshape(GROUPS, EXPERTS, CAPACITY, FEATURES), (1, 0, 2, 3))


def names_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_ids_are_turned_instead_of_rows() -> None:
    graph = dispatch_by_expert(build(for_experts))
    (node,) = graph.nodes
    assert node.op == DispatchByExpert(EXPERTS)
    assert [x.name for x in node.inputs] == ["x", "ids"]
    assert node.op.infer([x.type for x in node.inputs]) == [node.outputs[0].type]


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: (for_experts(rows), rows)[0] + rows.sum(),  # others read the rows, too
        lambda rows: mnp.transpose(rows.reshape(GROUPS, EXPERTS, CAPACITY, FEATURES), (1, 0, 3, 2)),
        lambda rows: mnp.transpose(rows.reshape(GROUPS, 2 * EXPERTS, 2, FEATURES), (0, 2, 1, 3)),
        lambda rows: mnp.transpose(rows.reshape(3, GROUPS, -1, FEATURES), (1, 0, 2, 3)),
    ],
)
def test_other_orders_stay(function: Any) -> None:
    graph = build(function)
    assert names_of(dispatch_by_expert(graph)) == names_of(graph)


@pytest.mark.parametrize("least", [-1, 0])
def test_rows_by_expert_are_the_same_rows(least: int) -> None:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((GROUPS, ROWS, FEATURES), dtype=np.float32))
    ids = torch.from_numpy(rng.integers(least, ROWS, (GROUPS, EXPERTS * CAPACITY)))
    expected = moe.moe_dispatch(x, ids).view(GROUPS, EXPERTS, CAPACITY, FEATURES).transpose(0, 1)
    found = moe.moe_dispatch_by_expert(x, ids, EXPERTS)
    assert found.is_contiguous()
    assert torch.equal(found, expected)
    assert (ids.min() < 0) == bool((found == 0).all(-1).any())


# ------------------------------------------------------------------ results that are turned


def fuse(function: Any, shape: tuple[int, ...] = (8, 16, 32)) -> Graph:
    builder = Builder()
    x = builder.input(TensorType(shape, DType.float32), "x")
    return form_fusions(builder.build({"y": function(x)}))


def test_a_result_is_written_as_its_readers_want_it() -> None:
    def function(x: Any) -> Any:
        made = mnp.transpose(mnp.tanh(mnp.exp(x)).reshape(8, 4, 4, 32), (1, 0, 2, 3))
        return mnp.einsum("abcd,abed->abce", made, made)

    graph = fuse(function)
    assert names_of(graph) == ["fusion", "einsum"]
    fusion = graph.nodes[0].op
    assert isinstance(fusion, Fusion)
    assert fusion.writable == ()
    assert write_fusion("f", fusion)[-2].endswith(".contiguous(), )")


@pytest.mark.parametrize(
    "function",
    [
        lambda x: mnp.transpose(mnp.tanh(mnp.exp(x)), (0, 2, 1)),  # not by rows
        lambda x: (y := mnp.tanh(mnp.exp(x))) @ mnp.transpose(y, (0, 2, 1)),
        lambda x: mnp.tanh(mnp.exp(x)).reshape(8, 512),
    ],
)
def test_other_views_stay_outside(function: Any) -> None:
    graph = fuse(function)
    (fusion,) = (node.op for node in graph.nodes if isinstance(node.op, Fusion))
    assert not fusion.turned
    assert {"transpose", "reshape"}.intersection(names_of(graph))


@pytest.mark.parametrize("jit", [False, "auto"])
@pytest.mark.parametrize(("capacity", "accumulate"), [(0.5, 1), (2.0, 1), (2.0, 2)])
def test_a_step_with_experts_is_that_of_numpy(jit: Any, capacity: float, accumulate: int) -> None:
    states = []
    for backend in (ml.TorchBackend(device="cpu", jit=jit), ml.NumpyBackend()):
        model = ml.Model()
        model |= ml.MoE(4, 32, top_k=2, capacity_factor=capacity, name="moe")(input="x", output="y")
        model |= ml.Mean(axis=(0, 1, 2))(input="y", output="loss")
        step = ml.train_step(
            model, backend, ml.optim.sgd(0.5), loss="loss", shapes={"x": (4, 64, 64)},
            accumulate=accumulate,
        )  # fmt: skip
        state = step.init(seed=0)
        x = np.random.default_rng(0).standard_normal((4, 64, 64), dtype=np.float32)
        for _ in range(2):
            state, _ = step(state, {"x": x})
        states.append(state)
    for name, value in states[1].params.items():
        np.testing.assert_allclose(
            states[0].params[name].numpy(), value.numpy(), *TOLERANCE["float32"], err_msg=name
        )


@pytest.mark.parametrize("bound", [0.0, 30.0])
def test_logits_may_be_turned_before_their_loss(bound: float) -> None:
    """What turns them, or their gradient, is beside the loss, and not in a fusion."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, dtype=np.float32) for s in ((16, 8, 32), (32, 64)))
    target = rng.integers(0, 64, (8, 16)).astype(np.int32)
    found = []
    for backend in (ml.TorchBackend(device="cpu", jit="auto"), ml.NumpyBackend()):

        def loss(x: Any, w: Any, target: Any) -> Any:
            logits = x @ w
            logits = mnp.tanh(logits / bound) * bound if bound else logits
            return mnp.cross_entropy(mnp.transpose(logits, (1, 0, 2)), target).mean()

        function = ml.jit(ml.value_and_grad(loss, (0, 1)), backend=backend)
        value, slopes = function(*map(backend.array, (x, w, target)))
        found.append([value.numpy(), *(slope.numpy() for slope in slopes)])
    for mine, other in zip(*found, strict=True):
        np.testing.assert_allclose(mine, other, *TOLERANCE["float32"])
