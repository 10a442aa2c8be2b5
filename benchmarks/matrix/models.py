"""Mithril's models of the matrix, each to the output `loss`, and the data they train on.

Parameters are called as in the models by hand, but for what `NAMES` begins their names with.
"""

from __future__ import annotations

from dataclasses import fields

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril.cli.gpt import Sizes as GptSizes
from mithril.cli.gpt import gpt, with_loss
from mithril.ir import Tensor

from benchmarks import moe, numpy_mlp
from benchmarks.matrix.cases import Row, Sizes
from benchmarks.sides import Data
from benchmarks.training_cases import llama

PREFIXES = ("gpt.", "llama.", "moe.")
"""What only Mithril's names of parameters begin with."""
GROUPS = 4
"""Of the group norms of the U-Net."""


def by_hand_name(name: str) -> str:
    """Return the name by hand of a parameter."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name


def gpt_sizes(sizes: Sizes) -> GptSizes:
    """Return the sizes of a GPT or a Llama as their models take them."""
    return GptSizes(**{f.name: sizes[f.name] for f in fields(GptSizes)})


def moe_sizes(sizes: Sizes) -> moe.MoeSizes:
    """Return the sizes of a mixture of experts as its model takes them."""
    return moe.MoeSizes(**sizes)


def mlp_sizes(sizes: Sizes) -> tuple[int, ...]:
    """Return the features of an MLP from its inputs to its classes."""
    return (sizes["features"], *[sizes["width"]] * (sizes["depth"] - 1), sizes["classes"])


def split_layers(sizes: Sizes) -> int:
    """Return how many layers of an MLP are split over `tensor`, columns and rows in turn."""
    return sizes["depth"] // 2 * 2


def make_model(row: Row) -> ml.Model:
    """Return the model of a row."""
    s = row.sizes
    if row.model == "mlp":
        return numpy_mlp.model(mlp_sizes(s))
    if row.model in ("gpt", "long-sequence"):
        return with_loss(gpt(s["vocabulary"], gpt_sizes(s)))
    if row.model == "llama":
        return with_loss(llama(s["vocabulary"], gpt_sizes(s), s["key_heads"]))
    if row.model == "moe":
        return moe.model(moe_sizes(s))
    makers = {"vit": vit, "unet": unet, "lstm": lstm}
    return makers.get(row.model, resnet)(s)


def statistics_of(row: Row) -> dict[str, tuple[int]]:
    """Return the shapes of running statistics by the names of their inputs."""
    if not row.model.startswith("resnet"):
        return {}
    return {
        f"{name}_{what}": (channels,)
        for name, channels in resnet_norms(row.sizes).items()
        for what in ("mean", "variance")
    }


def make_data(row: Row) -> Data:
    """Return inputs and targets of a row, the same on every rank."""
    s, rng = row.sizes, np.random.default_rng(row.seed)
    batch = s["batch"]

    def ids(most: int, *shape: int) -> np.ndarray:
        return rng.integers(0, most, shape).astype(np.int32)

    def numbers(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    if row.model == "mlp":
        return {"x": numbers(batch, s["features"]), "target": ids(s["classes"], batch)}
    if row.model == "moe":
        shape = (batch, s["context"], s["width"])
        return {"x": numbers(*shape), "target": numbers(*shape)}
    if row.model == "unet":
        image = numbers(batch, 3, s["size"], s["size"])
        return {"image": image, "target": ids(2, batch, 1, s["size"], s["size"]).astype(np.float32)}
    if "classes" in s:
        image = numbers(batch, 3, s["size"], s["size"])
        return {"image": image, "target": ids(s["classes"], batch)}
    shape = (batch, s["context"])
    return {"tokens": ids(s["vocabulary"], *shape), "target": ids(s["vocabulary"], *shape)}


# ------------------------------------------------------------------ ViT


@ml.layer(parameters=("first",))
def Patches(image: Tensor, *, width: int, patch: int) -> Tensor:  # noqa: N802
    """Return a learned first position and the patches; [batch, positions, width]."""
    batch = image.shape[0]
    patches = ml.Conv2d(width, patch, stride=patch, name="project")(image)
    patches = patches.reshape(batch, width, -1).transpose(0, 2, 1)
    first = ml.parameter("first", (1, 1, width), ml.Normal(0.02))
    sequence = mnp.concat([mnp.broadcast_to(first, (batch, 1, width)), patches], axis=1)
    return ml.PositionalEncoding(max_len=sequence.shape[1], learned=True, name="at")(sequence)


@ml.layer
def Block(x: Tensor, *, heads: int, hidden: int) -> Tensor:  # noqa: N802
    """Mix positions, then features, each on top of what was there."""
    x = x + ml.MultiHeadAttention(heads, name="attn")(ml.LayerNorm(name="norm1")(x))
    return x + ml.FeedForward(hidden, name="mlp")(ml.LayerNorm(name="norm2")(x))


@ml.layer
def First(x: Tensor) -> Tensor:  # noqa: N802
    """Return the first position of a sequence."""
    return x[:, 0]


def vit(s: Sizes) -> ml.Model:
    """Return a vision transformer that reads the class off a learned first position."""
    model = ml.Model()
    model |= Patches(width=s["width"], patch=s["patch"], name="patches")(image="image", output="x0")
    for i in range(s["layers"]):
        block = Block(heads=s["heads"], hidden=s["hidden"], name=f"block{i}")
        model |= block(x=f"x{i}", output=f"x{i + 1}")
    model |= First()(x=f"x{s['layers']}", output="first")
    model |= ml.LayerNorm(name="norm")(input="first", output="normed")
    model |= ml.Linear(s["classes"], name="head")(input="normed", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


# ------------------------------------------------------------------ ResNet


def resnet_blocks(s: Sizes) -> list[tuple[str, int, int, int]]:
    """Return the name, channels before and after, and stride of each block."""
    found, before = [], s["width"]
    for stage in range(s["stages"]):
        for block in range(s["blocks"]):
            after = s["width"] << stage
            found.append(
                (f"stage{stage}_block{block}", before, after, 2 if stage and not block else 1)
            )
            before = after
    return found


def resnet_norms(s: Sizes) -> dict[str, int]:
    """Return the channels of all norms by name."""
    found = {"stem_norm": s["width"]}
    for name, before, after, _ in resnet_blocks(s):
        found |= {f"{name}_norm1": after, f"{name}_norm2": after}
        if before != after:
            found[f"{name}_short_norm"] = after
    return found


def resnet(s: Sizes) -> ml.Model:
    """Return a residual network (He et al., 2016) with BatchNorm and a stem for small images."""
    model = ml.Model()

    def normed(name: str, wire: str, filters: int, kernel: int, stride: int) -> str:
        """Convolve and normalise; a shortcut's parts have no number."""
        conv, norm = name.format("conv"), name.format("norm")
        model.__ior__(
            ml.Conv2d(filters, kernel, stride, kernel // 2, bias=False, name=conv)(
                input=wire, output=f"{conv}_y"
            )
        )
        model.__ior__(
            ml.BatchNorm(name=norm)(
                input=f"{conv}_y", running_mean=f"{norm}_mean",
                running_variance=f"{norm}_variance", output=f"{norm}_y",
            )
        )  # fmt: skip
        return f"{norm}_y"

    def active(wire: str, to: str) -> str:
        model.__ior__(ml.Relu()(input=wire, output=to))
        return to

    wire = active(normed("stem_{}", "image", s["width"], 3, 1), "stem")
    for name, before, after, stride in resnet_blocks(s):
        inner = active(normed(name + "_{}1", wire, after, 3, stride), f"{name}_inner")
        inner = normed(name + "_{}2", inner, after, 3, 1)
        if before != after:
            wire = normed(name + "_short_{}", wire, after, 1, stride)
        model |= ml.Add()(inputs=[wire, inner], output=f"{name}_sum")
        wire = active(f"{name}_sum", name)
    model |= ml.GlobalAvgPool()(input=wire, output="pooled")
    model |= ml.Linear(s["classes"], name="head")(input="pooled", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


# ------------------------------------------------------------------ U-Net and LSTM


@ml.layer
def Twice(x: Tensor, *, filters: int) -> Tensor:  # noqa: N802
    """Convolve twice, each time with a norm and an activation; x [batch, channels, h, w]."""
    for i in range(2):
        x = ml.Conv2d(filters, 3, padding="same", bias=False, name=f"conv_{i}")(x)
        x = mnp.silu(ml.GroupNorm(GROUPS, name=f"norm_{i}")(x))
    return x


def unet(s: Sizes) -> ml.Model:
    """Return a U-Net (Ronneberger et al., 2015) with GroupNorm."""
    model, wire, last = ml.Model(), "image", s["levels"] - 1
    for level in range(s["levels"]):
        twice = Twice(filters=s["width"] << level, name=f"down_{level}")
        model |= twice(x=wire, output=f"level_{level}")
        wire = f"level_{level}"
        if level != last:
            model |= ml.MaxPool2d(2)(input=wire, output=f"smaller_{level}")
            wire = f"smaller_{level}"
    for level in reversed(range(last)):
        filters = s["width"] << level
        larger = ml.ConvTranspose2d(filters, 2, stride=2, name=f"larger_{level}")
        model |= larger(input=wire, output=f"wide_{level}")
        both = [f"level_{level}", f"wide_{level}"]
        model |= ml.Concat(axis=1)(inputs=both, output=f"both_{level}")
        wire = f"upper_{level}"
        model |= Twice(filters=filters, name=f"up_{level}")(x=f"both_{level}", output=wire)
    model |= ml.Conv2d(1, 1, name="head")(input=wire, output="logits")
    model |= ml.BinaryCrossEntropyWithLogits()(input="logits", target="target", output="loss")
    return model


def lstm(s: Sizes) -> ml.Model:
    """Return a model of text with layers of LSTM."""
    model = ml.Model()
    model |= ml.Embedding(s["vocabulary"], s["width"], name="table")(input="tokens", output="x")
    model |= ml.LSTM(s["width"], num_layers=s["layers"], name="lstm")(input="x", output="read")
    model |= ml.Linear(s["vocabulary"], name="head")(input="read", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model
