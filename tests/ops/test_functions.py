"""The functions over operands: what they add to the ops, and that they are NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.ir import Builder
from mithril.testing.cases import CUBE, X, floats, integers
from mithril.testing.evaluate import apply, assert_close, type_of
from mithril.types import DType, TensorType

from tests.ops.test_properties import call

IMAGE, WEIGHT = floats(2, 4, 6, 5), floats(8, 2, 3, 2, seed=1)


def op_of(function, *arrays: np.ndarray):
    """Return the last op that a function records."""
    builder = Builder()
    function(*(builder.input(type_of(array), "x") for array in arrays))
    return builder.build({}).nodes[-1].op


def test_convolution_spreads_its_options_over_the_dimensions() -> None:
    op = op_of(lambda x, w: ops.convolution(x, w, groups=2), IMAGE, WEIGHT)
    assert op == ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), 2)
    options = {"stride": 2, "padding": 1, "dilation": (1, 2)}
    op = op_of(lambda x, w: ops.convolution(x, w, groups=2, **options), IMAGE, WEIGHT)
    assert op == ops.Convolution((2, 2), ((1, 1), (1, 1)), (1, 2), 2)
    op = op_of(lambda x, w: ops.convolution(x, w, groups=2, padding=(1, (0, 2))), IMAGE, WEIGHT)
    assert op.padding == ((1, 1), (0, 2))


def test_windows_take_integers_of_numpy() -> None:
    two, one = np.int64(2), np.int8(1)
    options = {"stride": two, "padding": one, "dilation": np.array([1, 2]), "groups": two}
    op = op_of(lambda x, w: ops.convolution(x, w, **options), IMAGE, WEIGHT)
    assert op == ops.Convolution((2, 2), ((1, 1), (1, 1)), (1, 2), 2)
    op = op_of(lambda x: ops.max_pool(x, two, padding=np.array([[1, 0], [0, 1]])), IMAGE)
    assert op == ops.MaxPool((2, 2), (2, 2), ((1, 0), (0, 1)))
    weight = floats(4, 3, 3, 2)
    options = {"stride": two, "padding": one, "output_padding": one, "groups": two}
    op = op_of(lambda x, w: ops.conv_transpose(x, w, **options), IMAGE, weight)
    assert (op.stride, op.padding, op.groups) == ((2, 2), ((1, 1), (1, 1)), 2)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3])
def test_padding_same_gives_a_result_for_each_step(stride: int, size: int) -> None:
    jax = pytest.importorskip("jax")
    x, w = (a.astype("float32") for a in (floats(2, 3, 7, 8), floats(4, 3, size, size, seed=1)))
    found = call(
        lambda a, b: ops.convolution(a, b, stride=stride, dilation=2, padding="same"), x, w
    )
    expected = jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", rhs_dilation=(2, 2))
    assert_close(found, np.asarray(expected))
    pooled = call(lambda a: ops.max_pool(a, size, stride=stride, padding="same"), x)
    window, steps = (1, 1, size, size), (1, 1, stride, stride)
    expected = jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, steps, "SAME")
    assert_close(pooled, np.asarray(expected))


def test_padding_valid_is_none() -> None:
    op = op_of(lambda x, w: ops.convolution(x, w, groups=2, padding="valid"), IMAGE, WEIGHT)
    assert op.padding == ((0, 0), (0, 0))
    op = op_of(lambda x: ops.avg_pool(x, 2, padding="valid"), IMAGE)
    assert op.padding == ((0, 0), (0, 0))


def test_a_dilation_of_another_length_is_never_cut() -> None:
    x, w = TensorType((2, 3, 6), DType.float32), TensorType((4, 3, 2), DType.float32)
    op = ops.Convolution((1,), ((0, 0),), (1, 1), 1)
    with pytest.raises(ValueError, match="shorter"):
        op.rule([x, w], [x.with_shape((2, 4, 5))])


def test_convolution_promotes_its_operands() -> None:
    x, w = IMAGE.astype("float32"), WEIGHT
    found = call(lambda a, b: ops.convolution(a, b, groups=2), x, w)
    assert_close(found, call(lambda a, b: ops.convolution(a, b, groups=2), x.astype("float64"), w))


def test_max_pool_steps_by_its_window() -> None:
    op = op_of(lambda x: ops.max_pool(x, (2, 1)), IMAGE)
    assert op == ops.MaxPool((2, 1), (2, 1), ((0, 0), (0, 0)))
    op = op_of(lambda x: ops.max_pool(x, 3, stride=1, padding=(1, (0, 2))), IMAGE)
    assert op == ops.MaxPool((3, 3), (1, 1), ((1, 1), (0, 2)))


def test_cost_of_a_convolution_counts_its_multiplications() -> None:
    op = ops.Convolution((1, 1), ((0, 0), (0, 0)), (1, 1), 2)
    types = [type_of(IMAGE), type_of(WEIGHT)]
    (y,) = op.infer(types)
    assert y.shape == (2, 8, 4, 4)
    expected = 2 * y.size * (2 * 3 * 2)
    assert op.cost(types, [y]).flops == expected
    for gradient, operands in (
        (op.input_gradient((6, 5)), [y, types[1]]),
        (op.weight_gradient((3, 2)), [types[0], y]),
    ):
        assert gradient.cost(operands, gradient.infer(operands)).flops == expected


def test_cost_of_a_contraction_counts_its_multiplications() -> None:
    types = [TensorType((4, 6), DType.float32), TensorType((6, 8), DType.float32)]
    op = ops.Einsum("mk,kn->mn")
    assert op.cost(types, op.infer(types)).flops == 2 * 4 * 6 * 8


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: x + 1, X + 1),
        (lambda x: 1 - x, 1 - X),
        (lambda x: 2.5 * x, 2.5 * X),
        (lambda x: 1 / x, 1 / X),
        (lambda x: x**2, X**2),
        (lambda x: 2.0**x, 2.0**X),
        (lambda x: -x, -X),
        (lambda x: (x > 0) & ~(x > 1), (X > 0) & ~(X > 1)),
        (lambda x: (x < 0) | (x >= 1), (X < 0) | (X >= 1)),
        (lambda x: x <= np.float64(0.5), X <= 0.5),
        (lambda x: (x == x[0]) != (x != x[0]), np.ones_like(X, bool)),
        (lambda x: ops.where(x > 0, 1, x), np.where(X > 0, 1, X)),
        (lambda x: ops.where(x > 0, 1.5, 0), np.where(X > 0, 1.5, 0).astype("float32")),
        (lambda x: ops.where(x > 0, 1, 0), np.where(X > 0, 1, 0).astype("int32")),
        (lambda x: ops.maximum(x, 0), np.maximum(X, 0)),
        (lambda x: x.T @ x, X.T @ X),
        (lambda x: x.reshape(-1, 3), X.reshape(-1, 3)),
        (lambda x: x.transpose(), X.transpose()),
        (lambda x: x.mean(), X.mean()),
        (lambda x: ops.mean(x > 0), np.mean(X > 0, dtype="float32")),
        (ops.argmax, np.argmax(X).astype("int32")),
        (lambda x: ops.argmax(x, keepdims=True), np.argmax(X, keepdims=True).astype("int32")),
        (
            lambda x: ops.argmin(x, -1, keepdims=True),
            np.argmin(X, 1, keepdims=True).astype("int32"),
        ),
        (ops.any, np.any(X)),
        (lambda x: ops.all(x > 0, 0), np.all(X > 0, 0)),
        (lambda x: ops.concatenate([x, x], -1), np.concatenate([X, X], -1)),
        (lambda x: ops.broadcast_to(x, (2, 4, 6)), np.broadcast_to(X, (2, 4, 6))),
        (lambda x: ops.iota(x, (2, 3), -1), np.array([[0, 1, 2]] * 2, "int32")),
    ],
)
def test_functions_and_operators_are_numpys(function, expected) -> None:
    assert_close(call(function, X), np.asarray(expected))


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda n: n + 1, "int8"),
        (lambda n: n * 0.5, "float32"),
        (lambda n: n / n, "float32"),
        (lambda n: n**2, "int8"),
        (lambda n: n**0.5, "float32"),
        (lambda n: (n > 0) + 1, "int32"),
        (lambda n: n.astype("int16") + n, "int16"),
        (lambda n: n.mean(), "float32"),
        (lambda n: ops.one_hot(n, 4), "float32"),
        (lambda n: ops.one_hot(n, 4, "bfloat16"), "bfloat16"),
    ],
)
def test_dtype_of_results_over_int8(function, dtype: str) -> None:
    found = call(function, 1 + integers(4, 6, below=3, dtype="int8"))
    assert found.dtype == DType(dtype).numpy


def test_a_dimension_may_be_a_numpy_integer() -> None:
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(call(lambda x: x.sum(np.int64(1)), x), x.sum(1))
    np.testing.assert_array_equal(call(lambda x: ops.argmax(x, np.int32(0)), x), x.argmax(0))


def test_mean_of_float16_does_not_overflow() -> None:
    found = call(lambda x: x.mean(), np.full(4096, 100.0, "float16"))
    assert found == np.float16(100.0)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.reshape(2, 4, 6),
        lambda x: x.transpose(0, 1, 2),
        lambda x: x.astype("float64"),
        lambda x: x[...],
        lambda x: ops.broadcast_to(x, (2, 4, 6)),
        lambda x: ops.dropout(x, None, 0.0),
    ],
)
def test_what_changes_nothing_records_nothing(function) -> None:
    builder = Builder()
    x = builder.input(type_of(CUBE), "x")
    assert function(x) is x
    assert not builder.build({}).nodes


def test_attention_scales_by_the_size_of_a_head() -> None:
    q = floats(2, 4, 2, 9)
    op = op_of(ops.attention, q, q, q)
    assert op == ops.Attention(False, 1 / 3)
    assert op_of(lambda *x: ops.attention(*x, causal=True, scale=2), q, q, q) == ops.Attention(
        True, 2.0
    )


def test_layer_norm_softmax_gelu_and_cross_entropy_build_their_ops() -> None:
    gain = floats(6)
    assert op_of(ops.layer_norm, X, gain, gain) == ops.LayerNorm(1e-5)
    assert op_of(ops.softmax, CUBE) == ops.Softmax(2)
    assert op_of(lambda x: ops.log_softmax(x, 0), CUBE) == ops.LogSoftmax(0)
    assert op_of(lambda x: ops.gelu(x, approximate=True), X) == ops.Gelu(True)
    assert op_of(ops.rms_norm, X, gain) == ops.RmsNorm(1e-6)
    assert op_of(ops.silu, X) == ops.Silu()
    assert op_of(ops.rope, floats(1, 4, 2, 6)) == ops.Rope(10000.0, 0, False, False)
    assert op_of(ops.cross_entropy, X, integers(4)) == ops.CrossEntropy()
    found = call(ops.cross_entropy, X, integers(4))
    assert_close(found, apply(ops.CrossEntropy(), X, integers(4))[0])


def test_take_and_scatter_add_are_each_others_transpose() -> None:
    table, ids, g = floats(6, 3), integers(8), floats(8, 3, seed=1)
    taken = call(ops.take, table, ids)
    added = call(lambda i, u: ops.scatter_add(i, u, 6), ids, g)
    assert_close(np.sum(taken * g), np.sum(table * added))


SEED = np.asarray(5, np.uint32)


def test_uniform_numbers_fill_the_unit_interval_evenly() -> None:
    found = call(lambda seed: ops.uniform(seed, (100, 100)), SEED)
    assert found.dtype == np.float32
    assert 0 <= found.min() < 0.001
    assert 0.999 < found.max() < 1
    counts = np.histogram(found, 10, (0.0, 1.0))[0]
    assert abs(counts - 1000).max() < 150  # 5 standard deviations
    bits = call(lambda seed: ops.random_bits(seed, (100, 100)), SEED)
    assert (found == (bits >> 8) / 2**24).all()


@pytest.mark.parametrize("probability", [0.0, 0.25, 0.9, 1.0])
def test_bernoulli_is_true_with_its_probability(probability: float) -> None:
    found = call(lambda seed: ops.bernoulli(seed, (100, 100), probability), SEED)
    assert found.dtype == bool
    assert abs(found.mean() - probability) <= 5 * (probability * (1 - probability)) ** 0.5 / 100


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_keeps_its_share_and_its_mean(rate: float) -> None:
    found = call(lambda x, seed: ops.dropout(x, seed, rate), np.ones((100, 100)), SEED)
    assert abs((found == 0).mean() - rate) < 0.02  # 4 standard deviations at most
    assert_close(found[found != 0], np.full(int((found != 0).sum()), 1 / (1 - rate)))


def test_public_names_do_not_leak_helpers() -> None:
    import importlib

    for name in (
        "attention",
        "conv",
        "index",
        "loss",
        "nn",
        "normalization",
        "position",
        "random",
        "reduce",
    ):
        module = importlib.import_module(f"mithril.ops.{name}")
        for public in module.__all__:
            assert getattr(module, public).__module__ == module.__name__, public
