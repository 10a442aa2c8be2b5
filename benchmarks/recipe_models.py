"""Twenty models to split, with sizes that are drawn: what recipes and a search are held against.

Layers bear the names that recipes go by (`recipe_strategies`): `attn`, `mlp`, `up` and `down`,
`conv1` and `conv2`, `embed`, `head`, `experts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mithril as ml

from benchmarks.recipe_draw import Case, Draw, Shapes


def _chain(model: ml.Model, blocks: list[ml.Model], first: str, last: str) -> None:
    """Put blocks one after another into a model."""
    between = [first, *(f"x{i}" for i in range(1, len(blocks))), last]
    for block, given, made in zip(blocks, between, between[1:], strict=False):
        model |= block(x=given, y=made)


# ------------------------------------------------------------------ layers of perceptrons


def _mlp(draw: Draw, width: int, batch: int, layers: int) -> Case:
    model = ml.Model()
    for i in range(layers):
        last = "y" if i == layers - 1 else f"x{i + 1}"
        model |= ml.Linear(4 * width, name=f"up{i}")(input=f"x{i}", output=f"a{i}")
        model |= ml.Gelu()(input=f"a{i}", output=f"b{i}")
        model |= ml.Linear(width, name=f"down{i}")(input=f"b{i}", output=last)
    return Case(model, {"x0": ((batch, width), "float32")})


def narrow_mlp(draw: Draw) -> Case:
    return _mlp(draw, draw.width(64, 256), draw.batch(1024, 8192), 4)


def wide_mlp(draw: Draw) -> Case:
    return _mlp(draw, draw.width(2048, 8192), draw.batch(64, 1024), 2)


def autoencoder(draw: Draw) -> Case:
    width, features = draw.width(128, 1024), draw.width(2048, 16384)
    model = ml.Model()
    model |= ml.Linear(width, name="up0")(input="x", output="a")
    model |= ml.Relu()(input="a", output="b")
    model |= ml.Linear(width // 4, name="down0")(input="b", output="code")
    model |= ml.Linear(width, name="up1")(input="code", output="c")
    model |= ml.Relu()(input="c", output="d")
    model |= ml.Linear(features, name="down1")(input="d", output="y")
    return Case(model, {"x": ((draw.batch(256, 4096), features), "float32")})


def recommender(draw: Draw) -> Case:
    """Tables of embeddings, of which most weights are, and a tower behind them."""
    width, batch, model = draw.width(64, 128), draw.batch(2048, 8192), ml.Model()
    shapes: dict[str, tuple[tuple[int, ...], str]] = {}
    rows = max(1024, draw.size(1 << 17, 1 << 20) // draw.shrink)
    for i in range(3):
        model |= ml.Embedding(rows, width, name=f"embed{i}")(input=f"id{i}", output=f"e{i}")
        shapes[f"id{i}"] = (batch,), "int32"
    model |= ml.Concat(1)(inputs=["e0", "e1", "e2"], output="joined")
    model |= ml.Linear(4 * width, name="up")(input="joined", output="a")
    model |= ml.Relu()(input="a", output="b")
    model |= ml.Linear(width, name="down")(input="b", output="y")
    return Case(model, shapes)


# ------------------------------------------------------------------ images


def _image(draw: Draw, side: int) -> Shapes:
    return {"x": ((draw.batch(64, 256), 3, side, side), "float32")}


def cnn(draw: Draw) -> Case:
    width, model = draw.width(64, 128), ml.Model()
    model |= ml.Conv2d(width, 3, padding=1, name="conv1")(input="x", output="a")
    model |= ml.Relu()(input="a", output="b")
    model |= ml.MaxPool2d(kernel_size=2)(input="b", output="c")
    model |= ml.Conv2d(2 * width, 3, padding=1, name="conv2")(input="c", output="d")
    model |= ml.Relu()(input="d", output="e")
    model |= ml.Flatten()(input="e", output="f")
    model |= ml.Linear(4 * width, name="up")(input="f", output="g")
    model |= ml.Relu()(input="g", output="h")
    model |= ml.Linear(16, name="down")(input="h", output="y")
    return Case(model, _image(draw, 32))


def _residual(channels: int, name: str) -> ml.Model:
    block = ml.Model(name=name)
    block |= ml.Conv2d(channels, 3, padding=1, name="conv1")(input="x", output="a")
    block |= ml.GroupNorm(8, name="norm1")(input="a", output="b")
    block |= ml.Relu()(input="b", output="c")
    block |= ml.Conv2d(channels, 3, padding=1, name="conv2")(input="c", output="d")
    block |= ml.GroupNorm(8, name="norm2")(input="d", output="e")
    block |= ml.Add()(inputs=["x", "e"], output="f")
    block |= ml.Relu()(input="f", output="y")
    return block


def resnet(draw: Draw) -> Case:
    width, model = draw.width(64, 256), ml.Model()
    model |= ml.Conv2d(width, 3, padding=1, stride=2, name="stem")(input="x", output="x0")
    _chain(model, [_residual(width, f"block{i}") for i in range(2)], "x0", "seen")
    model |= ml.GlobalAvgPool()(input="seen", output="pooled")
    model |= ml.Linear(64, name="head")(input="pooled", output="y")
    return Case(model, _image(draw, 64))


def unet(draw: Draw) -> Case:
    width, model = draw.width(32, 128), ml.Model()
    model |= ml.Conv2d(width, 3, padding=1, name="conv1")(input="x", output="a")
    model |= ml.Relu()(input="a", output="fine")
    model |= ml.MaxPool2d(kernel_size=2)(input="fine", output="b")
    model |= ml.Conv2d(2 * width, 3, padding=1, name="conv2")(input="b", output="c")
    model |= ml.Relu()(input="c", output="coarse")
    model |= ml.ConvTranspose2d(width, 2, stride=2, name="grow")(input="coarse", output="d")
    model |= ml.Concat(1)(inputs=["fine", "d"], output="e")
    model |= ml.Conv2d(width, 3, padding=1, name="conv3")(input="e", output="f")
    model |= ml.Relu()(input="f", output="g")
    model |= ml.Conv2d(4, 1, name="head")(input="g", output="y")
    return Case(model, _image(draw, 64))


def vit(draw: Draw) -> Case:
    width, model = draw.width(256, 1024), ml.Model()
    model |= ml.Linear(width, name="patches")(input="x", output="e")
    model |= ml.PositionalEncoding(max_len=64, learned=True, name="position")(
        input="e", output="x0"
    )
    blocks = [draw.block(width, 8, causal=False, name=f"block{i}") for i in range(2)]
    _chain(model, blocks, "x0", "seen")
    model |= ml.Mean(1)(input="seen", output="pooled")
    model |= ml.Linear(64, name="head")(input="pooled", output="y")
    shapes = {"x": ((draw.batch(64, 512), 64, 192), "float32")}
    return Case(model, shapes, streams=("block?.middle",))


# ------------------------------------------------------------------ text


def _finish(model: ml.Model, vocabulary: int, seen: str) -> None:
    model |= ml.LayerNorm(name="norm")(input=seen, output="final")
    model |= ml.Linear(vocabulary, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")


def _language(
    draw: Draw, width: int, length: int, batch: int, *, causal: bool = True, after: bool = False
) -> Case:
    vocabulary, model = draw.width(4096, 32768), ml.Model()
    model |= ml.Embedding(vocabulary, width, name="embed")(input="ids", output="e")
    position = ml.PositionalEncoding(max_len=length, learned=True, name="position")
    model |= position(input="e", output="x0")
    names = (f"block{i}" for i in range(2))
    blocks = [draw.block(width, 8, causal=causal, name=name, after=after) for name in names]
    _chain(model, blocks, "x0", "seen")
    _finish(model, vocabulary, "seen")
    inputs = ("ids", "target")
    shapes = dict.fromkeys(inputs, ((batch, length), "int32"))
    return Case(model, shapes, "loss", inputs, ("block?.middle",))


def gpt_small(draw: Draw) -> Case:
    return _language(draw, draw.width(128, 256), 128, draw.batch(64, 256))


def gpt_medium(draw: Draw) -> Case:
    return _language(draw, draw.width(512, 1024), 256, draw.batch(16, 64))


def bert(draw: Draw) -> Case:
    """Post-norm blocks that see both ways."""
    width = draw.width(256, 1024)
    return _language(draw, width, 128, draw.batch(32, 128), causal=False, after=True)


def gpt_large(draw: Draw) -> Case:
    """Equal blocks in a loop, and few sequences."""
    width, length, model = draw.width(2048, 8192), 512, ml.Model()
    vocabulary = draw.width(16384, 32768)
    model |= ml.Embedding(vocabulary, width, name="embed")(input="ids", output="x0")
    model |= ml.Repeat(draw.block(width, 16), 12, name="blocks")(input="x0", output="seen")
    _finish(model, vocabulary, "seen")
    inputs = ("ids", "target")
    return Case(
        model, dict.fromkeys(inputs, ((draw.batch(8, 32), length), "int32")), "loss", inputs
    )


def _llama_block(draw: Draw, width: int, name: str) -> ml.Model:
    block = ml.Model(name=name)
    attend = draw.attend(8, True, num_kv_heads=4, rope=True, bias=False)
    block |= ml.RMSNorm(name="norm1")(input="x", output="n1")
    block |= attend(input="n1", output="a")
    block |= ml.Add()(inputs=["x", "a"], output="middle")
    block |= ml.RMSNorm(name="norm2")(input="middle", output="n2")
    mlp = ml.FeedForward(4 * width, activation="swiglu", bias=False, name="mlp")
    block |= mlp(input="n2", output="f")
    block |= ml.Add()(inputs=["middle", "f"], output="y")
    return block


def llama(draw: Draw) -> Case:
    width, length, model = draw.width(512, 4096), 256, ml.Model()
    vocabulary = draw.width(8192, 32768)
    model |= ml.Embedding(vocabulary, width, name="embed")(input="ids", output="x0")
    _chain(model, [_llama_block(draw, width, f"block{i}") for i in range(2)], "x0", "seen")
    _finish(model, vocabulary, "seen")
    inputs = ("ids", "target")
    shapes = dict.fromkeys(inputs, ((draw.batch(8, 64), length), "int32"))
    return Case(model, shapes, "loss", inputs, ("block?.middle",))


def _long(draw: Draw, width: int, tokens: int, batch: int, heads: int) -> Case:
    model, length = ml.Model(), max(256, tokens // draw.shrink)
    _chain(model, [draw.block(width, heads, name="block0")], "x", "y")
    shapes = {"x": ((batch, length, width), "float32")}
    return Case(model, shapes, tokens=("x",), streams=("block?.middle",))


def long_sequence(draw: Draw) -> Case:
    """Few sequences of many tokens, and fewer heads than devices."""
    return _long(draw, draw.width(256, 1024), draw.size(4096, 16384), 1, 4)


def many_heads(draw: Draw) -> Case:
    """Few sequences of many tokens, and more heads than devices."""
    return _long(draw, draw.width(512, 1024), draw.size(2048, 8192), 2, 16)


# ------------------------------------------------------------------ encoders and decoders


def _decoder(draw: Draw, width: int, name: str) -> ml.Model:
    block = ml.Model(name=name)
    cross = ml.Model(name="cross")
    cross |= draw.attend(8, False)(input="q", key="m", value="m", output="y")
    own = draw.attend(8, True)
    block |= ml.LayerNorm(name="norm1")(input="x", output="n1")
    block |= own(input="n1", output="a")
    block |= ml.Add()(inputs=["x", "a"], output="early")
    block |= ml.LayerNorm(name="norm2")(input="early", output="n2")
    block |= cross(q="n2", m="memory", y="c")
    block |= ml.Add()(inputs=["early", "c"], output="middle")
    block |= ml.LayerNorm(name="norm3")(input="middle", output="n3")
    block |= ml.FeedForward(4 * width, name="mlp")(input="n3", output="f")
    block |= ml.Add()(inputs=["middle", "f"], output="y")
    return block


def encoder_decoder(draw: Draw) -> Case:
    """Features of one sequence are read while another one is written."""
    width, batch, model = draw.width(256, 1024), draw.batch(16, 128), ml.Model()
    model |= draw.block(width, 8, causal=False, name="encoder")(x="x", y="memory")
    model |= _decoder(draw, width, "decoder")(x="given", memory="memory", y="y")
    shapes = {"x": ((batch, 256, width), "float32"), "given": ((batch, 128, width), "float32")}
    return Case(model, shapes, streams=("*coder.middle",))


def t5(draw: Draw) -> Case:
    """The same of tokens, with one vocabulary and no biases in what is projected to it."""
    width, batch, model = draw.width(256, 1024), draw.batch(16, 64), ml.Model()
    vocabulary = draw.width(16384, 32768)
    model |= ml.Embedding(vocabulary, width, name="embed")(input="source", output="x0")
    model |= ml.Embedding(vocabulary, width, name="embed_target")(input="ids", output="given")
    model |= draw.block(width, 8, causal=False, name="encoder")(x="x0", y="memory")
    model |= _decoder(draw, width, "decoder")(x="given", memory="memory", y="seen")
    model |= ml.RMSNorm(name="norm")(input="seen", output="final")
    model |= ml.Linear(vocabulary, bias=False, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")
    shapes = dict.fromkeys(("source", "ids", "target"), ((batch, 128), "int32"))
    return Case(model, shapes, "loss", streams=("*coder.middle",))


# ------------------------------------------------------------------ recurrence, experts


def recurrent(draw: Draw) -> Case:
    width, model = draw.width(256, 1024), ml.Model()
    model |= ml.LSTM(width, name="lstm")(input="x", output="between")
    model |= ml.GRU(width, name="gru")(input="between", output="seen")
    model |= ml.Linear(64, name="head")(input="seen", output="y")
    return Case(model, {"x": ((draw.batch(64, 512), 32, width), "float32")})


def _moe(draw: Draw, width: int, hidden: int, batch: int, layers: int) -> Case:
    model = ml.Model()
    for i in range(layers):
        last = "y" if i == layers - 1 else f"x{i + 1}"
        model |= ml.MoE(16, hidden, top_k=2, name=f"moe{i}")(input=f"x{i}", output=f"a{i}")
        model |= ml.Add()(inputs=[f"x{i}", f"a{i}"], output=last)
    return Case(model, {"x0": ((batch, 64, width), "float32")})


def moe_small(draw: Draw) -> Case:
    return _moe(draw, draw.width(128, 256), draw.width(256, 512), draw.batch(32, 256), 2)


def moe_large(draw: Draw) -> Case:
    return _moe(draw, draw.width(512, 2048), draw.width(4096, 16384), draw.batch(32, 128), 1)


MODELS: Mapping[str, Callable[[Draw], Case]] = {
    make.__name__: make
    for make in (
        narrow_mlp, wide_mlp, autoencoder, recommender, cnn, resnet, unet, vit, gpt_small,
        gpt_medium, gpt_large, llama, bert, t5, encoder_decoder, long_sequence, many_heads,
        recurrent, moe_small, moe_large,
    )
}  # fmt: skip


def make_case(name: str, seed: int = 0, shrink: int = 1, context: str | None = None) -> Case:
    """Return a model, the same for the same arguments.

    Args:
        name: one of `MODELS`.
        seed: of its sizes.
        shrink: a power of two by which widths and batches are smaller.
        context: what attention does where its sequence comes split.
    """
    return MODELS[name](Draw(name, seed, shrink, context))
