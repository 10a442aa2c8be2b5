"""Fused ops as PyTorch writes them: shapes of every kind, layouts, extremes, and what has no kernel.

PyTorch's kernels take some cases only; the others are written otherwise, and both equal numpy.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import ops
from mithril.ir import Op
from mithril.ops.conv import Convolution
from mithril.ops.pool import AvgPool, AvgPoolGradient, MaxPool, MaxPoolGradient
from mithril.testing.arrays import floats, integers
from mithril.testing.evaluate import apply, assert_close, type_of
from mithril.types import DType, as_dtype

from tests.ops.test_fused import attentions

torch = pytest.importorskip("torch")
pytest.importorskip("mithril_torch")
from mithril_torch.kernels import EXPRESSIONS  # noqa: E402
from mithril_torch.program import runtime_library  # noqa: E402

from tests.torch.test_primitives import FLOATS, INTEGERS, run, tensor  # noqa: E402

Arrays = list[np.ndarray]
CLASSES = 6


def check(op: Op, *arrays: np.ndarray, dtype: str = "float64") -> None:
    """Compare an op, on floats rounded to a dtype, with numpy on these floats in float64."""
    rounded = [a.astype(DType(dtype).numpy) if is_float(a) else a for a in arrays]
    exact = [a.astype(np.float64) if is_float(a) else a for a in rounded]
    with np.errstate(invalid="ignore", over="ignore"):
        for found, wanted in zip(run(op, *rounded), apply(op, *exact), strict=True):
            wide = found.astype(wanted.dtype)
            assert_close(wide, wanted, DType(dtype) if is_float(wanted) else None)


def is_float(array: np.ndarray) -> bool:
    return as_dtype(array.dtype).is_float


def single(*shape: int, seed: int = 0) -> np.ndarray:
    return floats(*shape, seed=seed).astype(np.float32)


# ------------------------------------------------------------------ attention


def gradient_operands(op: ops.Attention, arrays: Arrays) -> Arrays:
    out, total = apply(op, *arrays)
    return [*arrays[:3], out, total, floats(*out.shape, seed=5), *arrays[3:]]


@given(attentions(), st.sampled_from(FLOATS), st.booleans())
def test_attention_of_any_shape(case, dtype: str, is_square: bool) -> None:
    """The flash kernel takes values as wide as keys; a mask may hide whole rows."""
    op, arrays = case
    if is_square:
        arrays[2] = floats(*arrays[1].shape, seed=7)
    check(op, *arrays, dtype=dtype)
    back = ops.AttentionGradient(op.causal, op.scale)
    check(back, *gradient_operands(op, arrays), dtype=dtype)


@given(attentions(), st.sampled_from(FLOATS))
def test_attention_by_scores(case, dtype: str) -> None:
    """What devices without the flash kernel of CPUs run, on operands which that one would take."""
    op, arrays = case
    arrays[2] = floats(*arrays[1].shape, seed=7)
    module = sys.modules["mithril_torch.program.runtime_library.attention"]
    back = ops.AttentionGradient(op.causal, op.scale)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "has_flash_kernel", lambda q, v: False)
        check(op, *arrays, dtype=dtype)
        check(back, *gradient_operands(op, arrays), dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("width", [2, 3])
@pytest.mark.parametrize("hidden", [False, -np.inf, -1e30])
def test_a_row_that_sees_nothing_gives_zeros(hidden: float, width: int, dtype: str) -> None:
    mask = np.full((1, 1, 4, 6), 0.0 if hidden else True, np.float32 if hidden else bool)
    mask[0, 0, 1] = hidden
    shapes = [(2, 4, 4, 2), (2, 6, 2, 2), (2, 6, 2, width)]
    q, k, v = (floats(*shape).astype(DType(dtype).numpy) for shape in shapes)
    out, total = run(ops.Attention(False, 1.0), q, k, v, mask)
    assert not out[:, 1].any()
    assert not total[:, :, 1].any()
    back = ops.AttentionGradient(False, 1.0)
    dq, dk, dv = run(back, q, k, v, out, total, np.ones_like(out), mask)
    assert not dq[:, 1].any()
    assert all(np.isfinite(x.astype(np.float32)).all() for x in (dq, dk, dv))


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (0, 3, 2, 1), (2, 0, 3, 1)])
def test_attention_of_operands_in_any_layout(order: tuple[int, ...]) -> None:
    """The flash kernel reads head_dim as if it lay in a row."""
    op = ops.Attention(True, 0.7)
    operands = gradient_operands(op, [single(2, 6, 4, 8, seed=i) for i in range(3)])
    operands = [x.astype(np.float32) for x in operands]
    for chosen, arrays in ((op, operands[:3]), (ops.AttentionGradient(True, 0.7), operands)):
        check_layouts(chosen, arrays, order)


def check_layouts(op: Op, arrays: Arrays, order: tuple[int, ...]) -> None:
    """Compare an op with numpy where its operands, as far as they can, lie in memory in an order."""
    types = [type_of(array) for array in arrays]
    text = EXPRESSIONS[op.name](op, types).format(*(f"x[{i}]" for i in range(len(arrays))))
    laid_out = [
        scattered(array, tuple(np.argsort(order[: array.ndim]).tolist())) for array in arrays
    ]
    made = eval(text, {**vars(runtime_library), "x": laid_out})
    found = made if isinstance(made, tuple) else (made,)
    for y, wanted in zip(found, apply(op, *arrays), strict=True):
        assert_close(y.numpy(), wanted)


def scattered(array: np.ndarray, order: tuple[int, ...]):
    """Return a tensor whose dimensions lie in memory in an order."""
    back = np.argsort(order).tolist()
    return tensor(np.ascontiguousarray(array.transpose(order))).permute(back)


# ------------------------------------------------------------------ norms, losses, functions


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(0, 4), (0, 3, 4), (1,), (3, 1), (300, 70)])
def test_norms(shape: tuple[int, ...], dtype: str) -> None:
    """Sums over many rows of 16-bit floats are taken in float32."""
    x, g = floats(*shape), floats(*shape, seed=1) / 8
    gain, bias = floats(shape[-1], seed=2), floats(shape[-1], seed=3)
    _, mean, scale = apply(ops.LayerNorm(1e-2), x, gain, bias)
    check(ops.LayerNorm(1e-2), x, gain, bias, dtype=dtype)
    check(ops.LayerNormGradient(), x, gain, mean, scale, g, dtype=dtype)
    _, scale = apply(ops.RmsNorm(1e-2), x, gain)
    check(ops.RmsNorm(1e-2), x, gain, dtype=dtype)
    check(ops.RmsNormGradient(), x, gain, scale, g, dtype=dtype)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (0, 2, 1)])
def test_norms_of_operands_in_any_layout(order: tuple[int, ...]) -> None:
    """The kernels read statistics as if they lay in a row."""
    x, gain, g = single(3, 4, 6), single(6, seed=1), single(3, 4, 6, seed=2)
    _, mean, scale = apply(ops.LayerNorm(1e-2), x, gain, gain)
    check_layouts(ops.LayerNorm(1e-2), [x, gain, gain], order)
    check_layouts(ops.LayerNormGradient(), [x, gain, mean, scale, g], order)
    check_layouts(ops.RmsNorm(1e-2), [x, gain], order)
    check_layouts(ops.RmsNormGradient(), [x, gain, scale, g], order)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_target_that_is_no_class_gives_nan(dtype: str) -> None:
    logits, known = single(4, CLASSES), np.array([True, True, False, False])
    targets = np.array([1, CLASSES - 1, CLASSES, -1 if dtype.startswith("i") else 99], dtype)
    loss, total = run(ops.CrossEntropy(), logits, targets)
    wanted = apply(ops.CrossEntropy(), logits[known], targets[known])
    assert_close(loss[known], wanted[0])
    assert np.isnan(loss[~known]).all()
    assert np.isfinite(total).all()
    (slope,) = run(ops.CrossEntropyGradient(), logits, targets, total, np.ones(4, np.float32))
    assert np.isfinite(slope[known]).all()
    assert np.isnan(slope[~known]).any(axis=1).all()


@pytest.mark.parametrize("target", range(3))
def test_cross_entropy_of_extreme_logits(target: int) -> None:
    rows = [[0, -1e8, 3], [1e8, 1e8 - 64, 0], [-np.inf, 0, 1], [1e30, -1e30, 0]]
    logits, targets = np.array(rows), np.full(4, target, np.int32)
    check(ops.CrossEntropy(), logits, targets, dtype="float32")
    _, total = apply(ops.CrossEntropy(), logits, targets)
    g = np.array([1, -2, 0.5, 0])
    check(ops.CrossEntropyGradient(), logits, targets, total, g, dtype="float32")


@pytest.mark.parametrize("dtype", FLOATS)
def test_numbers_far_from_zero(dtype: str) -> None:
    x = np.array([[0.0, -0.0, 88, -88, 1e-7], [3e4, -3e4, np.nan, -104, 5]])
    functions = (ops.Relu(), ops.Sigmoid(), ops.Gelu(False), ops.Gelu(True), ops.Silu())
    for op in (*functions, ops.Softmax(1), ops.LogSoftmax(1)):
        check(op, x, dtype=dtype)
    for op in (ops.GeluGradient(False), ops.GeluGradient(True), ops.SiluGradient()):
        check(op, x[0], np.ones(5), dtype=dtype)


def test_an_empty_batch_or_sequence() -> None:
    none, ids = single(0, 4), np.zeros(0, np.int32)
    for op in (ops.Softmax(1), ops.LogSoftmax(1), ops.Gelu(False), ops.Silu(), ops.Relu()):
        check(op, none)
    check(ops.CrossEntropy(), none, ids)
    check(ops.CrossEntropyGradient(), none, ids, none[:, 0], none[:, 0])
    for q, total in ((single(0, 4, 2, 4), single(0, 2, 4)), (single(3, 0, 2, 4), single(3, 2, 0))):
        check(ops.Attention(True, 1.0), q, q, q)
        check(ops.AttentionGradient(True, 1.0), q, q, q, q, total, q)
    check(ops.Rope(10.0, 0, False, False), single(2, 0, 2, 4))


@given(
    st.sampled_from([10.0, 1e4]), st.integers(-5, 2000), st.booleans(), st.booleans(),
    st.sampled_from([2, 6, 8]), st.sampled_from(FLOATS), st.sampled_from(["none", "one", "all"]),
)  # fmt: skip
def test_rope(base, offset, interleaved, inverse, width, dtype, positions) -> None:
    given = {"none": [], "one": [np.asarray(7, np.int32)], "all": [integers(2, 5, below=99)]}
    op = ops.Rope(base, offset, interleaved, inverse)
    check(op, floats(2, 5, 3, width), *given[positions], dtype=dtype)


# ------------------------------------------------------------------ windows


@st.composite
def sliding(draw, *, smallest_pad: bool = False):
    """Draw (sizes, window, stride, padding, dilation) of one to four dimensions that fit."""
    rank = draw(st.integers(1, 4))
    few = 2 if rank == 4 else 3

    def numbers(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    window, stride, dilation = numbers(1, few), numbers(1, 3), numbers(1, 2)
    before, after = numbers(0, 2), numbers(0, 2)
    if draw(st.booleans()):
        after = before
    if smallest_pad:
        dilation = (1,) * rank
        before, after = (tuple(map(min, pad, (w - 1 for w in window))) for pad in (before, after))
    extents = (d * (w - 1) + 1 for d, w in zip(dilation, window, strict=True))
    sizes = tuple(map(max, numbers(few, 5 if rank < 4 else 3), extents))
    return sizes, window, stride, tuple(zip(before, after, strict=True)), dilation


@given(sliding(), st.sampled_from([1, 2]), st.sampled_from(FLOATS))
def test_convolution(shape, groups: int, dtype: str) -> None:
    size, window, stride, padding, dilation = shape
    op = Convolution(stride, padding, dilation, groups)
    x, w = floats(2, 2 * groups, *size) / 2, floats(2 * groups, 2, *window, seed=1) / 2
    (y,) = apply(op, x, w)
    dy = floats(*y.shape, seed=2) / 4
    check(op, x, w, dtype=dtype)
    check(op.input_gradient(size), dy, w, dtype=dtype)
    check(op.weight_gradient(window), x, dy, dtype=dtype)


@given(sliding(smallest_pad=True), st.booleans(), st.booleans(), st.sampled_from(FLOATS))
def test_pooling(shape, ties: bool, count_padding: bool, dtype: str) -> None:
    size, window, stride, padding, _ = shape
    x = integers(2, 2, *size, below=3).astype(np.float64) if ties else floats(2, 2, *size)
    x = np.where(x == 0, -np.inf, x).astype(DType(dtype).numpy).astype(np.float64)
    op = MaxPool(window, stride, padding)
    (y,) = apply(op, x)
    dy = floats(*y.shape, seed=2)
    check(op, x, dtype=dtype)
    check(MaxPoolGradient(window, stride, padding), x, y, dy, dtype=dtype)
    mean = AvgPool(window, stride, padding, count_padding)
    check(mean, floats(2, 2, *size), dtype=dtype)
    check(AvgPoolGradient(window, stride, padding, count_padding, size), dy, dtype=dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("padding", [(0, 0), (1, 1), (1, 0)])
def test_integers(dtype: str, padding: tuple[int, int]) -> None:
    signed = dtype.startswith("i")
    x = (integers(2, 3, 6, below=100) - (101 if signed else 0)).astype(dtype)
    check(MaxPool((2,), (2,), (padding,)), x)
    check(ops.Relu(), x)
    check(ops.Relu(), (x + (50 if signed else 0)).astype(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 5), (2, 4, 3, 5), (2, 4, 2, 3, 2), (1, 2, 1, 1)])
def test_norms_of_channels(shape: tuple[int, ...], dtype: str) -> None:
    x, g = single(*shape), single(*shape, seed=2)
    gain, bias = single(shape[1], seed=1), single(shape[1], seed=3)
    _, average, variance, scale = apply(ops.BatchNorm(1e-2), x, gain, bias)
    (sums,) = apply(ops.ChannelSums(), x, average, g)
    count = x.size // shape[1]
    check(ops.BatchNorm(1e-2), x, gain, bias, dtype=dtype)
    check(ops.BatchNormGradient(), x, gain, average, scale, g, dtype=dtype)
    check(ops.ChannelMoments(), x, dtype=dtype)
    check(ops.NormalizeChannels(1e-2), x, gain, bias, average, variance, dtype=dtype)
    check(ops.ChannelSums(), x, average, g, dtype=dtype)
    check(ops.ChannelGradient(count), x, gain, average, scale, g, sums, dtype=dtype)
    for rows in ([], [gain, bias]):
        op = ops.GroupNorm(2, 1e-2)
        _, average, scale = apply(op, x, *rows)
        check(op, x, *rows, dtype=dtype)
        check(ops.GroupNormGradient(2), x, average, scale, g, *rows[:1], dtype=dtype)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 2, 3)])
def test_norms_of_channels_in_any_layout(order: tuple[int, ...]) -> None:
    x, g, gain = single(2, 4, 3, 5), single(2, 4, 3, 5, seed=2), single(4, seed=1)
    _, average, _, scale = apply(ops.BatchNorm(1e-2), x, gain, gain)
    check_layouts(ops.BatchNorm(1e-2), [x, gain, gain], order)
    check_layouts(ops.BatchNormGradient(), [x, gain, average, scale, g], order)
    check_layouts(ops.ChannelSums(), [x, average, g], order)
    _, average, scale = apply(ops.GroupNorm(2, 1e-2), x, gain, gain)
    check_layouts(ops.GroupNorm(2, 1e-2), [x, gain, gain], order)
    check_layouts(ops.GroupNormGradient(2), [x, average, scale, g, gain], order)
