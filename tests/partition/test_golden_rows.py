"""More golden rows: vocabulary, memory and sequence parallelism, contractions, key-value heads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from mithril import ops
from mithril.compiler import Request, Target, make_plan
from mithril.cost import SIMULATED
from mithril.engine.kernels import KERNELS
from mithril.ir import Builder, Graph, Tensor
from mithril.mesh import Mesh, P, Sharding, refine
from mithril.sharding import Layout
from mithril.transform import cotangent_name
from mithril.types import DType, TensorType

from tests.graphs import (
    BLOCK_PARAMETERS,
    MEGATRON_BLOCK,
    MLP_PARAMETERS,
    Ran,
    block,
    block_shapes,
    mlp,
)
from tests.partition.test_golden import NORMS, all_reduce, checked

F32, I32 = DType.float32, DType.int32
B, S, D, V = 2, 4, 8, 64
TOKENS = 4 * B * S
"""Bytes of one number a token; v > 2·b·s, as the rows ask."""
ACTIVATION = TOKENS * D
TENSOR = Mesh(tensor=4)


def language_model(vocabulary: int = V, tied: bool = False, embeds: bool = True) -> Graph:
    """Embedding, one layer, head and mean cross-entropy; the head may be the embedding's table."""
    builder = Builder()

    def parameter(name: str, *shape: int) -> Tensor:
        return builder.input(TensorType(shape, F32), name)

    table = parameter("table", vocabulary, D)
    targets = builder.input(TensorType((B, S), I32), "targets")
    if embeds:
        tokens = builder.input(TensorType((B, S), I32), "tokens")
        with builder.at(scope="embedding"):
            x = ops.take(table, tokens)
    else:
        x = parameter("x", B, S, D)
    with builder.at(scope="middle"):
        x = ops.tanh(ops.einsum("bsd,ed->bse", x, parameter("middle", D, D)))
    head = table if tied or not embeds else parameter("head", vocabulary, D)
    with builder.at(scope="head"):
        logits = ops.einsum("bsd,vd->bsv", x, head)
    with builder.at(scope="loss"):
        return builder.build({"loss": ops.mean(ops.cross_entropy(logits, targets))})


def parallel(graph: Graph, *names: str, wanted: tuple[str, ...]) -> Ran:
    specs = dict.fromkeys(names, P("tensor", None))
    return checked(graph, TENSOR, specs, wanted, compute=list(specs))


CROSS_ENTROPY = [all_reduce("tensor", TOKENS), all_reduce("tensor", TOKENS)]
"""The largest logit, and the sum of exponentials."""
LOSS = 4
"""One number, which travels with a gradient."""


@pytest.mark.parametrize("vocabulary", [V, 62, 50], ids=["even", "uneven", "very uneven"])
def test_vocabulary_parallel_embedding(vocabulary: int) -> None:
    builder = Builder()
    table = builder.input(TensorType((vocabulary, D), F32), "table")
    tokens = builder.input(TensorType((B, S), I32), "tokens")
    graph = builder.build({"y": ops.tanh(ops.take(table, tokens))})
    ran = parallel(graph, "table", wanted=("table",))
    assert ran.rows("forward") == [all_reduce("tensor", ACTIVATION)]
    assert ran.rows("backward") == []


@pytest.mark.parametrize("vocabulary", [V, 62, 50], ids=["even", "uneven", "very uneven"])
def test_vocabulary_parallel_cross_entropy(vocabulary: int) -> None:
    graph = language_model(vocabulary, embeds=False)
    ran = parallel(graph, "table", wanted=("table", "middle", "x"))
    assert ran.rows("forward") == CROSS_ENTROPY
    assert ran.rows("backward") == [all_reduce("tensor", LOSS + ACTIVATION)]


@pytest.mark.parametrize("vocabulary", [V, 62], ids=["even", "uneven"])
@pytest.mark.parametrize("spec", [None, P(), P(None, "tensor")], ids=["free", "whole", "split"])
def test_vocabulary_parallel_cross_entropy_of_a_split_sequence(
    vocabulary: int, spec: P | None
) -> None:
    """Three all-reduces, as where the sequence is whole; targets that come split are gathered."""
    specs = {"table": P("tensor", None), "x": P(None, "tensor")}
    specs |= {} if spec is None else {"targets": spec}
    graph = language_model(vocabulary, embeds=False)
    wanted, free = ("table", "middle", "x"), ["targets"] if spec is None else []
    ran = checked(graph, TENSOR, specs, wanted, compute=["table"], free=free)
    gathered = ("all_gather", ("tensor",), ACTIVATION)
    targets = [("all_gather", ("tensor",), TOKENS)] if spec == P(None, "tensor") else []
    assert ran.rows("forward") == [gathered, *CROSS_ENTROPY, *targets]
    assert ran.rows("backward") == [
        ("reduce_scatter", ("tensor",), ACTIVATION),
        all_reduce("tensor", LOSS + 4 * D * D),
    ]


def test_loss_of_each_token_leaves_split_as_it_is_promised() -> None:
    """Nothing is needed whole then but the largest logit, and sums are scattered."""
    builder = Builder()
    table = builder.input(TensorType((V, D), F32), "table")
    targets = builder.input(TensorType((B, S), I32), "targets")
    x = builder.input(TensorType((B, S, D), F32), "x")
    logits = ops.einsum("bsd,vd->bsv", x, table)
    graph = builder.build({"loss": ops.cross_entropy(logits, targets)})
    specs, promised = {"table": P("tensor", None)}, {"loss": P(None, "tensor")}
    ran = checked(graph, TENSOR, specs, (), compute=["table"], outputs=promised)
    scattered = ("reduce_scatter", ("tensor",), 2 * TOKENS)  # both sums in one buffer
    assert ran.rows("forward") == [all_reduce("tensor", TOKENS), scattered]


def test_vocabulary_parallel_embedding_and_head() -> None:
    ran = parallel(language_model(), "table", "head", wanted=("table", "middle", "head"))
    assert ran.rows("forward") == [all_reduce("tensor", ACTIVATION), *CROSS_ENTROPY]
    assert ran.rows("backward") == [all_reduce("tensor", LOSS + ACTIVATION)]


def test_a_tied_table_adds_its_gradients_where_they_are() -> None:
    ran = parallel(language_model(tied=True), "table", wanted=("table", "middle"))
    assert ran.rows("forward") == [all_reduce("tensor", ACTIVATION), *CROSS_ENTROPY]
    assert ran.rows("backward") == [all_reduce("tensor", LOSS + ACTIVATION)]


def test_fused_cross_entropy_stays_whole_where_nobody_splits_it() -> None:
    ran = checked(
        language_model(),
        Mesh(data=2),
        {"tokens": P("data"), "targets": P("data")},
        ("table", "middle", "head"),
    )
    assert "cross_entropy" in {n.op.name for n in ran.plan.stages[0].program.graph.nodes}


# ------------------------------------------------------------------ kept at rest


def test_zero_3_gathers_each_parameter_in_each_phase_and_scatters_its_gradient() -> None:
    rest = dict.fromkeys(BLOCK_PARAMETERS, P("data"))
    ran = checked(block(b=4), Mesh(data=4), {"x": P("data")}, BLOCK_PARAMETERS, at_rest=rest)
    sizes = {name: 4 * int(np.prod(shape)) for name, shape in block_shapes().items()}
    gathered = sorted(ran.members("forward"))
    assert gathered == sorted(("all_gather", ("data",), size) for size in sizes.values())
    back = ran.members("backward")
    rows = [r for r in ran.plan.collectives() if (r.phase, r.kind) == ("backward", "all_gather")]
    again = [name for row in rows for name in row.cause.parts or [row.cause.value]]
    assert set(again) <= set(sizes)
    assert len(again) == len(set(again)), "each at most once more"
    scattered = sorted(row for row in back if row[0] == "reduce_scatter")
    assert scattered == sorted(("reduce_scatter", ("data",), size) for size in sizes.values())
    assert "all_reduce" not in {kind for kind, _, _ in back}


def test_what_rests_of_a_block_is_gathered_together_where_start_up_counts() -> None:
    """Norms and biases, 1408 bytes, wait for one start-up; weights of 4096 take their own."""
    rest = dict.fromkeys(BLOCK_PARAMETERS, P("data"))
    ran = checked(block(b=4), Mesh(data=4), {"x": P("data")}, BLOCK_PARAMETERS, at_rest=rest)
    sizes = {name: 4 * int(np.prod(shape)) for name, shape in block_shapes().items()}
    (flat,) = (row for row in ran.plan.collectives() if row.phase == "forward" and row.cause.parts)
    vectors = {name for name, shape in block_shapes().items() if len(shape) == 1}
    assert set(flat.cause.parts) == vectors
    assert flat.bytes == sum(sizes[name] for name in vectors)
    assert ran.rows("forward")[0] == (flat.kind, flat.axes, flat.bytes), "with its first"
    assert len(ran.rows("forward")) == 1 + len(sizes) - len(vectors)


def test_a_weight_that_only_the_forward_needs_is_not_gathered_again() -> None:
    rest = dict.fromkeys(MLP_PARAMETERS, P("data"))
    ran = checked(mlp(), Mesh(data=4), {"x": P("data")}, MLP_PARAMETERS, at_rest=rest)
    again = [row for row in ran.rows("backward") if row[0] == "all_gather"]
    assert again == [("all_gather", ("data",), 4 * 32 * 64)], "only the second layer's weight"


def test_what_is_at_rest_comes_back_at_rest() -> None:
    rest = dict.fromkeys(MLP_PARAMETERS, P("data"))
    ran = checked(mlp(), Mesh(data=4), {"x": P("data")}, MLP_PARAMETERS, at_rest=rest)
    program = ran.plan.stages[0].program
    for port in (*program.inputs, *program.outputs):
        if port.name.removeprefix("gradients.") in rest:
            assert port.sharding.spec == P("data"), port.name


def test_at_rest_and_computed_with_are_two_things() -> None:
    """Split over `tensor` to compute, over `data` too between uses."""
    specs = {"up": P("tensor", None), "down": P(None, "tensor")}
    rest = {"up": P(("tensor", "data")), "down": P("data", "tensor")}
    ran = checked(
        mlp(),
        Mesh(data=2, tensor=2),
        {"x": P("data"), **specs},
        MLP_PARAMETERS,
        compute=list(specs),
        at_rest=rest,
    )
    half = 4 * 32 * 64 // 2
    assert ran.rows("forward").count(("all_gather", ("data",), half)) == 2
    assert ran.rows("backward").count(("reduce_scatter", ("data",), half)) == 2


# ------------------------------------------------------------------ sequence parallelism


@pytest.mark.parametrize("expanded", [set(), NORMS], ids=["fused", "norms"])
def test_sequence_parallel_norms_scatter_and_gather(expanded: set[str]) -> None:
    graph, mesh = block(), TENSOR
    between = Sharding.of(mesh, P(None, "tensor"), 3)
    residuals = [n for n in graph.nodes if n.op.name == "add" and not n.scope]
    object.__setattr__(residuals[0].outputs[0], "name", "between")
    types = {value.name: value.type for value in graph.inputs}
    specs = {n: Sharding.of(mesh, spec, types[n].rank) for n, spec in MEGATRON_BLOCK.items()}
    layouts = {name: Layout(computed=spec) for name, spec in specs.items()}
    layouts |= {"x": Layout(between), cotangent_name("y"): Layout(between)}
    layouts |= {"between": Layout(home=between), "y": Layout(leaves=between)}
    request = Request(layouts, ("y",), (*BLOCK_PARAMETERS, "x"))
    plan = make_plan(graph, request, Target("numpy", mesh, frozenset(KERNELS) - expanded))
    found = [(str(row.phase), row.kind, row.bytes) for row in plan.collectives()]
    activation = 4 * 2 * 8 * 32
    for phase in ("forward", "backward"):
        assert found.count((phase, "all_gather", activation)) == 2
        assert found.count((phase, "reduce_scatter", activation)) == 2
    gains_and_biases = 4 * 6 * 32  # two norms, and the biases behind the scattered sums
    rest = [row for row in found if row[1] == "all_reduce"]
    assert rest == [("backward", "all_reduce", gains_and_biases)]
    assert len(found) == 9


# ------------------------------------------------------------------ contraction split on one side


@pytest.mark.parametrize("with_x", [False, True])
def test_contraction_split_on_one_side(with_x: bool) -> None:
    builder = Builder()
    x = builder.input(TensorType((4, 32), F32), "x")
    weight = builder.input(TensorType((16, 32), F32), "weight")
    graph = builder.build({"y": ops.einsum("bi,oi->bo", x, weight)})
    wanted = ("weight", "x") if with_x else ("weight",)
    ran = checked(graph, TENSOR, {"weight": P(None, "tensor")}, wanted, compute=["weight"])
    assert ran.rows("forward") == [all_reduce("tensor", 4 * 4 * 16)]
    assert ran.rows("backward") == ([("all_gather", ("tensor",), 4 * 4 * 32)] if with_x else [])


# ------------------------------------------------------------------ key and value heads < tensor


def grouped_query(fused: bool, b: int = 2, s: int = 4) -> Graph:
    """Attention with 8 query heads over 2 key and value heads, projections included."""
    h, g, e, d = 8, 2, 4, 32
    builder = Builder()

    def parameter(name: str, *shape: int) -> Tensor:
        return builder.input(TensorType(shape, F32), name)

    x = parameter("x", b, s, d)
    weights = {"q": parameter("q", h * e, d), "o": parameter("o", d, h * e)}
    weights |= {name: parameter(name, g * e, d) for name in ("k", "v")}

    def project(name: str, value: Tensor) -> Tensor:
        with builder.at(scope=name):
            return ops.einsum("bsi,oi->bso", value, weights[name])

    if fused:
        q = project("q", x).reshape(b, s, h, e)
        k, v = (project(name, x).reshape(b, s, g, e) for name in ("k", "v"))
        mixed = ops.attention(q, k, v, causal=True).reshape(b, s, h * e)
    else:
        q = project("q", x).reshape(b, s, g, h // g, e)
        k, v = (project(name, x).reshape(b, s, g, e) for name in ("k", "v"))
        seen = ops.softmax(ops.einsum("bsgre,btge->bgrst", q, k))
        mixed = ops.einsum("bgrst,btge->bsgre", seen, v).reshape(b, s, h * e)
    return builder.build({"y": project("o", mixed)})


@pytest.mark.parametrize("fused", [False, True], ids=["einsum", "attention"])
def test_key_value_heads_lie_over_a_part_of_the_axis(fused: bool) -> None:
    heads = Sharding.of(refine(TENSOR, {"tensor": (2, 2)}), P("tensor.0"), 2)
    specs = {"q": P("tensor"), "k": heads, "v": heads, "o": P(None, "tensor")}
    wanted = ("q", "k", "v", "o", "x")
    ran = checked(grouped_query(fused), TENSOR, specs, wanted, compute=list(specs))
    assert ran.rows("forward") == [all_reduce("tensor", 4 * 2 * 4 * 32)]
    inside = all_reduce("tensor.1", 2 * 4 * 2 * 4 * 1 * 4)  # dk, dv of one head, in the sub-group
    assert ran.rows("backward") == [inside, all_reduce("tensor", 4 * 2 * 4 * 32)]


@pytest.mark.parametrize("fused", [False, True], ids=["einsum", "attention"])
def test_key_value_weights_over_the_whole_axis_are_gathered_in_sub_groups(fused: bool) -> None:
    specs = {**dict.fromkeys(("q", "k", "v"), P("tensor")), "o": P(None, "tensor")}
    ran = checked(
        grouped_query(fused), TENSOR, specs, ("q", "k", "v", "o", "x"), compute=list(specs)
    )
    head = 4 * 2 * 4 * 1 * 4
    gathers = ("all_gather", ("tensor.1",), 2 * head)
    assert ran.rows("forward") == [gathers, all_reduce("tensor", 4 * 2 * 4 * 32)]
    scatters = ("reduce_scatter", ("tensor.1",), 2 * head)
    assert ran.rows("backward") == [scatters, all_reduce("tensor", 4 * 2 * 4 * 32)]


FAST = replace(
    SIMULATED, rates={F32: ((1.0, 1e13),)}, vector_rate=1e13, memory_bandwidth=1e13
)  # what multiplies fast: as on accelerators, to compute something twice is cheaper than to send it
HEAD_WEIGHT = 4 * 4 * 32
"""Bytes of the rows of one key head."""


def test_key_value_weights_are_gathered_where_that_is_cheaper_than_activations() -> None:
    """Their annotation says that they lie split over the whole axis."""
    b, s = 4, 32
    specs = {**dict.fromkeys(("q", "k", "v"), P("tensor")), "o": P(None, "tensor")}
    wanted, graph = ("q", "k", "v", "o", "x"), grouped_query(True, b, s)
    ran = checked(graph, TENSOR, specs, wanted, compute=list(specs), hardware=FAST)
    activation = all_reduce("tensor", 4 * b * s * 32)
    assert ran.rows("forward") == [("all_gather", ("tensor.1",), 2 * HEAD_WEIGHT), activation]
    scatters = ("reduce_scatter", ("tensor.1",), 2 * HEAD_WEIGHT)
    assert sorted(ran.rows("backward")) == sorted([scatters, activation])
    ports = {port.name: port.sharding.spec for port in ran.plan.stages[0].program.inputs}
    assert {ports["k"], ports["v"]} == {P("tensor")}


def test_key_value_weights_that_lie_anywhere_are_copied() -> None:
    """As in Megatron-LM: no gather, and the sum of small weight gradients over the copies."""
    b, s = 4, 32
    specs, free = {"q": P("tensor"), "o": P(None, "tensor")}, ["k", "v"]
    wanted, graph = ("q", "k", "v", "o", "x"), grouped_query(True, b, s)
    ran = checked(graph, TENSOR, specs, wanted, compute=["q", "o"], free=free, hardware=FAST)
    activation = all_reduce("tensor", 4 * b * s * 32)
    assert ran.rows("forward") == [activation]
    assert sorted(ran.rows("backward")) == sorted(
        [activation, all_reduce("tensor.1", 2 * HEAD_WEIGHT)]
    )
    ports = {port.name: port.sharding.spec for port in ran.plan.stages[0].program.inputs}
    assert {ports["k"], ports["v"]} == {P("tensor.0")}


@pytest.mark.parametrize("bound", [True, False], ids=["annotated", "anywhere"])
def test_key_value_activations_of_few_tokens_are_gathered(bound: bool) -> None:
    specs = {"q": P("tensor"), "o": P(None, "tensor")}
    specs |= dict.fromkeys(("k", "v"), P("tensor")) if bound else {}
    free = [] if bound else ["k", "v"]
    graph = grouped_query(True, 1, 4)
    wanted = ("q", "k", "v", "o", "x")
    ran = checked(graph, TENSOR, specs, wanted, compute=list(specs), free=free, hardware=FAST)
    gathers = ("all_gather", ("tensor.1",), 2 * 4 * 4 * 4)
    assert ran.rows("forward") == [gathers, all_reduce("tensor", 4 * 4 * 32)]
