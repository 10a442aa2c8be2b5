"""What users may rely on in the fused ops: extremes, masks, groups of heads, rotations."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.engine.kernels import KERNELS
from mithril.engine.kernels import attention as kernels
from mithril.testing.arrays import booleans, floats, integers
from mithril.testing.cases import CASES, Case
from mithril.testing.evaluate import apply, assert_close, evaluate, graph_of, inputs_of, type_of
from mithril.transform import expand
from mithril.types import DType

from tests.ops.oracles import ORACLES
from tests.ops.test_properties import call
from tests.profiles import quick
from tests.tolerances import TOLERANCE

CLOSE = dict(zip(("rtol", "atol"), TOLERANCE["float32"], strict=True))

Q, K, V = floats(2, 4, 4, 2), floats(2, 6, 2, 2, seed=1), floats(2, 6, 2, 3, seed=2)
ATTENTION = [case for case in CASES if case.op.name in {"attention", "attention_gradient"}]


# ------------------------------------------------------------------ attention


@quick(lambda block: block in {8, 64})
@pytest.mark.parametrize("block", [1, 8, 20, 64])
@pytest.mark.parametrize("case", ATTENTION, ids=str)
def test_attention_in_parts_is_attention(case: Case, block: int, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "BLOCK", block)
    monkeypatch.setattr(kernels, "FEWEST_ROWS", 1)
    expected = ORACLES[case.op.name](case.op, *case.arrays)
    for found, wanted in zip(apply(case.op, *case.arrays), expected, strict=True):
        assert_close(found, wanted)


@st.composite
def attentions(draw) -> tuple[ops.Attention, list[np.ndarray]]:
    """Draw attention of any shape, with or without a mask that hides whole rows now and then."""
    b, s, g, r, d, e = (draw(st.integers(1, 3)) for _ in range(6))
    causal = draw(st.booleans())
    t = draw(st.integers(s if causal else 1, 5))
    shapes = [(b, s, g * r, d), (b, t, g, d), (b, t, g, e)]
    arrays = [floats(*shape, seed=i) for i, shape in enumerate(shapes)]
    kind = draw(st.sampled_from(["none", "bool", "float"]))
    if kind != "none":
        shape = [n if draw(st.booleans()) else 1 for n in (b, g * r, s, t)]
        make = floats if kind == "float" else booleans
        arrays.append(make(*shape, seed=draw(st.integers(0, 9))))
    return ops.Attention(causal, draw(st.sampled_from([0.5, 1.0]))), arrays


@given(attentions(), st.integers(1, 40))
def test_any_attention_equals_plain_numpy_and_its_expansion(case, block: int) -> None:
    op, arrays = case
    back = ops.AttentionGradient(op.causal, op.scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "BLOCK", block)
        patch.setattr(kernels, "FEWEST_ROWS", 1)
        out, total = apply(op, *arrays)
        given_back = [*arrays[:3], out, total, floats(*out.shape, seed=5), *arrays[3:]]
        for chosen, operands in ((op, arrays), (back, given_back)):
            found = apply(chosen, *operands)
            graph = graph_of(chosen, [type_of(x) for x in operands])
            smaller = evaluate(expand(graph, set(KERNELS) - {chosen.name}), inputs_of(operands))
            expected = ORACLES[chosen.name](chosen, *operands)
            for y, wanted, other in zip(found, expected, smaller.values(), strict=True):
                assert_close(y, wanted)
                assert_close(other, wanted)


def test_parts_are_heads_if_one_fits_and_rows_if_not() -> None:
    def shapes(b: int, s: int, h: int) -> list[kernels.Part]:
        t = [np.empty((b, s, h, 8), np.float32)] * 3
        return kernels._parts(True, [type_of(x) for x in t])

    assert len(shapes(2, 64, 4)) == 1
    assert len(shapes(1, 256, 8)) == 4
    long = shapes(1, 2048, 1)
    assert len(long) > 8
    assert [part.keys.stop for part in long] == [part.rows.stop for part in long]
    assert not shapes(0, 64, 4)


def test_a_group_of_heads_shares_keys_and_values() -> None:
    grouped = call(ops.attention, Q, K, V)
    spread = call(ops.attention, Q, *(np.repeat(x, 2, axis=2) for x in (K, V)))
    assert_close(grouped, spread)


@pytest.mark.parametrize("shape", [(4, 6), (1, 6), (2, 1, 1, 6), (4, 4, 6), (2, 4, 4, 6)])
def test_a_mask_is_broadcast(shape: tuple[int, ...]) -> None:
    seen = booleans(*shape, seed=3)
    by_bools = call(lambda *x: ops.attention(*x[:3], mask=x[3]), Q, K, V, seen)
    by_floats = np.where(seen, 0.0, -np.inf)
    assert_close(by_bools, call(lambda *x: ops.attention(*x[:3], mask=x[3]), Q, K, V, by_floats))
    whole = np.broadcast_to(seen, (2, 4, 4, 6)).copy()
    assert_close(by_bools, call(lambda *x: ops.attention(*x[:3], mask=x[3]), Q, K, V, whole))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("hidden", [False, -np.inf, -1e30])
def test_a_row_that_sees_nothing_gives_zeros(hidden: float, dtype: str) -> None:
    wide = np.float32 if hidden else bool
    mask = np.full((1, 1, 4, 6), 0.0 if hidden else True, wide)
    mask[0, 0, 1] = hidden
    q, k, v = (x.astype(DType(dtype).numpy) for x in (Q, K, V))
    out, statistic = apply(ops.Attention(False, 1.0), q, k, v, mask)
    assert not out[:, 1].astype(np.float64).any()
    assert not statistic[:, :, 1].any()
    g = np.ones_like(out)
    gradients = apply(ops.AttentionGradient(False, 1.0), q, k, v, out, statistic, g, mask)
    assert all(np.isfinite(x.astype(np.float64)).all() for x in gradients)
    assert not gradients[0][:, 1].astype(np.float64).any()


def test_a_causal_mask_is_the_mask_of_what_came_before() -> None:
    before = np.tri(4, 6, 2, dtype=bool)
    causal = call(lambda *x: ops.attention(*x, causal=True), Q, K, V)
    assert_close(causal, call(lambda *x: ops.attention(*x[:3], mask=x[3]), Q, K, V, before))


def test_the_scale_of_large_scores_does_not_overflow() -> None:
    big = (Q * 1e3).astype(np.float32)
    (out, statistic) = apply(ops.Attention(True, 100.0), big, big, big)
    assert np.isfinite(out).all()
    assert np.isfinite(statistic).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_statistics_of_16_bit_floats_are_float32(dtype: str) -> None:
    x, gain = (a.astype(DType(dtype).numpy) for a in (floats(4, 6), floats(6)))
    for results in (
        apply(ops.RmsNorm(1e-6), x, gain),
        apply(ops.LayerNorm(1e-5), x, gain, gain),
        apply(ops.CrossEntropy(), x, integers(4)),
    ):
        assert results[0].dtype == x.dtype
        assert {r.dtype for r in results[1:]} == {np.dtype(np.float32)}


def test_squares_of_float16_do_not_overflow_in_rms_norm() -> None:
    x = np.full((2, 4), 1000, np.float16)
    y, _ = apply(ops.RmsNorm(1e-6), x, np.ones(4, np.float16))
    assert_close(y, np.ones((2, 4), np.float16))


# ------------------------------------------------------------------ silu and cross-entropy


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_silu_is_finite_everywhere(dtype: str) -> None:
    most = float(ml_dtypes.finfo(DType(dtype).numpy).max)
    x = np.array([-np.inf, -most, -1000, -100, 0, 100, 1000, most]).astype(DType(dtype).numpy)
    (y,) = apply(ops.Silu(), x)
    assert_close(y.astype(np.float64), np.maximum(x.astype(np.float64), 0), DType(dtype))
    (slope,) = apply(ops.SiluGradient(), x, np.ones_like(x))
    assert_close(slope.astype(np.float64), np.array([0.0] * 4 + [0.5] + [1.0] * 3), DType(dtype))


def test_silu_keeps_small_results() -> None:
    (y,) = apply(ops.Silu(), np.array([-30.0], np.float32))
    np.testing.assert_allclose(y, [-30 * np.exp(-30.0)], **CLOSE)


def test_a_class_beyond_the_targets_dtype_is_no_target() -> None:
    """Class 256 is not class 0, though both are 0 in the uint8 of the targets."""
    arrays = (floats(2, 300), np.array([0, 7], np.uint8))
    graph = graph_of(ops.CrossEntropy(), [type_of(a) for a in arrays])
    smaller = expand(graph, set(KERNELS) - {"cross_entropy"})
    found, expected = (evaluate(g, inputs_of(arrays)) for g in (smaller, graph))
    assert_close(found["y0"], expected["y0"])


# ------------------------------------------------------------------ rope

HEADS = floats(2, 4, 3, 6)


@pytest.mark.parametrize("interleaved", [False, True])
def test_a_rotation_turned_back_is_nothing(interleaved: bool) -> None:
    there, back = (ops.Rope(100.0, 2, interleaved, inverse) for inverse in (False, True))
    assert_close(apply(back, *apply(there, HEADS))[0], HEADS)


@pytest.mark.parametrize("interleaved", [False, True])
def test_products_depend_on_the_distance_alone(interleaved: bool) -> None:
    q, k = (np.broadcast_to(floats(6, seed=i), (1, 8, 1, 6)).copy() for i in (0, 1))
    turned = [call(lambda x: ops.rope(x, interleaved=interleaved), x)[0, :, 0] for x in (q, k)]
    products = turned[0] @ turned[1].T
    for distance in range(-7, 8):
        diagonal = np.diagonal(products, distance)
        assert_close(diagonal, np.full_like(diagonal, diagonal[0]))


def test_interleaved_pairs_are_halves_in_another_order() -> None:
    order = [0, 3, 1, 4, 2, 5]
    halves = call(ops.rope, HEADS)
    neighbours = call(lambda x: ops.rope(x, interleaved=True), HEADS[..., order])
    assert_close(neighbours, halves[..., order])


def test_positions_can_be_said_in_three_ways() -> None:
    expected = call(lambda x: ops.rope(x, offset=5), HEADS)
    row = np.arange(5, 9, dtype=np.int32)
    for positions in (row, np.stack([row, row]), np.asarray(5, np.int32)):
        assert_close(call(ops.rope, HEADS, positions), expected)
    apart = call(ops.rope, HEADS, np.stack([row, row + 3]))
    assert_close(apart[0], expected[0])
    assert_close(apart[1], call(lambda x: ops.rope(x, offset=8), HEADS)[1])


def test_angles_of_far_positions_are_exact_in_16_bits() -> None:
    """A position of 4097 is no bfloat16; angles are computed in float32 at least."""
    x = HEADS.astype(DType.bfloat16.numpy)
    found = call(lambda t: ops.rope(t, offset=4097), x)
    exact = call(lambda t: ops.rope(t, offset=4097), x.astype(np.float64))
    assert_close(found.astype(np.float64), exact, DType.bfloat16)
