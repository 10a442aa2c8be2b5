"""A search is never above what people write by hand, and prices that by the same measure."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.compiler import faster_plan
from mithril.compiler import search as searching
from mithril.errors import MithrilError
from mithril.ops.alternatives import ALTERNATIVES, WAYS, find_alternative
from mithril.ops.attention import Attention, AttentionGradient
from mithril.ops.functions import Relu
from mithril.plan import Plan
from mithril.sharding import Search
from mithril.types import DType, TensorType

from benchmarks import recipes
from benchmarks.recipe_models import MODELS, make_case
from benchmarks.recipe_strategies import RECIPES, Inapplicable
from benchmarks.recipes import HARDWARE
from tests.tolerances import TOLERANCE

ANNOTATIONS = {"auto_partition": True, "partition_search_space": "annotations"}
SMALL = 8
"""Sizes are divided by it."""
QUICK = [("moe_small", "data=8", "cpu")]
SLOW = [("gpt_small", "data=8", "h100-sxm"), ("moe_small", "a=4, b=4", "h100-sxm")]
SLOW += [
    (model, mesh, HARDWARE[(number + at) % 2])
    for at, mesh in enumerate(("data=8", "data=2, tensor=4", "node=2, gpu=4"))
    for number, model in enumerate(MODELS)
    if (number + at) % 5 == 0 and (model, mesh) not in {row[:2] for row in QUICK + SLOW}
]


@pytest.mark.filterwarnings("ignore::mithril.MithrilWarning")
@pytest.mark.parametrize(
    ("model", "mesh", "hardware"),
    [*QUICK, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)],
)
def test_no_recipe_is_cheaper(model: str, mesh: str, hardware: str) -> None:
    row = recipes.compare(model, mesh, hardware, seed=1)
    assert len(row.recipes) >= 3
    assert row.is_met, str(row)


@pytest.mark.parametrize("recipe", ["FSDP", "data x Megatron", "vocabulary", "ring"])
def test_a_recipe_is_planned_as_without_a_search(recipe: str) -> None:
    """What annotations lead to is priced, and nothing else is chosen."""
    backend = recipes.make_backend("data=2, tensor=4", "h100-sxm")
    plans = [
        recipes.compile_recipe("gpt_small", recipe, backend, 0, SMALL, options).plan
        for options in ({}, ANNOTATIONS)
    ]
    ordinary, priced = ([(r.kind, r.axes, r.bytes) for r in p.collectives()] for p in plans)
    assert ordinary == priced
    assert plans[0].search is None
    assert plans[1].search.space == "annotations"
    assert plans[1].search.cost > 0


def plan_tried(model: str, mesh: str, said: dict[str, frozenset[str] | None]) -> Plan:
    """Return a plan that is compared, found with inputs over the axes that are said."""
    tried: list[Search] = []
    axes = ("batch_axes", "sequence_axes", "expert_axes")

    def choose(
        found: Plan, plan_for: Callable[[Search], Plan], search: Search, *args: object
    ) -> Plan:
        every = faster_plan._list_searches(search, tuple(backend.mesh.names), 1, is_large=False)
        tried.extend(
            one
            for one in every
            if one.spaces == ("annotations",)
            and all(getattr(one, name) == said.get(name) for name in axes)
        )
        return plan_for(tried[0])

    backend = recipes.make_backend(mesh, "h100-sxm")
    with patch.object(searching, "choose_by_timeline", choose):
        plan = recipes.compile_searched(model, backend, 0, SMALL).plan
    assert len(tried) == 1
    return plan


LAST, EVERY = frozenset({"tensor"}), frozenset({"data", "tensor"})


@pytest.mark.parametrize(
    ("model", "recipe", "said"),
    [
        ("moe_small", "experts x data", {"batch_axes": EVERY, "expert_axes": LAST}),
        ("moe_small", "experts", {"batch_axes": EVERY, "expert_axes": EVERY}),
        ("gpt_small", "data", {"batch_axes": EVERY}),
        ("gpt_small", "data inside", {"batch_axes": LAST}),
    ],
)
def test_what_people_write_is_among_the_plans(
    model: str, recipe: str, said: dict[str, frozenset[str]]
) -> None:
    mesh = "data=2, tensor=4"
    found = plan_tried(model, mesh, said)
    backend = recipes.make_backend(mesh, "h100-sxm")
    written = recipes.compile_recipe(model, recipe, backend, 0, SMALL, {}).plan
    rows = ([(r.kind, r.axes, r.bytes) for r in p.collectives()] for p in (found, written))
    assert next(rows) == next(rows)


def test_attention_of_sequences_that_are_split_is_computed_in_the_best_way() -> None:
    """Four ways are known; three are those of recipes."""
    mesh = "data=2, tensor=4"
    said = {"batch_axes": frozenset({"data"}), "sequence_axes": LAST}
    found = plan_tried("many_heads", mesh, said).search.seconds
    backend = recipes.make_backend(mesh, "h100-sxm")
    written = {
        recipe: recipes.compile_recipe("many_heads", recipe, backend, 0, SMALL, ANNOTATIONS)
        for recipe in ("Ulysses", "ring", "all-gather")
    }
    best = min(one.plan.search.seconds for one in written.values())
    assert found <= best * (1 + 1e-9)


def test_a_sequence_is_not_exchanged_for_heads_that_are_too_few() -> None:
    said = {"batch_axes": frozenset({"node"}), "sequence_axes": frozenset({"gpu"})}
    plan = plan_tried("long_sequence", "node=2, gpu=4", said)
    used = {node.op.name for s in plan.stages for node in s.program.graph.nodes}
    assert "permute" in used or "all_gather" in used
    assert "all_to_all" not in used


def test_attention_to_another_sequence_is_left_as_it_is() -> None:
    """Neither a ring, nor causal attention that gathers keys, has more keys than queries."""
    said = {"batch_axes": frozenset({"data"}), "sequence_axes": LAST}
    plan = plan_tried("encoder_decoder", "data=2, tensor=4", said)
    assert plan.search.space == "annotations"


def test_a_model_whose_heads_are_too_few_is_planned_otherwise() -> None:
    """Two heads cannot be exchanged over four devices, as the model asks for a split sequence."""
    model = ml.Model()
    attention = ml.MultiHeadAttention(num_heads=2, context_parallel="ulysses", name="attn")
    model |= attention(input="x", output="y")
    backend = recipes.make_backend("data=2, tensor=4", "h100-sxm")
    plan = search(model, backend, shapes={"x": (8, 64, 16)}).plan
    assert lies(plan, "x").axes(1) == ()


def lies(plan: Plan, name: str) -> P:
    return next(port for port in plan.inputs if port.name == name).sharding.spec


@pytest.mark.slow
def test_every_recipe_applies_somewhere_and_says_why_it_does_not() -> None:
    missing = set(RECIPES)
    for model in ("gpt_small", "moe_small"):
        backend = recipes.make_backend("data=2, tensor=4", "h100-sxm")
        for name in RECIPES:
            try:
                recipes.follow(model, name, backend, 0, SMALL)
                missing.discard(name)
            except (Inapplicable, MithrilError) as refusal:
                assert str(refusal)
    assert not missing


@pytest.mark.parametrize("model", MODELS)
def test_models_are_the_same_for_the_same_seed(model: str) -> None:
    one, other = make_case(model, 3), make_case(model, 3)
    assert one.shapes == other.shapes
    assert len({str(make_case(model, seed).shapes) for seed in range(9)}) > 1 or model == "cnn"


# ------------------------------------------------------------------ what the search has to know


def attend(heads: int) -> ml.Model:
    model = ml.Model()
    model |= ml.MultiHeadAttention(num_heads=heads, causal=True, name="attn")(input="x", output="y")
    return model


def search(model: ml.Model, backend: ml.Backend, **options: object) -> ml.CompiledModel:
    shapes = options.pop("shapes")
    return ml.compile(model, backend, auto_partition=True, shapes=shapes, **options)


def check(model: ml.Model, compiled: ml.CompiledModel, x: np.ndarray) -> None:
    """Hold outputs and gradients against one device."""
    one = ml.NumpyBackend()
    params = compiled.randomize_params(seed=0)
    seeds = {"y": np.ones(compiled.evaluate(params, {"x": x})["y"].shape, np.float32)}
    outputs, gradients = compiled.evaluate(params, {"x": x}, seeds)
    whole = {name: one.array(value.numpy()) for name, value in params.items()}
    expected, wanted = ml.compile(model, one).evaluate(whole, {"x": x}, seeds)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["y"].numpy(), expected["y"].numpy(), rtol, atol)
    top = max(np.abs(gradient.numpy()).max() for gradient in wanted.values())
    for name, gradient in wanted.items():
        np.testing.assert_allclose(
            gradients[name].numpy() / top, gradient.numpy() / top, rtol, atol, err_msg=name
        )


@pytest.mark.slow
def test_fewer_heads_than_devices_are_split_over_a_part_of_the_axis() -> None:
    """All devices split what they can: four heads over four of eight, and not over none."""
    mesh, shapes = ml.Mesh(tensor=8), {"x": (1, 2048, 64)}
    backend = ml.NumpyBackend(mesh)
    compiled = search(attend(4), backend, shapes=shapes)
    assert any(axis.origin != axis.name for axis in compiled.plan.stages[0].program.mesh.axes)
    alone = search(attend(4), backend, shapes=shapes, partition_search_space="data")
    assert compiled.plan.search.cost < alone.plan.search.cost
    x = np.random.default_rng(0).standard_normal((1, 16, 64)).astype(np.float32)
    check(attend(4), search(attend(4), backend, shapes={"x": x.shape}), x)


def test_attention_of_one_head_is_split_along_its_sequence() -> None:
    """Nothing else can be split over all devices, and the model does not say how."""
    mesh, x = ml.Mesh(context=8), np.random.default_rng(0).standard_normal((1, 256, 32))
    compiled = search(attend(1), ml.NumpyBackend(mesh), shapes={"x": x.shape})
    used = {node.op.name for s in compiled.plan.stages for node in s.program.graph.nodes}
    assert used & {"permute", "all_gather"}
    check(attend(1), compiled, x.astype(np.float32))


def test_alternatives_compute_the_same() -> None:
    """Each takes what the op takes; a ring takes no other number of keys than of queries."""
    q, k = (TensorType((2, n, 4, 8), DType.float32) for n in (16, 32))
    for kind in ALTERNATIVES:
        found = [find_alternative(kind(False, 1.0), [q, q, q], way) for way in range(WAYS)]
        assert all(type(op) in ALTERNATIVES[kind] for op in found)
    assert find_alternative(Attention(False, 1.0), [q, k, k], 0) is None
    assert find_alternative(Attention(False, 1.0), [q, k, k], 1) is not None
    assert find_alternative(Relu(), [q], 0) is None
    assert find_alternative(Attention(False, 1.0), [q, q, q], WAYS) is None
    total = TensorType((2, 4, 16), DType.float32)
    slope = AttentionGradient(True, 1.0), [q, k, k, q, total, q]
    assert [find_alternative(*slope, way) is None for way in range(WAYS)] == [True, True, False]


def test_the_loss_of_a_split_vocabulary_is_found() -> None:
    """The fused loss takes whole rows of logits; expanded it takes parts, and none is gathered."""
    model = ml.Model()
    model |= ml.Linear(1 << 17, bias=False, name="head")(input="x", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")
    backend = recipes.make_backend("data=8", "h100-sxm")
    shapes = {"x": (64, 256), "target": ml.TensorSpec((64,), "int32")}
    found = search(model, backend, shapes=shapes).plan
    head = next(port for port in found.inputs if port.name == "head.weight")
    assert head.sharding.spec == P("data")
    assert all(row.bytes < 64 << 17 for row in found.collectives())
    model.shard({"head.weight": P("data", None)})
    said = ml.compile(model, backend, shapes=shapes, **ANNOTATIONS).plan
    assert found.search.cost <= said.search.cost * (1 + 1e-9)


@pytest.mark.slow
def test_a_gap_is_no_worse_than_a_narrower_space() -> None:
    """Where tables outgrow their cap, what is found in parts of the space counts, too."""
    with patch.object(faster_plan, "_is_timed", return_value=False):  # what costs least, in turn
        found = [
            search(
                make_case("recurrent").model, recipes.make_backend("data=2, tensor=4", "h100-sxm"),
                shapes={"x": (512, 32, 512)}, outputs=["y"], partition_search_space=space,
            ).plan.search
            for space in ("mixed", "data")
        ]  # fmt: skip
    assert found[0].cost <= found[1].cost * (1 + 1e-9)
