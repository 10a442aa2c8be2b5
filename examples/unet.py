"""A small U-Net that finds discs in noisy images, with ConvTranspose2d and GroupNorm.

    python examples/unet.py --backend jax --mesh data=2,tensor=2

Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015). On the
way down images become smaller and get more channels, on the way up the other way round; each level
up sees what its level down saw.
"""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from training import command_line, train

CHANNELS, SIZE, BATCH = (8, 16, 32), 16, 8


@ml.layer
def Twice(x, *, filters):
    """Convolve twice, each time with a norm and an activation; x [batch, channels, h, w]."""
    for i in range(2):
        x = ml.Conv2d(filters, 3, padding="same", bias=False, name=f"conv_{i}")(x)
        x = mnp.silu(ml.GroupNorm(4, name=f"norm_{i}")(x))
    return x


def unet() -> ml.Model:
    """Return the model; filters of the two inner convolutions are split over `tensor`."""
    model, wire = ml.Model(), "image"
    for level, filters in enumerate(CHANNELS):
        model |= Twice(filters=filters, name=f"down_{level}")(x=wire, output=f"level_{level}")
        wire = f"level_{level}"
        if filters != CHANNELS[-1]:
            model |= ml.MaxPool2d(2)(input=wire, output=f"smaller_{level}")
            wire = f"smaller_{level}"
    for level, filters in reversed(list(enumerate(CHANNELS[:-1]))):
        larger = ml.ConvTranspose2d(filters, 2, stride=2, name=f"larger_{level}")
        model |= larger(input=wire, output=f"wide_{level}")
        both = [f"level_{level}", f"wide_{level}"]
        model |= ml.Concat(axis=1)(inputs=both, output=f"both_{level}")
        wire = f"up_{level}_output"
        model |= Twice(filters=filters, name=f"up_{level}")(x=f"both_{level}", output=wire)
    model |= ml.Conv2d(1, 1, name="head")(input=wire, output="logits")
    model |= ml.BinaryCrossEntropyWithLogits()(input="logits", target="mask", output="loss")
    model.output("logits")
    model.shard({"*.conv_*.weight": P("tensor")})
    return model


def batch(step: int) -> dict[str, np.ndarray]:
    """Return images of a bright disc each, [batch, 1, size, size], and where it is."""
    rng = np.random.default_rng(step)
    centre, radius = rng.uniform(4, 12, (BATCH, 2, 1, 1)), rng.uniform(2, 5, (BATCH, 1, 1))
    far = ((np.mgrid[:SIZE, :SIZE] - centre) ** 2).sum(1)
    mask = (far < radius**2).astype(np.float32)[:, None]
    return {"image": mask + rng.normal(0, 0.5, mask.shape).astype(np.float32), "mask": mask}


def main() -> None:
    given = command_line(__doc__, steps=20).parse_args()
    compiled = ml.compile(unet(), ml.open_backend(given.backend, given.mesh))
    params = train(compiled, compiled.randomize_params(0), batch, range(given.steps), rate=0.02)
    seen = batch(given.steps)
    logits = compiled.evaluate(params, seen)["logits"].numpy()
    found, wanted = logits[0, 0] > 0, seen["mask"][0, 0] > 0
    for row in np.where(found & wanted, "#", np.where(found != wanted, "?", ".")):
        print("".join(row))


if __name__ == "__main__":
    main()
