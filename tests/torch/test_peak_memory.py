"""Sums that are taken out of fusions where a program holds the most memory."""

from __future__ import annotations

from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.ir import Builder, Graph
from mithril.types import DType, TensorType
from mithril_torch.program import module
from mithril_torch.program.fusions import Fusion, form_fusions
from mithril_torch.program.in_place import find_reused
from mithril_torch.program.peak_memory import count_live, split_at_peak

from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of PyTorch's own
SIDE = 256
BYTES = 4 * SIDE * SIDE


def build(function: Any) -> Graph:
    builder = Builder()
    x = builder.input(TensorType((SIDE, SIDE), DType.float32), "x")
    made = function(x)
    return form_fusions(builder.build({str(i): y for i, y in enumerate(made)}))


def slope(x: Any) -> Any:
    """Return what a backward makes of a product: a gradient, and its sum for a bias."""
    product = x @ x
    made = mnp.tanh(mnp.exp(product))
    total = made.sum(axis=0)
    return made @ x, total


def names_of(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_a_sum_leaves_the_fusion_that_is_the_peak() -> None:
    graph = build(slope)
    assert names_of(graph) == ["einsum", "fusion", "einsum"]
    split = split_at_peak(graph)
    assert names_of(split) == ["einsum", "fusion", "sum", "einsum"]
    assert split.nodes[1] in find_reused(split)
    assert graph.outputs.keys() == split.outputs.keys()
    before, after = (count_live(g, find_reused(g))[g.nodes[1]] / BYTES for g in (graph, split))
    assert (before, after) == pytest.approx((2, 1), abs=0.01)


def test_a_fusion_that_is_not_the_peak_keeps_its_sum() -> None:
    def function(x: Any) -> Any:
        first, total = slope(x)
        wide = mnp.concatenate([first] * 8, axis=1)
        return (wide @ wide.T) @ x, total

    graph = build(function)
    assert split_at_peak(graph) is graph


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (mnp.tanh(mnp.exp(x @ x)) @ x, x @ x),  # nothing behind the first result
        lambda x: ((y := mnp.tanh(mnp.exp(x))).sum(axis=0), y @ x),  # an input is not written over
    ],
)
def test_others_stay(function: Any) -> None:
    graph = build(function)
    assert any(isinstance(node.op, Fusion) for node in graph.nodes)
    assert split_at_peak(graph) is graph


def test_what_is_held_while_nodes_run() -> None:
    builder = Builder()
    x = builder.input(TensorType((SIDE, SIDE), DType.float32), "x")
    product = x @ x
    graph = builder.build({"y": (mnp.exp(product).reshape(-1, 2) + 1.0).sum(), "z": product})
    live = [size / BYTES for size in count_live(graph, {}).values()]
    by_name = dict(zip(names_of(graph), live, strict=True))
    assert by_name["einsum"] == pytest.approx(1, abs=0.01)
    assert by_name["exp"] == by_name["reshape"] == pytest.approx(2, abs=0.01)
    assert by_name["add"] == pytest.approx(3, abs=0.01)
    assert by_name["sum"] == pytest.approx(2, abs=0.01)


def test_a_step_with_a_sum_taken_out_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    states, split = [], []

    def tell(graph: Graph) -> Graph:
        made = split_at_peak(graph)
        split.append(made is not graph)
        return made

    monkeypatch.setattr(module, "split_at_peak", tell)
    for backend in (ml.TorchBackend(device="cpu", jit="auto"), ml.NumpyBackend()):
        model = ml.Model()
        model |= ml.Linear(512, name="up")(input="x", output="a")
        model |= ml.Silu()(input="a", output="b")
        model |= ml.Linear(8, name="down")(input="b", output="y")
        model |= ml.Mean(axis=(0, 1))(input="y", output="loss")
        optimizer = ml.optim.sgd(0.1)
        step = ml.train_step(model, backend, optimizer, loss="loss", shapes={"x": (256, 64)})
        state = step.init(seed=0)
        x = np.random.default_rng(0).standard_normal((256, 64), dtype=np.float32)
        for _ in range(2):
            state, _ = step(state, {"x": x})
        states.append(state)
    assert any(split)
    for name, value in states[1].params.items():
        np.testing.assert_allclose(
            states[0].params[name].numpy(), value.numpy(), *TOLERANCE["float32"], err_msg=name
        )
