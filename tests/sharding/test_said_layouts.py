"""Searches in which batches, sequences and experts are split over axes that are said."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import pytest
from mithril import P
from mithril.cli.gpt import Sizes, gpt
from mithril.compiler import search as searching
from mithril.ir import Builder, Graph
from mithril.mesh import Mesh, Sharding
from mithril.runtime.planned import plan_backend
from mithril.sharding import FREE, Layout, Search, find_experts, find_sequences, say_layouts
from mithril.sharding.search import ANNOTATIONS, MIXED
from mithril.types import DType, TensorType

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
        spaces=(ANNOTATIONS,),
        batches=frozenset({"x"}),
        batch_axes=frozenset({"b"}),
        experts=experts,
        expert_axes=every,
    )
    said = say_layouts(graph, mesh, layouts, search)
    computed = {name: layout.computed for name, layout in said.items() if layout.computed}
    assert {name: sharding.spec for name, sharding in computed.items()} == {
        "x": P("b", None, None),
        "moe.experts.in.weight": P("b", None, None),  # four experts, not over three
        "moe.experts.out.weight": P("b", None, None),
    }
    fixed = {"moe.experts.in.weight": Layout(arrives=Sharding.replicated(mesh, 3))}
    left = say_layouts(graph, mesh, {**layouts, **fixed}, search)
    assert left["moe.experts.in.weight"] == fixed["moe.experts.in.weight"]
    assert say_layouts(graph, mesh, layouts, Search(experts=experts)) == layouts
    refusing = replace(search, whole=(("*.out.weight", "b"), ("x", "a")))
    found = say_layouts(graph, mesh, layouts, refusing)
    assert {name for name, one in found.items() if one.computed} == {"x", "moe.experts.in.weight"}
    mixed = replace(search, spaces=(MIXED,))
    assert say_layouts(graph, mesh, layouts, mixed) == layouts


def test_sequences_are_the_second_dimension_of_tokens_and_of_vectors() -> None:
    builder = Builder()
    for name, shape, dtype in (
        ("tokens", (8, 6), DType.int32),
        ("vectors", (8, 6, 16), DType.float32),
        ("features", (8, 16), DType.float32),
        ("images", (8, 3, 6, 6), DType.float32),
        ("labels", (8,), DType.int32),
        ("weight", (8, 6, 16), DType.float32),
    ):
        builder.input(TensorType(shape, dtype), name)
    graph = builder.build({})
    batches = frozenset({"tokens", "vectors", "features", "images", "labels"})
    sequences = find_sequences(graph, batches)
    assert sequences == {"tokens", "vectors"}
    search = Search(
        spaces=(ANNOTATIONS,), batches=batches, parameters=frozenset({"weight"}),
        batch_axes=frozenset({"a"}), sequences=sequences, sequence_axes=frozenset({"b"}),
    )  # fmt: skip
    layouts = {value.name: Layout(arrives=FREE) for value in graph.inputs}
    said = say_layouts(graph, Mesh(a=2, b=2), layouts, search)
    assert {n: one.computed.spec for n, one in said.items() if one.computed} == {
        "tokens": P("a", "b"),
        "vectors": P("a", "b", None),
        "features": P("a", None),
        "images": P("a", None, None, None),
        "labels": P("a"),
    }
