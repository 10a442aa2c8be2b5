"""A variational autoencoder that learns to draw discs, and draws one from random numbers.

    python examples/vae.py --backend jax --mesh data=2,tensor=2

Kingma and Welling, "Auto-Encoding Variational Bayes" (2013). An encoder gives means and variances of
a few numbers, the decoder draws an image from such numbers. The noise of a step comes from its seed
and is the same on every mesh.
"""

from __future__ import annotations

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from mithril.ops import normal
from training import command_line, train

SIZE, HIDDEN, LATENT, BATCH = 8, 64, 2, 32


@ml.layer(outputs=("code", "divergence"))
def Sample(mean, log_variance):
    """Draw a code of each sample; [batch, LATENT]. Tell how far from standard normal they are."""
    noise = normal(ml.seed(), mean.shape)
    variance = mnp.exp(log_variance)
    divergence = 0.5 * (mean**2 + variance - 1.0 - log_variance).sum(-1).mean()
    return {"code": mean + mnp.sqrt(variance) * noise, "divergence": divergence}


@ml.layer
def Decoder(code):
    """Return the logits of the pixels of images; [batch, SIZE, SIZE]."""
    hidden = mnp.gelu(ml.Linear(HIDDEN, name="up")(code))
    hidden = mnp.gelu(ml.Linear(HIDDEN, name="middle")(hidden))
    return ml.Linear(SIZE * SIZE, name="down")(hidden).reshape(code.shape[0], SIZE, SIZE)


def autoencoder() -> ml.Model:
    """Return the model with its loss, which bounds the likelihood of the images from below."""
    model = ml.Model()
    model |= ml.Flatten()(input="image", output="flat")
    model |= ml.FeedForward(HIDDEN, name="encoder")(input="flat", output="seen")
    model |= ml.Linear(LATENT, name="mean")(input="seen", output="mean")
    model |= ml.Linear(LATENT, name="log_variance")(input="seen", output="log_variance")
    model |= Sample()(
        mean="mean", log_variance="log_variance", code="code", divergence="divergence"
    )
    model |= Decoder(name="decoder")(code="code", output="logits")
    model |= ml.BinaryCrossEntropyWithLogits(reduction="none")(
        input="logits", target="image", output="errors"
    )
    model |= Bound()(errors="errors", divergence="divergence", output="loss")
    model.shard({"encoder.up.weight": P("tensor", None), "encoder.down.weight": P(None, "tensor")})
    model.shard(
        {"decoder.up.weight": P("tensor", None), "decoder.middle.weight": P(None, "tensor")}
    )
    return model


@ml.layer
def Bound(errors, divergence):
    """Return the error of an image, in nats, and the divergence, averaged over the batch."""
    return errors.sum((1, 2)).mean() + divergence


def batch(step: int) -> dict[str, np.ndarray]:
    """Return images of a disc each, [batch, SIZE, SIZE]."""
    rng = np.random.default_rng(step)
    centre = rng.uniform(1, SIZE - 2, (BATCH, 2, 1, 1))
    far = ((np.mgrid[:SIZE, :SIZE] - centre) ** 2).sum(1)
    return {"image": (far < 5).astype(np.float32)}


def main() -> None:
    given = command_line(__doc__, steps=80).parse_args()
    backend = ml.open_backend(given.backend, given.mesh)
    compiled = ml.compile(autoencoder(), backend, outputs=["loss"])
    params = train(compiled, compiled.randomize_params(0), batch, range(given.steps), rate=0.01)
    decoder = ml.compile(Decoder(), backend, inference=True)
    held = {n.removeprefix("decoder."): x for n, x in params.items() if n.startswith("decoder.")}
    logits = decoder.evaluate(held, {"code": np.array([[0.6, -0.6]])})["output"].numpy()
    for row in np.where(logits[0] > 0, "#", "."):
        print("".join(row))


if __name__ == "__main__":
    main()
