"""More layers against plain formulas: combining, pooling, normalising, gated and grouped ones."""

from __future__ import annotations

import math

import mithril as ml
import numpy as np
import pytest
from mithril.errors import GraphError, OptionError, ShapeError

from tests.models.evaluate import random, run
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]


def close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


def only(layer: ml.Layer, **inputs: np.ndarray) -> np.ndarray:
    return run(layer, **inputs)[0]["output"]


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


X = random(4, 6, 8)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (ml.Silu(), X * sigmoid(X)),
        (ml.Sigmoid(), sigmoid(X)),
        (ml.Tanh(), np.tanh(X)),
        (ml.Softmax(), np.exp(X) / np.exp(X).sum(-1, keepdims=True)),
        (ml.Softmax(1), np.exp(X) / np.exp(X).sum(1, keepdims=True)),
        (ml.Reshape((8, -1)), X.reshape(4, 8, 6)),
        (ml.Transpose(), X.swapaxes(1, 2)),
        (ml.Transpose((2, 0, 1)), X.transpose(2, 0, 1)),
        (ml.Mean(), X.mean()),
        (ml.Mean((0, -1), True), X.mean((0, 2), keepdims=True)),
        (ml.Mean(axis=1), X.mean(1)),
    ],
    ids=repr,
)
def test_layers_of_one_input(layer: ml.Layer, expected: np.ndarray) -> None:
    close(only(layer, input=X), expected)


Y, Z = random(4, 6, 8, seed=1) + 3, random(8, 5, seed=2)


@pytest.mark.parametrize(
    ("layer", "inputs", "expected"),
    [
        (ml.Subtract(), {"left": X, "right": Y[0]}, X - Y[0]),
        (ml.Divide(), {"left": X, "right": Y}, X / Y),
        (ml.MatMul(), {"left": X, "right": Z}, X @ Z),
    ],
    ids=repr,
)
def test_layers_of_two_inputs(layer: ml.Layer, inputs: dict, expected: np.ndarray) -> None:
    close(only(layer, **inputs), expected)


def test_several_inputs_and_outputs() -> None:
    model = ml.Model()
    model |= ml.Split(2, axis=1)(input="x", output_0="a", output_1="b")
    model |= ml.Multiply()(inputs=["a", "b", "y"], output="product")
    model |= ml.Concat(axis=1)(inputs=["product", "b"], output="both")
    y = random(4, 3, 8, seed=3)
    outputs, _ = run(model, x=X, y=y)
    a, b = X[:, :3], X[:, 3:]
    close(outputs["both"], np.concatenate([a * b * y, b], 1))
    assert list(outputs) == ["both"]


def test_outputs_may_follow_from_options() -> None:
    assert ml.Split(3).output_ports == ("output_0", "output_1", "output_2")
    with pytest.raises(GraphError, match="no input or output 'output_2'"):
        ml.Split(2)(input="x", output_2="y")


# ------------------------------------------------------------------ windows


def test_conv1d() -> None:
    x = random(2, 4, 9)
    layer = ml.Conv1d(filters=6, kernel_size=3, stride=2, padding=1, dilation=2, groups=2)
    outputs, p = run(layer, input=x)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1)))
    length = (9 + 2 - 2 * 2 - 1) // 2 + 1
    expected = np.zeros((2, 6, length), np.float32)
    for f in range(6):
        channels = slice(0, 2) if f < 3 else slice(2, 4)
        for t in range(length):
            window = padded[:, channels, 2 * t : 2 * t + 5 : 2]
            expected[:, f, t] = (window * p["weight"][f]).sum((1, 2)) + p["bias"][f]
    close(outputs["output"], expected)
    assert p["weight"].shape == (6, 2, 3)


@pytest.mark.parametrize(("dilation", "groups"), [(2, 1), ((1, 2), 2), ((2, 1), 4)])
def test_conv2d_dilated_and_in_groups(dilation: int | tuple[int, int], groups: int) -> None:
    x = random(2, 4, 7, 6)
    outputs, p = run(ml.Conv2d(8, (2, 3), dilation=dilation, groups=groups), input=x)
    assert p["weight"].shape == (8, 4 // groups, 2, 3)
    down, across = (dilation, dilation) if isinstance(dilation, int) else dilation
    height, width = 7 - down, 6 - 2 * across
    expected = np.zeros((2, 8, height, width), np.float32)
    for f in range(8):
        first = f // (8 // groups) * (4 // groups)
        for i in range(2):
            for j in range(3):
                rows = slice(i * down, i * down + height)
                columns = slice(j * across, j * across + width)
                part = x[:, first : first + 4 // groups, rows, columns]
                expected[:, f] += np.einsum("bchw,c->bhw", part, p["weight"][f, :, i, j])
    close(outputs["output"], expected + p["bias"][:, None, None])


@pytest.mark.parametrize("padding", [1, (1, 0)])
def test_max_pool_never_picks_the_padding(padding: int | tuple[int, int]) -> None:
    x = -1 - abs(random(2, 3, 7, 6))
    rows, columns = (padding, padding) if isinstance(padding, int) else padding
    room = ((0, 0), (0, 0), (rows, rows), (columns, columns))
    padded = np.pad(x, room, constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(2, 3))
    found = only(ml.MaxPool2d((3, 2), stride=1, padding=padding), input=x)
    close(found, windows.max((-1, -2)))
    assert (found < 0).all()


def test_dropout_drops_half_by_default() -> None:
    found = only(ml.Dropout(), input=np.ones((100, 100), np.float32))
    assert set(np.unique(found)) == {np.float32(0), np.float32(2)}


@pytest.mark.parametrize("counted", [True, False])
def test_avg_pool(counted: bool) -> None:
    x = random(2, 3, 5, 4)
    layer = ml.AvgPool2d((3, 2), stride=(2, 1), padding=(1, 0), count_include_pad=counted)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (0, 0)))
    present = np.pad(np.ones_like(x), ((0, 0), (0, 0), (1, 1), (0, 0)))
    rows = []
    for i in range(3):
        row = []
        for j in range(3):
            at = (..., slice(2 * i, 2 * i + 3), slice(j, j + 2))
            size = 6 if counted else present[at].sum((-1, -2))
            row.append(padded[at].sum((-1, -2)) / size)
        rows.append(np.stack(row, -1))
    close(only(layer, input=x), np.stack(rows, -2))


# ------------------------------------------------------------------ normalisation


def test_rms_norm() -> None:
    outputs, p = run(ml.RMSNorm(epsilon=0.1), input=X)
    scale = np.sqrt((X * X).mean(-1, keepdims=True) + 0.1)
    close(outputs["output"], X / scale * p["weight"])


def state() -> dict[str, np.ndarray]:
    return {"running_mean": random(6, seed=4), "running_variance": random(6, seed=5) ** 2 + 0.5}


def test_batch_norm_in_training() -> None:
    before = state()
    outputs, p = run(ml.BatchNorm(momentum=0.25), input=X, **before)
    mean, var = X.mean((0, 2)), X.var((0, 2))
    normal = (X - mean[:, None]) / np.sqrt(var[:, None] + 1e-5)
    close(outputs["output"], normal * p["weight"][:, None] + p["bias"][:, None])
    unbiased = X.var((0, 2), ddof=1)
    close(outputs["new_mean"], 0.75 * before["running_mean"] + 0.25 * mean)
    close(outputs["new_variance"], 0.75 * before["running_variance"] + 0.25 * unbiased)


def test_batch_norm_in_inference_uses_and_keeps_the_running_statistics() -> None:
    before = state()
    outputs, p = run(ml.BatchNorm(), inference=True, input=X, **before)
    scale = np.sqrt(before["running_variance"] + 1e-5)[:, None]
    normal = (X - before["running_mean"][:, None]) / scale
    close(outputs["output"], normal * p["weight"][:, None] + p["bias"][:, None])
    close(outputs["new_mean"], before["running_mean"])
    close(outputs["new_variance"], before["running_variance"])


def test_the_statistics_of_a_batch_learn_nothing() -> None:
    model = ml.Model()
    model |= ml.BatchNorm()(input="x", output="y", new_mean="mean", new_variance="var")
    compiled = ml.compile(model, ml.NumpyBackend(), differentiable=["x", "running_mean"])
    given = {"x": X, **state()}
    params = compiled.randomize_params()
    slopes = {"mean": np.ones(6, np.float32), "var": np.ones(6, np.float32)}
    _, gradients = compiled.evaluate(params, given, slopes)
    close(gradients["x"].numpy(), np.zeros_like(X))
    close(gradients["running_mean"].numpy(), np.full(6, 0.9, np.float32))


def test_a_batch_split_over_devices_is_one_batch() -> None:
    model = ml.Model()
    model |= ml.BatchNorm(name="bn")(input="x", output="y", new_mean="mean", new_variance="var")
    found = []
    for mesh in (None, ml.Mesh(data=4), ml.Mesh(data=3)):
        backend = ml.NumpyBackend(mesh)
        compiled = ml.compile(model, backend)
        x = backend.array(X, sharding=ml.P("data") if mesh else ml.P())
        outputs, gradients = compiled.evaluate(
            compiled.randomize_params(), {"x": x, **state()}, {"y": np.ones_like(X) * X}
        )
        found.append({**outputs, **gradients})
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, rtol=RTOL, atol=ATOL, err_msg=name)


# ------------------------------------------------------------------ gates, groups and rotations


def test_swiglu() -> None:
    outputs, p = run(ml.FeedForward(16, activation="swiglu", bias=False), input=X)
    assert set(p) == {"up.weight", "gate.weight", "down.weight"}
    gate = X @ p["gate.weight"].T
    close(outputs["output"], (gate * sigmoid(gate) * (X @ p["up.weight"].T)) @ p["down.weight"].T)
    split = ml.FeedForward(16, activation="swiglu", weight_shard_spec=[(0, None), (None, 0)])
    assert set(split.annotations) == {"up.weight", "gate.weight", "down.weight"}
    assert set(ml.FeedForward(16, weight_shard_spec=(0, None)).annotations) == {"up.weight"}


def rotated(x: np.ndarray, base: float) -> np.ndarray:
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@pytest.mark.parametrize(("rope", "base"), [(False, 0.0), (True, 1e4), (100.0, 100.0)])
def test_grouped_and_rotated_attention(rope: bool | float, base: float) -> None:
    layer = ml.MultiHeadAttention(4, num_kv_heads=2, causal=True, rope=rope, bias=False)
    outputs, p = run(layer, input=X)
    assert p["k.weight"].shape == (4, 8)
    q = (X @ p["q.weight"].T).reshape(4, 6, 4, 2)
    k, v = ((X @ p[f"{n}.weight"].T).reshape(4, 6, 2, 2) for n in "kv")
    if rope:
        q, k = rotated(q, base), rotated(k, base)
    k, v = np.repeat(k, 2, 2), np.repeat(v, 2, 2)
    scores = np.einsum("bshd,bthd->bhst", q, k) / math.sqrt(2)
    scores = np.where(np.tril(np.ones((6, 6), bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bhst,bthd->bshd", weights, v).reshape(4, 6, 8)
    close(outputs["output"], mixed @ p["o.weight"].T)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: only(ml.Split(4, axis=1), input=X), ShapeError, r"cannot cut dimension 1 \(6\)"),
        (
            lambda: only(ml.Reshape((3,)), input=np.float32(1)),
            ShapeError,
            "cannot reshape the scalar",
        ),
        (
            lambda: run(ml.BatchNorm(), input=X[0, 0], **state()),
            ShapeError,
            r"needs an input \[batch, channels, ...\]",
        ),
        (
            lambda: run(ml.BatchNorm(), input=X[:, :5], **state()),
            ShapeError,
            r"has running statistics float32\[6\] for 5 channels; give one number",
        ),
        (
            lambda: run(ml.BatchNorm(), input=X[:1, :, 0], **state()),
            ShapeError,
            "has 1 element per channel .* compile with inference=True",
        ),
        (
            lambda: only(ml.MultiHeadAttention(4, num_kv_heads=3), input=X),
            ShapeError,
            "cannot share 3 key and value heads among 4 heads; choose num_kv_heads that divides 4",
        ),
        (lambda: ml.MultiHeadAttention(4, rope=-1), OptionError, "'rope' is -1; it must be True"),
        (lambda: ml.Reshape(4), OptionError, "'shape' is 4; it must be a tuple of sizes"),
        (lambda: ml.Transpose("ab"), OptionError, "'order' is 'ab'; it must be a tuple of dim"),
        (lambda: ml.Mean("x"), OptionError, "'axis' is 'x'; it must be a dimension, a tuple"),
        (lambda: ml.BatchNorm(momentum=2), OptionError, "'momentum' is 2; it must be a number"),
        (lambda: ml.Conv1d(4, (3,)), OptionError, r"'kernel_size' is \(3,\); it must be a pos"),
        (lambda: ml.Conv2d(4, 3, dilation=0), OptionError, "'dilation' is 0; it must be a posit"),
        (lambda: ml.Conv2d(4, 3, groups=0), OptionError, "'groups' is 0; it must be a positive"),
        (lambda: ml.MaxPool2d(2, padding=-1), OptionError, "'padding' is -1; it must be an int"),
        (lambda: ml.FeedForward(4, ["gelu"]), OptionError, r"'activation' is \['gelu'\]; it must"),
        (
            lambda: only(ml.Conv2d(4, 3, groups=3), input=random(1, 6, 5, 5)),
            ShapeError,
            "has 4 output channels in 3 groups; choose .*'conv2d'",
        ),
        (
            lambda: only(ml.Conv2d(6, 3, groups=3), input=random(1, 4, 5, 5)),
            ShapeError,
            "has 4 input channels, but weight .* with 3 groups takes 3.*'conv2d'",
        ),
        (
            lambda: only(ml.MaxPool2d(2, padding=2), input=random(1, 4, 5, 5)),
            ShapeError,
            "max_pool has padding .* pad by less than the window.*'max_pool2d'",
        ),
        (lambda: only(ml.Softmax(3), input=X), ShapeError, "names dimension 3 .*'softmax'"),
        (lambda: only(ml.Transpose((0, 0, 1)), input=X), ShapeError, "by .0, 0, 1.; name every"),
        (lambda: only(ml.MatMul(), left=X, right=X), ShapeError, "cannot multiply .*'mat_mul'"),
        (lambda: only(ml.Silu(), input=np.ones(3, np.int32)), ShapeError, "'silu'"),
        (lambda: ml.Conv1d(4, 3, padding=-1), OptionError, "'padding' is -1; it must be an int"),
    ],
)
def test_mistakes(make, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_product_needs_two_tensors() -> None:
    model = ml.Model()
    model |= ml.Multiply()(inputs=["a"], output="b")
    with pytest.raises(ShapeError, match="multiplies 1 tensor; give at least two"):
        run(model, a=X)


def test_a_summary_with_shapes_says_what_layers_make_and_learn() -> None:
    model = ml.Model()
    model |= ml.Embedding(10, 4, name="table")(input="tokens", output="x")
    model += ml.Repeat(ml.Linear(4), 3, name="deep")(input="x", output="y")
    model |= ml.Split(2)(input="y", output_0="a", output_1="b")
    text = model.summary({"tokens": np.zeros((2, 5), np.int32)})
    lines = [line.split("  ") for line in text.splitlines()]
    rows = {row[0].strip(): [cell.strip() for cell in row if cell.strip()] for row in lines}
    assert "100 numbers to learn" in text.splitlines()[0]
    assert rows["table"][3:] == ["float32[2, 5, 4]", "weight", "40"]
    assert rows["deep"][3:] == ["float32[2, 5, 4]", "weight, bias", "60"]
    assert rows["split_0"][3:] == ["float32[2, 5, 2], float32[2, 5, 2]"]
    assert "makes" not in model.summary()
    with pytest.raises(ShapeError, match="shape of input 'tokens' is 3; give a tuple of integers"):
        model.summary({"tokens": 3})
    with pytest.raises(GraphError, match="needs input 'tokens'"):
        model.summary({})
