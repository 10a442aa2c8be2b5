"""A vision transformer (ViT) that tells the directions of stripes apart.

    python examples/vit.py --backend jax --mesh data=2,tensor=2

Dosovitskiy et al., "An Image is Worth 16x16 Words" (2020). An image is cut into patches, each is a
position of a sequence, and a learned first position gathers what the class is read from.
"""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from training import command_line, train

SIZE, PATCH, CHANNELS, BATCH = 12, 4, 3, 16
LAYERS, WIDTH, HEADS, HIDDEN, CLASSES = 2, 32, 4, 64, 3


@ml.layer(parameters=("first",))
def Patches(image):
    """Return a sequence of a learned first position and the patches; [batch, positions, WIDTH]."""
    batch = image.shape[0]
    patches = ml.Conv2d(WIDTH, PATCH, stride=PATCH, name="project")(image)
    patches = patches.reshape(batch, WIDTH, -1).transpose(0, 2, 1)
    first = ml.parameter("first", (1, 1, WIDTH), ml.Normal(0.02))
    sequence = mnp.concat([mnp.broadcast_to(first, (batch, 1, WIDTH)), patches], axis=1)
    return ml.PositionalEncoding(max_len=sequence.shape[1], learned=True, name="at")(sequence)


@ml.layer
def Block(x):
    """Mix positions, then features, each on top of what was there."""
    x = x + ml.MultiHeadAttention(HEADS, name="attn")(ml.LayerNorm()(x))
    return x + ml.FeedForward(HIDDEN, name="mlp")(ml.LayerNorm()(x))


@ml.layer
def First(x):
    """Return the first position of a sequence."""
    return x[:, 0]


def vit() -> ml.Model:
    """Return the model with its loss; split over `tensor` by heads and hidden features."""
    model = ml.Model()
    model |= Patches(name="patches")(image="image", output="x")
    model |= ml.Repeat(Block(), LAYERS, name="blocks")(input="x", output="h")
    model |= First()(x="h", output="first")
    model |= ml.LayerNorm(name="norm")(input="first", output="normed")
    model |= ml.Linear(CLASSES, name="head")(input="normed", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    model.output("logits")
    rows, columns = P(None, "tensor", None), P(None, None, "tensor")
    model.shard({f"blocks.{name}.weight": rows for name in ("attn.[qkv]", "mlp.up")})
    model.shard({f"blocks.{name}.weight": columns for name in ("attn.o", "mlp.down")})
    return model


def batch(step: int) -> dict[str, np.ndarray]:
    """Return noisy images, [batch, channels, size, size], with stripes along y, x, or both."""
    rng = np.random.default_rng(step)
    target = rng.integers(0, CLASSES, BATCH).astype(np.int32)
    y, x = np.mgrid[:SIZE, :SIZE]
    phase = np.stack([x, y, x + y])[target] + rng.integers(0, 4, (BATCH, 1, 1))
    stripes = np.where(phase % 4 < 2, 1.0, -1.0)[:, None]
    noise = rng.normal(0, 0.5, (BATCH, CHANNELS, SIZE, SIZE))
    return {"image": (stripes + noise).astype(np.float32), "target": target}


def main() -> None:
    given = command_line(__doc__, steps=30).parse_args()
    compiled = ml.compile(vit(), ml.open_backend(given.backend, given.mesh))
    params = train(compiled, compiled.randomize_params(0), batch, range(given.steps), rate=0.005)
    seen = batch(given.steps)
    logits = compiled.evaluate(params, seen)["logits"].numpy()
    right = (logits.argmax(-1) == seen["target"]).sum()
    print(f"{right} of {BATCH} new images are told apart")


if __name__ == "__main__":
    main()
