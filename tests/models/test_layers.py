"""Every layer against the plain formula in numpy, its parameters, and what it refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mithril import models as ml
from mithril.errors import OptionError, ShapeError
from mithril.models.initializers import Constant, Normal, Uniform
from mithril.models.trace import trace
from mithril.types import DType, TensorType

from tests.models.evaluate import floats, integers, random, run
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def shapes(layer: ml.Layer, **types: TensorType) -> dict[str, tuple[int, ...]]:
    traced = trace(layer, types)
    return {v.name: v.type.shape for v in traced.graph.inputs if v.name in traced.parameter_names}


# ------------------------------------------------------------------ formulas


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6)])
def test_linear(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    out, p = run(ml.Linear(5), input=x)
    close(out["output"], x @ p["weight"].T + p["bias"])
    out, p = run(ml.Linear(5, False), input=x)
    assert list(p) == ["weight"]
    close(out["output"], x @ p["weight"].T)


@pytest.mark.parametrize(
    ("activation", "function"), [("gelu", gelu), ("relu", lambda x: np.maximum(x, 0))]
)
def test_feed_forward(activation: str, function) -> None:
    x = random(2, 3, 6)
    out, p = run(ml.FeedForward(16, activation=activation), input=x)
    hidden = function(x @ p["up.weight"].T + p["up.bias"])
    close(out["output"], hidden @ p["down.weight"].T + p["down.bias"])


def test_relu_and_gelu() -> None:
    x = random(4, 5)
    close(run(ml.Relu(), input=x)[0]["output"], np.maximum(x, 0))
    close(run(ml.Gelu(), input=x)[0]["output"], gelu(x))
    tanh = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    close(run(ml.Gelu(approximate=True), input=x)[0]["output"], tanh)


def test_layer_norm() -> None:
    x = 3 * random(2, 4, 6) + 1
    out, p = run(ml.LayerNorm(epsilon=0.1), input=x)
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 0.1)
    close(out["output"], normal * p["weight"] + p["bias"])


@pytest.mark.parametrize(("causal", "head_dim"), [(False, None), (True, None), (True, 5)])
def test_multi_head_attention(causal: bool, head_dim: int | None) -> None:
    x = random(2, 7, 8)
    out, p = run(ml.MultiHeadAttention(4, head_dim, causal=causal), input=x)
    size = head_dim or 2

    def heads(part: str) -> np.ndarray:
        projected = x @ p[f"{part}.weight"].T + p[f"{part}.bias"]
        return projected.reshape(2, 7, 4, size).transpose(0, 2, 1, 3)

    q, k, v = (heads(part) for part in "qkv")
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(size)
    if causal:
        scores = np.where(np.tril(np.ones((7, 7), bool)), scores, -np.inf)
    mixed = (softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(2, 7, 4 * size)
    close(out["output"], mixed @ p["o.weight"].T + p["o.bias"])


def test_embedding() -> None:
    ids = np.array([[1, 0, 9], [4, 4, 2]], np.int32)
    out, p = run(ml.Embedding(vocab_size=10, embedding_dim=4), input=ids)
    close(out["output"], p["weight"][ids])


def test_positional_encoding() -> None:
    x = random(2, 300, 6)
    position, feature = np.arange(300)[:, None], np.arange(6)
    angle = position / 10000 ** (2 * (feature // 2) / 6)
    table = np.where(feature % 2, np.cos(angle), np.sin(angle)).astype(np.float32)
    close(run(ml.PositionalEncoding(300), input=x)[0]["output"], x + table)
    out, p = run(ml.PositionalEncoding(512, learned=True), input=x)
    assert p["weight"].shape == (512, 6)
    close(out["output"], x + p["weight"][:300])


def test_add_and_flatten() -> None:
    model = ml.Model()
    model |= ml.Add()(inputs=["a", "b", "a"], output="sum")
    a, b = random(2, 3, 4), random(4, seed=1)
    close(run(model, a=a, b=b)[0]["sum"], a + b + a)
    close(run(ml.Flatten(), input=a)[0]["output"], a.reshape(2, 12))
    assert run(ml.Flatten(), input=random(0, 3, 4))[0]["output"].shape == (0, 12)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), ((1, 2), (2, 0))])
def test_conv2d(stride, padding) -> None:
    x = random(2, 3, 7, 6)
    out, p = run(ml.Conv2d(4, (3, 2), stride, padding), input=x)
    down, across = (stride, stride) if isinstance(stride, int) else stride
    rows, columns = (padding, padding) if isinstance(padding, int) else padding
    padded = np.pad(x, ((0, 0), (0, 0), (rows, rows), (columns, columns)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(2, 3))
    expected = np.einsum("bchwij,fcij->bfhw", windows[:, :, ::down, ::across], p["weight"])
    close(out["output"], expected + p["bias"][:, None, None])


@pytest.mark.parametrize(("kernel", "stride"), [(2, None), (3, 2), ((1, 2), None)])
def test_max_pool2d(kernel, stride) -> None:
    x = random(2, 3, 7, 6)
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    windows = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(2, 3))
    windows = windows[:, :, :: stride or height, :: stride or width]
    close(run(ml.MaxPool2d(kernel, stride), input=x)[0]["output"], windows.max((-1, -2)))


def test_losses() -> None:
    logits, target = random(2, 3, 5), np.array([[0, 4, 2], [1, 1, 3]], np.int32)
    picked = np.take_along_axis(softmax(logits), target[..., None], -1)
    close(run(ml.CrossEntropy(), input=logits, target=target)[0]["output"], -np.log(picked).mean())
    other = random(2, 3, 5, seed=1)
    error = run(ml.MeanSquaredError(), input=logits, target=other)[0]["output"]
    close(error, ((logits - other) ** 2).mean())


# ------------------------------------------------------------------ dropout


def test_dropout_drops_a_share_and_keeps_the_mean() -> None:
    x = np.ones((100, 100), np.float32)
    out = run(ml.Dropout(0.25), input=x)[0]["output"]
    assert set(np.unique(out)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((out == 0).mean() - 0.25) < 0.02


def test_dropout_follows_the_seed() -> None:
    x = np.ones((50, 50), np.float32)
    first, again, other = (run(ml.Dropout(0.5), input=x, seed=s)[0]["output"] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_two_dropouts_draw_different_masks() -> None:
    model = ml.Model()
    model |= ml.Dropout(0.5)(input="x", output="a")
    model |= ml.Dropout(0.5)(input="x", output="b")
    out, _ = run(model, x=np.ones((50, 50), np.float32))
    assert (out["a"] != out["b"]).any()


@pytest.mark.parametrize(("rate", "inference"), [(0.5, True), (0.0, False), (0, False)])
def test_dropout_does_nothing_without_a_seed(rate: float, inference: bool) -> None:
    traced = trace(ml.Dropout(rate), {"input": floats(4)}, inference=inference)
    assert not traced.uses_seed
    assert [value.name for value in traced.graph.inputs] == ["input"]


# ------------------------------------------------------------------ parameters


@pytest.mark.parametrize(("layer", "types", "expected"), [
    (ml.Linear(5), {"input": floats(2, 16)}, {"weight": (5, 16), "bias": (5,)}),
    (ml.Conv2d(4, 3), {"input": floats(2, 3, 8, 8)}, {"weight": (4, 3, 3, 3), "bias": (4,)}),
    (ml.Embedding(10, 4), {"input": integers(3)}, {"weight": (10, 4)}),
    (ml.MultiHeadAttention(2, 3), {"input": floats(1, 2, 8)}, {
        "q.weight": (6, 8), "q.bias": (6,), "k.weight": (6, 8), "k.bias": (6,),
        "v.weight": (6, 8), "v.bias": (6,), "o.weight": (8, 6), "o.bias": (8,),
    }),
])  # fmt: skip
def test_parameter_shapes(layer, types, expected) -> None:
    assert shapes(layer, **types) == expected


@pytest.mark.parametrize(
    ("layer", "types", "expected"),
    [
        (ml.Linear(5), {"input": floats(2, 16)}, {"weight": Uniform(0.25), "bias": Uniform(0.25)}),
        (
            ml.Conv2d(4, 2),
            {"input": floats(2, 4, 8, 8)},
            {"weight": Uniform(0.25), "bias": Uniform(0.25)},
        ),
        (ml.Embedding(10, 4), {"input": integers(3)}, {"weight": Normal(1.0)}),
        (ml.LayerNorm(), {"input": floats(2, 3)}, {"weight": Constant(1.0), "bias": Constant(0.0)}),
        (ml.PositionalEncoding(9, True), {"input": floats(2, 3)}, {"weight": Normal(0.02)}),
    ],
)
def test_initial_values(layer, types, expected) -> None:
    assert trace(layer, types).initializers == expected


def test_the_parts_of_a_layer_are_scopes() -> None:
    model = ml.Model()
    model += ml.MultiHeadAttention(2, name="attn")
    nodes = trace(model, {"input": floats(1, 4, 8)}).graph.nodes
    assert {"attn.q", "attn.k", "attn.v", "attn.o", "attn"} == {node.scope for node in nodes}


# ------------------------------------------------------------------ what layers refuse


@pytest.mark.parametrize(
    ("layer", "types", "text"),
    [
        (
            ml.Linear(5),
            {"input": floats()},
            "layer 'linear' needs an input [..., features], not the scalar float32[]",
        ),
        (
            ml.Linear(5),
            {"input": integers(2, 3)},
            "layer 'linear' needs an input of floats, not int32[2, 3]",
        ),
        (
            ml.Embedding(5, 2),
            {"input": floats(2, 3)},
            "layer 'embedding' needs integer ids, not float32[2, 3]; convert them with astype('int32')",
        ),
        (
            ml.MultiHeadAttention(3),
            {"input": floats(2, 3, 8)},
            "cannot divide 8 features among 3 heads",
        ),
        (
            ml.MultiHeadAttention(2),
            {"input": floats(3, 8)},
            "needs an input [batch, sequence, features], not float32[3, 8]",
        ),
        (
            ml.PositionalEncoding(4),
            {"input": floats(5, 8)},
            "takes sequences up to max_len=4, and the input has 5",
        ),
        (
            ml.PositionalEncoding(4),
            {"input": floats(5)},
            "needs an input [..., sequence, features], not float32[5]",
        ),
        (
            ml.Conv2d(3, 3),
            {"input": floats(3, 8, 8)},
            "needs an input [batch, channels, height, width]",
        ),
        (ml.Conv2d(3, 9), {"input": floats(1, 3, 8, 8)}, "larger than the input"),
        (
            ml.MaxPool2d(2),
            {"input": floats(8, 8)},
            "needs an input [batch, channels, height, width]",
        ),
        (ml.Flatten(), {"input": floats()}, "layer 'flatten' cannot flatten the scalar float32[]"),
        (
            ml.CrossEntropy(),
            {"input": floats(2, 5), "target": integers(3)},
            "must be integers of shape (2,), one class per position",
        ),
        (
            ml.CrossEntropy(),
            {"input": floats(2, 5), "target": floats(2)},
            "must be integers of shape (2,)",
        ),
        (
            ml.MeanSquaredError(),
            {"input": floats(2, 5), "target": floats(2)},
            "compares input float32[2, 5] with target float32[2]; give both the same shape",
        ),
        (ml.Gelu(name="act"), {"input": integers(2)}, "layer 'act'"),
    ],
)
def test_layers_refuse_what_does_not_fit(layer, types, text: str) -> None:
    with pytest.raises(ShapeError) as caught:
        trace(layer, types)
    assert text in str(caught.value)
    assert "layer '" in str(caught.value)


def test_a_shape_error_names_path_and_line() -> None:
    model, inner = ml.Model(), ml.Model(name="block")
    inner |= ml.Linear(3)(input="x", output="a")
    inner += ml.Add()(inputs=["x", "a"], output="y")
    model += inner
    with pytest.raises(
        ShapeError, match=r"\(2, 4\) and \(2, 3\).*'block.add_0'.*test_layers.py:\d+"
    ):
        trace(model, {"x": floats(2, 4)})


def test_add_needs_two() -> None:
    model = ml.Model()
    model |= ml.Add()(inputs=["x"], output="y")
    with pytest.raises(ShapeError, match="layer 'add_0' adds 1 tensor; give at least two"):
        trace(model, {"x": floats(2)})


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: ml.Linear(dimenson=3),
            "Linear has no option 'dimenson'; .*did you mean 'dimension'?",
        ),
        (ml.Linear, r"Linear needs option 'dimension'; write Linear\(dimension=…\)"),
        (lambda: ml.Linear(784, 128), "Linear option 'bias' is 128; it must be True or False"),
        (lambda: ml.Linear(1, True, 3), "Linear takes 2 options 'dimension', 'bias', not 3 values"),
        (lambda: ml.Linear(1, dimension=2), "Linear gets option 'dimension' twice"),
        (lambda: ml.Linear(0), "Linear option 'dimension' is 0; it must be a positive integer"),
        (lambda: ml.Linear(2.0), "Linear option 'dimension' is 2.0; it must be a positive integer"),
        (
            lambda: ml.Linear(True),
            "Linear option 'dimension' is True; it must be a positive integer",
        ),
        (lambda: ml.Dropout(1.0), "Dropout option 'rate' is 1.0; it must be a number from 0"),
        (
            lambda: ml.Conv2d(3, (3, 0)),
            "option 'kernel_size' is .*a positive integer or two of them",
        ),
        (lambda: ml.Conv2d(3, 3, padding=-1), "option 'padding' is -1"),
        (
            lambda: ml.FeedForward(3, "selu"),
            "option 'activation' is 'selu'; it must be one of 'elu', .* or a function of a tensor",
        ),
        (lambda: ml.LayerNorm(0), "option 'epsilon' is 0; it must be a positive, finite number"),
        (
            lambda: ml.LayerNorm(float("inf")),
            "option 'epsilon' is inf; it must be a positive, finite number",
        ),
        (lambda: ml.LeakyRelu(float("nan")), "'negative_slope' is nan; it must be a finite number"),
        (lambda: ml.Linear(4, device_id=-1), "Linear option device_id is -1; give the flat index"),
        (lambda: ml.Relu(device_id="cuda:0"), "Relu option device_id is 'cuda:0'; give the flat"),
        (lambda: ml.Pipeline(stages=[]), r"Pipeline option stages is \[\]; give a list of models"),
        (lambda: ml.MoE(num_experts=8), "MoE needs option 'expert_dim'; write "),
    ],
)
def test_options_are_checked_when_a_layer_is_made(make, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        make()


def test_options_by_position_and_by_name_are_the_same() -> None:
    assert (
        ml.MultiHeadAttention(4, 16, True).config
        == ml.MultiHeadAttention(head_dim=16, causal=True, num_heads=4).config
    )


def test_ids_may_be_of_any_integer_type() -> None:
    traced = trace(ml.Embedding(5, 2), {"input": TensorType((3,), DType.uint8)})
    assert traced.graph.outputs["output"].type == floats(3, 2)
