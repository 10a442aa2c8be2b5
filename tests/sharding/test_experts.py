"""Parameters of experts, and searches in which they are split over axes that are said."""

from __future__ import annotations

import mithril as ml
import pytest
from mithril import P
from mithril.cli.gpt import Sizes, gpt
from mithril.compiler import search as searching
from mithril.ir import Graph
from mithril.mesh import Mesh, Sharding
from mithril.runtime.planned import plan_backend
from mithril.sharding import FREE, Layout, Search, find_experts, say_experts

MESH = Mesh(a=2, b=2)
TOKENS = ml.TensorSpec((8, 4, 16), "float32")


def find(
    monkeypatch: pytest.MonkeyPatch,
    model: ml.Model,
    shapes: dict[str, ml.TensorSpec],
    **options: str,
) -> tuple[Graph, dict[str, int]]:
    """Return the graph that is searched, and its experts."""
    seen: list[tuple[Graph, dict[str, int]]] = []

    def note(graph: Graph, parameters: frozenset[str]) -> dict[str, int]:
        seen.append((graph, find_experts(graph, parameters)))
        return seen[-1][1]

    monkeypatch.setattr(searching, "find_experts", note)
    backend = plan_backend(MESH, "h100-sxm")
    ml.compile(
        model, backend, auto_partition=True, partition_search_space="data", shapes=shapes, **options
    )
    return seen[-1]


def moe() -> ml.Model:
    return ml.MoE(4, 32, top_k=2, name="moe")


def test_experts_are_along_the_first_dimension_of_their_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ml.Model()
    model |= moe()(input="x", output="y")
    expected = {"moe.experts.in.weight": 0, "moe.experts.out.weight": 0}
    for policy in ({}, {"compute": "bfloat16"}):
        _, found = find(monkeypatch, model, {"x": TOKENS}, mixed_precision_policy=policy)
        assert found == expected


def test_layers_that_are_stacked_come_before_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ml.Model()
    model |= ml.Repeat(moe(), 3, name="layers")(input="x", output="y")
    _, found = find(monkeypatch, model, {"x": TOKENS})
    assert found == {"layers.experts.in.weight": 1, "layers.experts.out.weight": 1}


def test_other_products_and_scales_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt(64, Sizes(1, 32, 4, 64, 16, 8))
    _, found = find(monkeypatch, model, {"tokens": ml.TensorSpec((8, 16), "int32")})
    assert found == {}


def test_experts_and_batches_are_split_as_far_as_axes_divide_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = ml.Model()
    model |= moe()(input="x", output="y")
    graph, experts = find(monkeypatch, model, {"x": TOKENS})
    mesh, every = Mesh(a=3, b=2), frozenset({"a", "b"})
    layouts = {value.name: Layout(arrives=FREE) for value in graph.inputs}
    search = Search(
        batches=frozenset({"x"}), batch_axes=frozenset({"b"}), experts=experts, expert_axes=every
    )
    said = say_experts(graph, mesh, layouts, search)
    computed = {name: layout.computed for name, layout in said.items() if layout.computed}
    assert {name: sharding.spec for name, sharding in computed.items()} == {
        "x": P("b", None, None),
        "moe.experts.in.weight": P("b", None, None),  # four experts, not over three
        "moe.experts.out.weight": P("b", None, None),
    }
    fixed = {"moe.experts.in.weight": Layout(arrives=Sharding.replicated(mesh, 3))}
    left = say_experts(graph, mesh, {**layouts, **fixed}, search)
    assert left["moe.experts.in.weight"] == fixed["moe.experts.in.weight"]
    assert say_experts(graph, mesh, layouts, Search(experts=experts)) == layouts
