"""Options of attention against plain formulas, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.errors import GraphError, MithrilError, OptionError, ShapeError

from tests.models.evaluate import random, run
from tests.ops.rope_formulas import scaled_speeds
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
BATCH, LENGTH, HEADS, SIZE = 3, 6, 2, 4
X = random(BATCH, LENGTH, HEADS * SIZE)
Arrays = dict[str, np.ndarray]


def attend(options: dict[str, Any], **inputs: np.ndarray) -> tuple[np.ndarray, Arrays]:
    """Return what a layer of two heads makes of inputs, and its parameters by their own names."""
    model = ml.Model()
    model |= ml.MultiHeadAttention(HEADS, **options, name="attn")(
        **{name: f"the {name}" for name in inputs}, output="y"
    )
    outputs, params = run(model, **{f"the {name}": x for name, x in inputs.items()})
    return outputs["y"], {name.removeprefix("attn."): x for name, x in params.items()}


def heads(x: np.ndarray, p: Arrays, part: str) -> np.ndarray:
    projected = x @ p[f"{part}.weight"].T + p.get(f"{part}.bias", 0.0)
    return projected.reshape(*x.shape[:2], HEADS, -1)


def mix(q: np.ndarray, k: np.ndarray, v: np.ndarray, p: Arrays, scores=lambda s: s) -> np.ndarray:
    weights = scores(np.einsum("bshd,bthd->bhst", q, k))
    weights = np.exp(weights - weights.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed = np.einsum("bhst,bthe->bshe", weights, v)
    return mixed.reshape(*q.shape[:2], -1) @ p["o.weight"].T + p.get("o.bias", 0.0)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found, expected, rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ scores and what is seen


def test_scale_and_soft_cap_and_a_bias_besides_a_mask() -> None:
    bias = random(HEADS, LENGTH, LENGTH, seed=1)
    mask = np.arange(LENGTH) != 2
    found, p = attend({"scale": 2.0, "soft_cap": 1.5}, input=X, mask=mask, attention_bias=bias)
    q, k, v = (heads(X, p, part) for part in "qkv")
    expected = mix(
        q, k, v, p, lambda s: np.where(mask, 1.5 * np.tanh(2.0 * s / 1.5) + bias, -np.inf)
    )
    close(found, expected)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 4, 6, 100])
def test_a_window_hides_what_is_far(causal: bool, window: int) -> None:
    found, p = attend({"causal": causal, "sliding_window": window}, input=X)
    away = np.arange(LENGTH)[:, None] - np.arange(LENGTH)
    seen = (away < window) & ((away >= 0) if causal else (away > -window))
    q, k, v = (heads(X, p, part) for part in "qkv")
    close(found, mix(q, k, v, p, lambda s: np.where(seen, s / math.sqrt(SIZE), -np.inf)))


def test_a_window_that_hides_nothing_costs_nothing() -> None:
    def ops_of(window: int) -> list[str]:
        layer = ml.MultiHeadAttention(HEADS, causal=True, sliding_window=window)
        compiled = ml.compile(layer, ml.NumpyBackend(), shapes={"input": X.shape})
        return [node.op.name for node in compiled.plan.stages[0].program.graph.nodes]

    assert "iota" not in ops_of(LENGTH)
    assert "iota" in ops_of(LENGTH - 1)


def test_padding_is_hidden_as_in_pytorch_and_a_row_without_keys_is_zero() -> None:
    padding = np.zeros((BATCH, LENGTH), bool)
    padding[1, 4:], padding[2] = True, True
    found, _ = attend({"bias": False}, input=X, key_padding_mask=padding)
    whole, _ = attend({"bias": False}, input=X[1:2, :4])
    close(found[1:2, :4], whole)
    assert not found[2].any()


@pytest.mark.parametrize(
    "bias", [("q", "k", "v"), ("o",), [], ("v", "q")], ids=lambda parts: "".join(parts) or "none"
)
def test_biases_by_projection(bias: tuple[str, ...]) -> None:
    layer = ml.MultiHeadAttention(HEADS, bias=bias)
    assert {n for n in layer.parameters if n.endswith("bias")} == {f"{part}.bias" for part in bias}
    found, p = attend({"bias": bias}, input=X)
    q, k, v = (heads(X, p, part) for part in "qkv")
    close(found, mix(q, k, v, p, lambda s: s / math.sqrt(SIZE)))


def test_values_of_another_width() -> None:
    found, p = attend({"value_dim": 3, "head_dim": 5}, input=X)
    assert p["v.weight"].shape == (HEADS * 3, 8)
    assert p["o.weight"].shape == (8, HEADS * 3)
    q, k, v = (heads(X, p, part) for part in "qkv")
    close(found, mix(q, k, v, p, lambda s: s / math.sqrt(5)))


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_queries_and_keys_are_normalised(kind: str) -> None:
    found, p = attend({"qk_norm": kind}, input=X)

    def normal(x: np.ndarray, part: str) -> np.ndarray:
        if kind == "layer":
            x = x - x.mean(-1, keepdims=True)
        epsilon = 1e-5 if kind == "layer" else 1e-6
        scaled = x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)
        return scaled * p[f"{part}_norm.weight"] + p.get(f"{part}_norm.bias", 0.0)

    q, k = (normal(heads(X, p, part), part) for part in "qk")
    close(found, mix(q, k, heads(X, p, "v"), p, lambda s: s / math.sqrt(SIZE)))


# ------------------------------------------------------------------ positions


SCALINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128,
        "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.9,
    },
]  # fmt: skip


def turned(x: np.ndarray, at: np.ndarray, base: float, scaling: dict[str, Any]) -> np.ndarray:
    speeds, longer = scaled_speeds(base, x.shape[-1], scaling)
    angle = (at[..., None] * speeds)[..., None, :]
    left, right = np.split(x, 2, -1)
    cos, sin = np.cos(angle), np.sin(angle)
    return longer * np.concatenate([left * cos - right * sin, right * cos + left * sin], -1)


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s['rope_type']} {s['factor']}")
@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("name", ["numpy", "jax", "torch", "mlx"])
def test_rotation_reaches_further_as_in_transformers(name: str, base: float, scaling: dict) -> None:
    pytest.importorskip({"mlx": "mlx.core"}.get(name, name))
    backend = ml.open_backend(name)
    x, at = random(2, 5, 3, 16), np.int32([[0, 1, 2, 3, 4], [7, 60, 3, 0, 99]])
    found = mnp.rope(backend.array(x), at, base=base, scaling=scaling).numpy()
    close(found, turned(x, at, base, scaling))
    counted = mnp.rope(backend.array(x), base=base, scaling=scaling).numpy()
    close(counted, turned(x, np.arange(5), base, scaling))


def test_positions_turn_queries_and_keys() -> None:
    at = np.int32([[0, 1, 2, 0, 1, 2], [3, 4, 5, 6, 7, 8], [9, 0, 9, 0, 9, 0]])
    options = {"rope": 100.0, "rope_scaling": SCALINGS[0], "causal": True}
    found, p = attend(options, input=X, positions=at)
    q, k = (turned(heads(X, p, part), at, 100.0, SCALINGS[0]) for part in "qk")
    seen = np.tri(LENGTH, dtype=bool)
    close(found, mix(q, k, heads(X, p, "v"), p, lambda s: np.where(seen, s / 2, -np.inf)))


def test_keys_of_another_sequence_have_positions_of_their_own() -> None:
    other, at, theirs = (
        random(BATCH, 4, 8, seed=2),
        np.int32([5, 4, 3, 2, 1, 0]),
        np.int32([1, 3, 5, 7]),
    )
    found, p = attend({"rope": True}, input=X, key=other, positions=at, key_positions=theirs)
    plain = {"rope_type": "linear", "factor": 1.0}
    q = turned(heads(X, p, "q"), at, 1e4, plain)
    k = turned(heads(other, p, "k"), theirs, 1e4, plain)
    close(found, mix(q, k, heads(other, p, "v"), p, lambda s: s / 2))


# ------------------------------------------------------------------ what is refused

SQUARE = random(LENGTH, LENGTH, 8)
KEYS = random(BATCH, 4, 8)


@pytest.mark.parametrize(
    ("options", "inputs", "error", "text"),
    [
        ({}, {"input": SQUARE, "mask": np.ones((LENGTH, LENGTH), bool)}, ShapeError, r"cannot tell whether mask bool\[6, 6\] is \[batch, keys\] or \[queries, keys\]; give padding as key_padding_mask, .* \[1, 6, 6\]"),
        ({}, {"input": X, "mask": np.ones((BATCH, LENGTH), bool)}, ShapeError, r"mask bool\[3, 6\], which is \[batch, keys\]; give padding as key_padding_mask"),
        ({}, {"input": X, "key_padding_mask": np.ones((LENGTH, BATCH), bool)}, ShapeError, r"has key_padding_mask bool\[6, 3\]; give booleans \[3, 6\]"),
        ({}, {"input": X, "key_padding_mask": random(BATCH, LENGTH)}, ShapeError, r"key_padding_mask float32\[3, 6\]; give booleans"),
        ({}, {"input": X, "attention_bias": np.ones((LENGTH, LENGTH), bool)}, ShapeError, r"a bias bool\[6, 6\]; give floats, .* and booleans as a mask"),
        ({}, {"input": X, "attention_bias": random(5, LENGTH)}, ShapeError, r"and a mask float32\[1, 1, 5, 6\]; give booleans"),
        ({}, {"input": X, "value": X}, GraphError, "has value connected and not key"),
        ({}, {"input": X, "key": KEYS, "value": X}, ShapeError, "batches must be equal, and keys as many as values"),
        ({}, {"input": X, "key": KEYS[:2]}, ShapeError, "batches must be equal"),
        ({}, {"input": X, "key": KEYS[0]}, ShapeError, r"needs an input \[batch, other, features\]"),
        ({}, {"input": X, "positions": np.arange(LENGTH, dtype=np.int32)}, GraphError, "has positions connected, which only rope looks at; give rope=True"),
        ({"rope": True}, {"input": X, "key_positions": np.arange(LENGTH, dtype=np.int32)}, GraphError, "has key_positions connected and not key"),
        ({"rope_scaling": SCALINGS[0]}, {"input": X}, OptionError, "has rope_scaling and no rope that it could be for; give rope=True"),
        ({"soft_cap": 5.0, "context_parallel": "ring"}, {"input": X}, OptionError, "has soft_cap=5.0 and context_parallel='ring', whose blocks are computed by kernels without one"),
    ],
)  # fmt: skip
def test_refusals(options: dict, inputs: Arrays, error: type[MithrilError], text: str) -> None:
    with pytest.raises(error, match=text):
        attend(options, **inputs)


def test_a_square_mask_of_three_dimensions_is_no_padding() -> None:
    seen = np.tri(LENGTH, dtype=bool)
    found, _ = attend({}, input=SQUARE, mask=seen[None])
    expected, _ = attend({"causal": True}, input=SQUARE)
    close(found, expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"bias": ("q", "w")}, r"'bias' is \('q', 'w'\); it must be True, False, or a tuple of 'q', 'k', 'v', 'o'"),
        ({"qk_norm": "l2"}, "'qk_norm' is 'l2'; it must be 'rms', 'layer' or None"),
        ({"scale": 0}, "'scale' is 0; it must be a positive number or None"),
        ({"sliding_window": 0}, "'sliding_window' is 0; it must be a positive integer or None"),
        ({"rope_scaling": "yarn"}, r"rope_scaling is a str; give a mapping, such as \{'rope_type'"),
        ({"rope_scaling": {"rope_type": "yrn"}}, "rope_type='yrn'; choose 'linear', 'llama3', 'yarn'; did you mean 'yarn'?"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_type=None; choose"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling 'linear' needs 'factor'; give all of 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2, "beta": 1}}, "rope_scaling 'linear' has no 'beta'; it takes 'factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, "rope_scaling 'linear' has factor=-1; give a positive number"),
        ({"rope_scaling": {**SCALINGS[1], "low_freq_factor": 5.0}}, "has low_freq_factor=5.0 and high_freq_factor=4.0; the second must be larger"),
    ],
)  # fmt: skip
def test_options_are_refused_when_the_layer_is_made(options: dict, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ml.MultiHeadAttention(HEADS, rope=True, **options)


def test_a_window_of_the_function_is_positive() -> None:
    x = ml.NumpyBackend().ones((1, 2, 1, 2))
    with pytest.raises(OptionError, match="has sliding_window=0; give at least 1"):
        mnp.attention(x, x, x, sliding_window=0)
