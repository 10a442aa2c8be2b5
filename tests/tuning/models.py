"""Models that are tuned in tests: small ones of each kind."""

from __future__ import annotations

import mithril as ml

H100 = "h100-sxm"
IDS = ml.TensorSpec((16, 32), "int32")
TOKENS = {"ids": IDS, "target": IDS}


def make_mlp(hidden: int = 64, out: int = 8) -> ml.Model:
    """Return two linear layers with a relu between."""
    model = ml.Model()
    model |= ml.Linear(hidden, name="up")(input="x", output="h")
    model += ml.Relu(name="act")
    model += ml.Linear(out, name="down")(output="y")
    return model


def make_chain(*widths: int) -> ml.Model:
    """Return linear layers one after another."""
    model = ml.Model()
    for number, width in enumerate(widths):
        model += ml.Linear(width, name=f"layer_{number}")
    return model


def make_deep(layers: int = 6, width: int = 32) -> ml.Model:
    """Return linear layers one after another, with a loss."""
    model = ml.Model()
    for number in range(layers):
        model += ml.Linear(width, name=f"layer_{number}")
    model += ml.MeanSquaredError(name="end")(target="t", output="loss")
    return model


def make_gpt(layers: int = 4, width: int = 64, vocabulary: int = 512) -> ml.Model:
    """Return a GPT with its loss, its blocks in one loop; heads are shared by groups."""
    block = ml.Model()
    attention = ml.MultiHeadAttention(
        num_heads=8, num_kv_heads=4, causal=True, rope=True, bias=False, name="attn"
    )
    block |= ml.RMSNorm(name="norm1")(input="x", output="n1")
    block |= attention(input="n1", output="a")
    block |= ml.Add(name="add1")(inputs=["x", "a"], output="m")
    block |= ml.RMSNorm(name="norm2")(input="m", output="n2")
    mlp = ml.FeedForward(4 * width, activation="swiglu", bias=False, name="mlp")
    block |= mlp(input="n2", output="f")
    block |= ml.Add(name="add2")(inputs=["m", "f"], output="y")
    model = ml.Model()
    model |= ml.Embedding(vocabulary, width, name="embed")(input="ids", output="x0")
    model |= ml.Repeat(block, layers, name="blocks")(input="x0", output="x1")
    model |= ml.Linear(vocabulary, bias=False, name="head")(input="x1", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")
    return model
