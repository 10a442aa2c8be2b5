"""Attention over sequences that are split: what moves, how often, and equality with one device.

Ring attention, on p devices: keys and values packed into p - 1 permutes forward; backward the same
again, and p - 1 of their gradients. The zig-zag order of causal attention adds 2 permutes before
and 2 behind, each of half of what goes in and comes out (1 for p = 2, where half stays). Ulysses:
an all_to_all each of q, k, v and the output, and of their gradients. All-gather: keys and values whole,
their gradients scattered; queries and the output go to zig-zag order and back where attention is causal.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.errors import PlanError, ShapeError, ShardingError
from mithril.ir import Builder, Graph, Node
from mithril.mesh import Mesh, P, refine
from mithril.ops.attention import Attention, AttentionGradient, count_scores
from mithril.ops.context import CONTEXTS
from mithril.partition.limits import check_moves
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.report import explain
from mithril.transform import cotangent_name, gradient_of
from mithril.types import DType, TensorType

from tests.graphs import Ran, run, values_for
from tests.partition.test_golden import checked
from tests.profiles import scaled
from tests.tolerances import DIFFERENCES

F32, F64 = DType.float32, DType.float64
WANTED = ("q", "k", "v")
HOW = tuple(filter(None, CONTEXTS))
Row = tuple[str, tuple[str, ...], int]


@dataclass(frozen=True)
class Sizes:
    """Sizes of an attention; as many key as query heads, and values as large as keys, by default."""

    b: int = 2
    s: int = 8
    h: int = 4
    g: int = 4
    d: int = 4
    e: int = 4

    @property
    def keys(self) -> int:
        """Bytes of all keys and values."""
        return 4 * self.b * self.s * self.g * (self.d + self.e)

    @property
    def queries(self) -> int:
        return 4 * self.b * self.s * self.h * self.d

    @property
    def results(self) -> int:
        """Bytes of the whole output and its statistic."""
        return 4 * self.b * self.s * self.h * (self.e + 1)


def attends(
    how: str | None,
    sizes: Sizes = Sizes(),
    causal: bool = False,
    mask: str = "",
    shape: tuple[int, ...] = (),
    dtype: DType = F32,
) -> Graph:
    """Attention with something behind it; the mask is of floats, bools, or hides whole rows."""
    b, s, h, g, d, e = (getattr(sizes, n) for n in "bshgde")
    builder = Builder()
    q, k, v = (
        builder.input(TensorType(shape, dtype), name)
        for name, shape in zip(WANTED, ((b, s, h, d), (b, s, g, d), (b, s, g, e)), strict=True)
    )
    seen = None
    if mask:
        seen = builder.input(TensorType(shape, dtype), "mask")
        if mask != "floats":
            seen = ops.greater(seen, 0.3)
        if mask == "hides":
            seen = ops.where(seen, ops.cast(0.0 * q[0, 0, 0, 0], dtype), -np.inf)
    with builder.at(scope="attn"):
        y = ops.attention(q, k, v, mask=seen, causal=causal, context_parallel=how)
    return builder.build({"y": ops.tanh(y)})


def split(graph: Graph, mesh: Mesh, wanted: tuple[str, ...] = WANTED, **more: object) -> Ran:
    axes = mesh.names if len(mesh.names) > 1 else mesh.names[0]
    return checked(graph, mesh, dict.fromkeys(WANTED, P(None, axes)), wanted, **more)


def permutes(*moved: int) -> list[Row]:
    return [("permute", ("seq",), n) for n in moved]


# ------------------------------------------------------------------ what moves


@pytest.mark.parametrize("p", [2, 4])
@pytest.mark.parametrize("g", [4, 2, 1])
def test_ring_sends_keys_and_values_once_round(p: int, g: int) -> None:
    sizes = Sizes(g=g)
    ran = split(attends("ring", sizes), Mesh(seq=p))
    block = sizes.keys // p
    assert ran.rows("forward") == permutes(*[block] * (p - 1))
    # Keys and values go with the gradients of those before, unless a copy takes longer.
    both = [2 * block] * (p - 2) if g < 4 else [block] * 2 * (p - 2)
    assert ran.rows("backward") == permutes(block, *both, block)


@pytest.mark.parametrize("p", [2, 4])
def test_causal_ring_goes_to_zigzag_order_and_back(p: int) -> None:
    sizes, times = Sizes(), 1 if p == 2 else 2
    ran = split(attends("ring", sizes, causal=True), Mesh(seq=p))
    block, queries, results = (n // p for n in (sizes.keys, sizes.queries, sizes.results))
    arranged, restored = (queries + block) // 2, results // 2
    assert ran.rows("forward") == permutes(
        *[arranged] * times, *[block] * (p - 1), *[restored] * times
    )
    given = (queries + block + 2 * results) // 2  # the output, its gradient, and the statistic
    given -= 4 * sizes.b * sizes.s * sizes.h // p // 2  # of the output alone
    assert ran.rows("backward") == permutes(
        *[given] * times, *[block] * 2 * (p - 1), *[arranged] * times
    )


@pytest.mark.parametrize("causal", [False, True])
def test_ulysses_trades_sequence_for_heads_and_back(causal: bool) -> None:
    sizes = Sizes()
    ran = split(attends("ulysses", sizes, causal), Mesh(seq=4))
    one, three = (("all_to_all", ("seq",), n * sizes.queries // 4) for n in (1, 3))
    assert ran.rows("forward") == [three, one]
    assert ran.rows("backward") == [one, three]
    assert ran.plan.stages[0].program.outputs[0].sharding.spec == P(None, "seq")


def test_ulysses_with_fewer_key_heads_than_devices_shares_them_in_sub_groups() -> None:
    sizes = Sizes(h=8, g=2)
    ran = split(attends("ulysses", sizes), Mesh(seq=4))
    queries, keys = sizes.queries // 4, sizes.keys // 2 // 4
    back = [("all_to_all", (f"seq.{part}",), queries) for part in (0, 1)]
    shared = ("all_gather", ("seq.0",), 2 * 2 * keys)
    there = [("all_to_all", ("seq.1",), size) for size in (queries, 2 * keys)]
    there += [back[0], shared]
    assert Counter(ran.rows("forward")) == Counter([*there, *back])
    assert {kind for kind, _, _ in ran.rows("backward")} == {"all_to_all", "reduce_scatter"}


def test_ulysses_pads_heads_that_do_not_divide() -> None:
    ran = split(attends("ulysses", Sizes(h=6, g=6)), Mesh(seq=4))
    assert {kind for kind, _, _ in ran.rows("forward")} == {"all_to_all"}


@pytest.mark.parametrize("g", [4, 2, 1])
def test_all_gather_brings_keys_and_scatters_their_gradients(g: int) -> None:
    """Keys and values go together, once for both phases; nothing else moves."""
    sizes = Sizes(g=g)
    ran = split(attends("all_gather", sizes), Mesh(seq=4))
    assert ran.rows("forward") == [("all_gather", ("seq",), sizes.keys)]
    assert ran.rows("backward") == [("reduce_scatter", ("seq",), sizes.keys)]
    assert ran.plan.stages[0].program.outputs[0].sharding.spec == P(None, "seq")


@pytest.mark.parametrize("p", [2, 4])
def test_causal_all_gather_brings_queries_to_zigzag_order_and_back(p: int) -> None:
    sizes, times = Sizes(g=2), 1 if p == 2 else 2
    ran = split(attends("all_gather", sizes, causal=True), Mesh(seq=p))
    queries, results = sizes.queries // p // 2, sizes.results // p // 2
    statistic = results - queries
    assert Counter(ran.rows("forward")) == Counter(
        [("all_gather", ("seq",), sizes.keys), *permutes(*[queries, results] * times)]
    )
    assert Counter(ran.rows("backward")) == Counter(
        [
            ("reduce_scatter", ("seq",), sizes.keys),
            *permutes(*[3 * queries + statistic, queries] * times),
        ]
    )


@pytest.mark.parametrize("causal", [False, True])
def test_all_gather_takes_other_keys_than_queries_where_all_are_seen(causal: bool) -> None:
    """A causal one is of one sequence, and says so."""
    builder = Builder()
    q, k = (builder.input(TensorType((2, s, 4, 4), F32), n) for s, n in ((10, "q"), (6, "k")))
    if causal:
        with pytest.raises(ShapeError, match="causal attention that gathers keys has 6 queries"):
            ops.attention(k, q, q, causal=True, context_parallel="all_gather")
        return
    y = ops.attention(q, k, k, context_parallel="all_gather")
    specs = {"q": P(None, "seq"), "k": P(None, "seq")}
    ran = checked(builder.build({"y": ops.tanh(y)}), Mesh(seq=4), specs, ("q", "k"))
    assert {kind for kind, _, _ in ran.rows("forward")} == {"all_gather"}
    assert ran.plan.stages[0].program.outputs[0].sharding.spec == P(None, "seq")


@pytest.mark.parametrize("how", HOW)
def test_heads_may_be_split_over_another_axis(how: str) -> None:
    mesh, spec = Mesh(data=2, seq=2, tensor=2), P("data", "seq", "tensor")
    graph = attends(how, Sizes(), causal=True)
    ran = checked(graph, mesh, dict.fromkeys(WANTED, spec), WANTED)
    assert {axes for _, axes, _ in ran.rows("forward") + ran.rows("backward")} == {("seq",)}
    assert ran.plan.stages[0].program.outputs[0].sharding.spec == spec


@pytest.mark.parametrize("how", HOW)
def test_nothing_moves_where_no_sequence_is_split(how: str) -> None:
    for spec in (P(), P("seq"), P(None, None, "seq")):
        ran = checked(attends(how), Mesh(seq=2), dict.fromkeys(WANTED, spec), WANTED)
        assert ran.plan.collectives() == (), spec


@pytest.mark.parametrize("how", [*HOW, None])
def test_on_one_device_all_are_the_same(how: str | None) -> None:
    ran = run(attends(how), Mesh(), values_for(attends(how)))
    plain = run(attends(None), Mesh(), values_for(attends(None)))
    np.testing.assert_array_equal(ran.outputs["y"], plain.outputs["y"])
    assert str(ran.plan.stages[0].program.graph) == str(plain.plan.stages[0].program.graph)


# ------------------------------------------------------------------ work


def scores(nodes: tuple[Node, ...]) -> int:
    """Return how many scores the attentions of a local program compute."""
    total = 0
    for node in nodes:
        if isinstance(node.op, Attention | AttentionGradient):
            (b, s, h, _), t = node.inputs[0].type.shape, node.inputs[1].type.shape[1]
            total += b * h * count_scores(s, t, causal=node.op.causal)
    return total


@pytest.mark.parametrize(("s", "t"), [(1, 1), (1, 9), (4, 4), (4, 9), (9, 9)])
def test_scores_are_counted_as_they_are_seen(s: int, t: int) -> None:
    """The ends of both sequences are aligned: a single query sees all keys."""
    assert count_scores(s, t, causal=True) == np.tri(s, t, t - s).sum()
    assert count_scores(s, t, causal=False) == s * t


@pytest.mark.parametrize("p", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("how", ["ring", "all_gather"])
def test_zigzag_order_gives_every_device_its_share_of_the_scores(how: str, p: int) -> None:
    """And no more: what causality hides is not computed, on any device."""
    sizes = Sizes(s=4 * p)
    ran = split(attends(how, sizes, causal=True), Mesh(seq=p))
    both = 2 * sizes.b * sizes.h * sum(range(sizes.s + 1))
    assert scores(ran.plan.stages[0].program.graph.nodes) == both // p


def test_all_gather_takes_few_kernels_where_a_ring_takes_many() -> None:
    """Two attentions with own keys, and as many as there are halves of 15 pieces."""
    for how, count in (("ring", 31), ("all_gather", 6)):
        ran = split(attends(how, Sizes(b=1, s=32), causal=True), Mesh(seq=16), ())
        nodes = ran.plan.stages[0].program.graph.nodes
        assert sum(node.op.name == "attention" for node in nodes) == count, how


# ------------------------------------------------------------------ equality


@settings(max_examples=scaled(60), deadline=None)
@given(st.data())
def test_any_length_on_any_axis_equals_one_device(data: st.DataObject) -> None:
    """Lengths that do not divide, groups of heads, masks that hide whole rows; and gradients."""
    draw = data.draw
    how = draw(st.sampled_from(HOW))
    p = draw(st.sampled_from([1, 2, 4] if how == "ulysses" else [1, 2, 3, 4, 5]))
    s, causal = draw(st.integers(p + 1, 17)), draw(st.booleans())
    h, g = draw(st.sampled_from([(4, 4), (4, 2), (4, 1), (8, 4)]))
    mask = draw(st.sampled_from(["", "", "floats", "bools", "hides"]))
    sizes = Sizes(b=draw(st.integers(1, 2)), s=s, h=h, g=g, d=2, e=draw(st.integers(1, 3)))
    full = (sizes.b, h, s, s)
    shape = tuple(n if draw(st.booleans()) else 1 for n in full) if mask else ()
    wanted = (*WANTED, "mask") if mask == "floats" else WANTED
    split(attends(how, sizes, causal, mask, shape), Mesh(seq=p), wanted)


@pytest.mark.parametrize("s", [16, 13, 10, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_sequence_over_two_axes(how: str, causal: bool, s: int) -> None:
    """Padding then lies in the middle of the sequence, too."""
    split(attends(how, Sizes(s=s), causal), Mesh(a=2, b=2))
    finer = refine(Mesh(seq=4), {"seq": (2, 2)})
    ran = split(attends(how, Sizes(s=s), causal), finer)
    assert {axes for _, axes, _ in ran.rows("forward")} == {("seq",)}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("how", HOW)
def test_small_floats_are_merged_in_float32(how: str, dtype: str) -> None:
    from tests.tolerances import TOLERANCE

    graph = attends(how, Sizes(s=12), True, dtype=DType(dtype))
    values = values_for(graph)
    expected = run(graph, Mesh(), values, differentiated=WANTED).outputs
    specs = dict.fromkeys(WANTED, P(None, "seq"))
    ran = run(graph, Mesh(seq=4), values, specs, differentiated=WANTED)
    rtol, atol = TOLERANCE[dtype]
    for name, value in expected.items():
        found, wide = (x.astype(np.float32) for x in (ran.outputs[name], value))
        np.testing.assert_allclose(found, wide, rtol=rtol, atol=atol, err_msg=name)
    added = [n for n in ran.plan.stages[0].program.graph.nodes if n.op.name in ("add", "exp")]
    assert how == "ulysses" or {n.outputs[0].type.dtype for n in added} <= {F32, DType.int32}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("mask", ["", "floats"])
def test_gradients_are_finite_differences(how: str, mask: str) -> None:
    sizes = Sizes(b=1, s=7, h=2, g=2 if how == "ulysses" else 1, d=2, e=2)
    graph = attends(how, sizes, True, mask, (1, 1, 7, 7), dtype=F64)
    wanted = (*WANTED, "mask") if mask else WANTED
    specs, mesh = dict.fromkeys(WANTED, P(None, "seq")), Mesh(seq=2)
    values = values_for(graph)
    slopes = run(graph, mesh, values, specs, differentiated=wanted).outputs
    rng, step = np.random.default_rng(1), 1e-4
    for name in wanted:
        along = rng.standard_normal(values[name].shape)
        ends = [
            run(graph, mesh, {**values, name: values[name] + sign * step * along}, specs)
            for sign in (1, -1)
        ]
        rise = sum(
            sign * (ran.outputs["y"] * values[cotangent_name("y")]).sum()
            for sign, ran in zip((1, -1), ends, strict=True)
        )
        rtol, atol = DIFFERENCES
        found = (slopes[gradient_of(name)] * along).sum()
        np.testing.assert_allclose(found, rise / (2 * step), rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("how", HOW)
def test_blocks_are_expanded_where_a_backend_has_no_attention(how: str) -> None:
    kernels = frozenset(KERNELS) - {"attention", "attention_gradient"}
    ran = split(attends(how, Sizes(s=10), True), Mesh(seq=4), kernels=kernels)
    names = {node.op.name for node in ran.plan.stages[0].program.graph.nodes}
    assert "einsum" in names
    assert "attention" not in names


# ------------------------------------------------------------------ prices, words, limits


@pytest.mark.parametrize(("d", "kind"), [(1, "permute"), (64, "all_to_all")])
def test_the_ring_is_chosen_where_it_is_cheaper(d: int, kind: str) -> None:
    """The output is wanted with split heads: a few short messages, or fewer bytes."""
    specs = dict.fromkeys(WANTED, P(None, "seq"))
    graph = attends("ring", Sizes(b=1, d=d, e=d))
    ran = checked(graph, Mesh(seq=4), specs, (), outputs={"y": P(None, None, "seq")})
    assert ran.rows("forward")[0][0] == kind


def test_a_permute_of_the_ring_says_what_it_carries_and_why() -> None:
    ran = split(attends("ring", causal=True), Mesh(seq=4))
    rows = [row for row in ran.plan.collectives() if row.phase == "forward"]
    assert [row.cause.required for row in rows] == [
        *["zig-zag order"] * 2, *["next block of the ring"] * 3, *["the order of the sequence"] * 2,
    ]  # fmt: skip
    assert rows[2].cause.parts == ("k", "v")
    assert all(row.scope == "attn" and row.cause.seconds > 0 for row in rows)
    text = explain(ran.plan)
    assert "value     attn.ring_attention from attn" in text
    assert "carries   k, v\n" in text
    assert "required  next block of the ring by attn.ring_attention" in text
    assert str(plan_from_json(plan_to_json(ran.plan))) == str(ran.plan)


@pytest.mark.parametrize("how", HOW)
def test_what_the_option_asks_for_is_no_hidden_move(how: str) -> None:
    check_moves(split(attends(how), Mesh(seq=4)).plan, max_reshard_bytes=0)
    with pytest.raises(PlanError, match="moves 'q' by all_gather"):
        check_moves(split(attends(None), Mesh(seq=4)).plan, max_reshard_bytes=0)


@pytest.mark.parametrize("how", HOW)
def test_another_move_of_what_the_option_moves_is_hidden(how: str) -> None:
    """Head dimensions have to be whole, and nobody said so."""
    specs = dict.fromkeys(WANTED, P(None, None, None, "tensor"))
    ran = checked(attends(how), Mesh(seq=2, tensor=2), specs, ())
    with pytest.raises(PlanError, match=r"plan moves '[qkv]' by all_\w+ over tensor"):
        check_moves(ran.plan, max_reshard_bytes=0)


REFUSED = (
    r"'attn'.*: ulysses attention has 3 heads, which cannot be split over 'seq' \(4 devices\) in "
    r"place of the sequence; choose a number of heads that 4 divides, or context_parallel='ring'"
)


def test_ulysses_refuses_fewer_heads_than_devices() -> None:
    with pytest.raises(ShardingError, match=REFUSED):
        split(attends("ulysses", Sizes(h=3, g=3)), Mesh(seq=4))
    with pytest.raises(ShardingError, match="has 6 heads with 3 of keys and values, which cannot"):
        split(attends("ulysses", Sizes(h=6, g=3)), Mesh(seq=2))
    split(attends("ring", Sizes(h=3, g=3)), Mesh(seq=4))


def test_ulysses_refuses_heads_that_another_axis_has_taken() -> None:
    specs = dict.fromkeys(WANTED, P(None, "seq", "tensor"))
    with pytest.raises(ShardingError, match="has 4 heads, which cannot be split over 'seq'"):
        checked(attends("ulysses"), Mesh(seq=4, tensor=2), specs, WANTED)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_what_stands_in_padding_is_never_seen(how: str, causal: bool) -> None:
    """Zeros of the padding are minus infinity here, and slopes there are no numbers."""
    builder = Builder()
    inputs = [builder.input(TensorType((2, 9, 4, 4), F32), name) for name in WANTED]
    q, k, v = (ops.log(x * x) for x in inputs)
    y = ops.attention(q, k, v, causal=causal, scale=0.1, context_parallel=how)
    split(builder.build({"y": ops.tanh(y)}), Mesh(seq=4))
