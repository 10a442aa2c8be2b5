"""Low-rank adaptation: adapt a model to another task by a few numbers beside frozen weights.

    python examples/lora.py --backend jax --mesh data=2,tensor=2

Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models" (2021). The model is trained on one
task without the adapters, then adapted to another one with all else frozen. What is saved is the
adapters alone. In the end they are added to the weights, and the model without them gives the same.
"""

from __future__ import annotations

import tempfile

import mithril as ml
import numpy as np
from mithril import P
from training import command_line, train

FEATURES, HIDDEN, CLASSES, RANK, BATCH = 16, 32, 4, 2, 32
FIRST, ROW, COLUMN = (
    np.random.default_rng(seed).normal(size=size).astype(np.float32)
    for seed, size in enumerate([(FEATURES, CLASSES), (FEATURES, 1), (1, CLASSES)])
)
TASKS = (FIRST, FIRST + ROW @ COLUMN)  # the second one differs by a matrix of rank 1


@ml.layer
def Adapted(x, *, dimension, rank):
    """Multiply by a weight, and add the product of two narrow ones; rank 0 is without."""
    y = ml.Linear(dimension, name="base")(x)
    if rank == 0:
        return y
    down = ml.Linear(rank, bias=False, name="lora_a")(x)
    return y + ml.Linear(dimension, bias=False, initializer=ml.Zeros(), name="lora_b")(down)


def classifier(rank: int) -> ml.Model:
    """Return the model, split over `tensor`; with adapters these alone are trained."""
    model = ml.Model()
    model |= Adapted(dimension=HIDDEN, rank=rank, name="up")(x="x", output="h")
    model |= ml.Gelu()(input="h", output="a")
    model |= Adapted(dimension=CLASSES, rank=rank, name="down")(x="a", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    model.shard({"up.base.weight": P("tensor", None), "down.base.weight": P(None, "tensor")})
    if rank:
        model.shard(
            {"up.lora_b.weight": P("tensor", None), "down.lora_a.weight": P(None, "tensor")}
        )
        model.trainable({"*": False, "*.lora_*": True})
    return model


@ml.jit
def add_adapters(params):
    """Return the weights with the products of their adapters added."""
    names = [name for name in params if ".base." in name]
    return {name: params[name] + adapter(params, name) for name in names}


def adapter(params, name):
    layer, _, kind = name.split(".")
    if kind == "bias":
        return 0.0
    return params[f"{layer}.lora_b.weight"] @ params[f"{layer}.lora_a.weight"]


def batches(task: int):
    """Return a function from a step to inputs whose classes the task decides."""

    def batch(step: int) -> dict[str, np.ndarray]:
        x = np.random.default_rng(step).normal(size=(BATCH, FEATURES)).astype(np.float32)
        return {"x": x, "target": (x @ TASKS[task]).argmax(-1).astype(np.int32)}

    return batch


def main() -> None:
    given = command_line(__doc__, steps=40).parse_args()
    backend = ml.open_backend(given.backend, given.mesh)
    plain, adapted = (ml.compile(classifier(rank), backend) for rank in (0, RANK))
    weights = train(plain, plain.randomize_params(0), batches(0), range(given.steps), rate=0.03)
    start = {**adapted.randomize_params(0), **weights}
    params = train(adapted, start, batches(1), range(given.steps), rate=0.03)
    sizes = {name: value.size for name, value in params.items()}
    print(f"trained {sum(sizes[n] for n in adapted.trainable)} of {sum(sizes.values())} numbers")
    with tempfile.TemporaryDirectory() as path:
        ml.save(path, {name: params[name] for name in adapted.trainable})
        params = start | ml.load(path, like={name: start[name] for name in adapted.trainable})
    test = batches(1)(given.steps)
    for compiled, held in ((plain, weights), (plain, add_adapters(params)), (adapted, params)):
        print(f"test loss {compiled.evaluate(held, test)['loss'].item():.6f}")


if __name__ == "__main__":
    main()
