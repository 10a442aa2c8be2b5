"""Training steps of an MLP, a CNN and a GPT on a mesh, against one device of NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

import mithril as ml
from mithril import P
from mithril.testing.check import Check, Mismatch, Outcome
from mithril.testing.compare import describe_difference
from mithril.testing.levels import Level
from mithril.testing.target import Target, open_oracle

Arrays = dict[str, np.ndarray]
BATCH, CLASSES, TOKENS = 6, 5, 8


@dataclass(frozen=True)
class Example:
    """A model that ends in `loss`, and what it is given.

    Args:
        make: returns the model.
        inputs: a batch.
        weights: specs of parameters that are split along the second axis of the mesh, by pattern,
            with the axis called `tensor`.
    """

    make: Callable[[], ml.Model]
    inputs: Callable[[], Arrays]
    weights: tuple[tuple[str, tuple[str | None, ...]], ...] = ()


def mlp() -> ml.Model:
    """Return two linear layers, dropout between them, and a loss."""
    model = ml.Model()
    model |= ml.Linear(12, name="up")(input="x", output="h")
    model += ml.Gelu()
    model += ml.Dropout(0.2)
    model += ml.Linear(CLASSES, name="down")(output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def cnn() -> ml.Model:
    """Return a convolution, pooling, normalisation and a loss."""
    model = ml.Model()
    model |= ml.Conv2d(4, 3, padding=1, name="conv")(input="x", output="c")
    model += ml.GroupNorm(2)
    model += ml.Relu()
    model += ml.MaxPool2d(2)
    model += ml.Flatten()
    model += ml.Linear(CLASSES, name="head")(output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def gpt() -> ml.Model:
    """Return an embedding, two transformer blocks and a loss."""
    model = ml.Model()
    model |= ml.Embedding(TOKENS, 8, name="embed")(input="x", output="x0")
    for i in range(2):
        model |= block()(x=f"x{i}", y=f"x{i + 1}")
    model |= ml.RMSNorm()(input="x2", output="final")
    model |= ml.Linear(TOKENS, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def block() -> ml.Model:
    """Return a pre-norm transformer block from `x` to `y`."""
    made = ml.Model()
    made |= ml.LayerNorm()(input="x", output="n1")
    made += ml.MultiHeadAttention(2, causal=True, rope=True, name="attn")(input="n1", output="a")
    made += ml.Add()(inputs=["x", "a"], output="r")
    made += ml.LayerNorm()(input="r", output="n2")
    made += ml.FeedForward(12, activation="swiglu", name="mlp")(input="n2", output="f")
    made += ml.Add()(inputs=["r", "f"], output="y")
    return made


def _vectors() -> Arrays:
    rng = np.random.default_rng(1)
    return {"x": _floats(rng, BATCH, 8), "target": _ids(rng, CLASSES, BATCH)}


def _images() -> Arrays:
    rng = np.random.default_rng(2)
    return {"x": _floats(rng, BATCH, 3, 6, 6), "target": _ids(rng, CLASSES, BATCH)}


def _texts() -> Arrays:
    rng = np.random.default_rng(3)
    return {"x": _ids(rng, TOKENS, BATCH, 7), "target": _ids(rng, TOKENS, BATCH, 7)}


def _floats(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _ids(rng: np.random.Generator, below: int, *shape: int) -> np.ndarray:
    return rng.integers(0, below, shape).astype(np.int32)


COLUMN, ROW = ("tensor", None), (None, "tensor")
EXAMPLES = {
    "MLP": Example(mlp, _vectors, (("up.weight", COLUMN), ("down.weight", ROW))),
    "CNN": Example(cnn, _images, (("head.weight", COLUMN),)),
    "GPT": Example(gpt, _texts, (("*.up.weight", COLUMN), ("*.down.weight", ROW))),
}


def list_model_checks() -> Iterator[Check]:
    """Yield checks of a training step of each model: on one device, and on the mesh."""
    for name in EXAMPLES:
        level = Level.smoke if name == "MLP" else Level.basic
        yield Check("models", f"{name} on one device", partial(check_step, name, False), level)
        yield Check("models", f"{name} on a mesh", partial(check_step, name, True), level, 2)


def check_step(name: str, is_split: bool, target: Target, level: Level) -> Outcome:
    """Compare outputs and gradients of a model, batch and weights split, with NumPy's."""
    example = EXAMPLES[name]
    backend = target.open_all() if is_split else target.open()
    expected, found = (step(example, on) for on in (open_oracle(), backend))
    compare(found, expected)
    return Outcome(note=f"loss and {len(expected) - 1} gradients on {backend.mesh!r}")


def step(example: Example, backend: ml.Backend) -> Arrays:
    """Return the loss of a model and the gradients of its parameters."""
    return prepare_step(example, backend)()


def prepare_step(example: Example, backend: ml.Backend) -> Callable[[], Arrays]:
    """Return what evaluates a compiled model and its gradients, and brings them to the host."""
    model, names = example.make(), backend.mesh.names
    for pattern, spec in example.weights if len(names) > 1 else ():
        model.shard({pattern: P(*(names[1] if axis else None for axis in spec))})
    compiled = ml.compile(model, backend)
    given = {name: backend.array(x, sharding=P(*names[:1])) for name, x in example.inputs().items()}
    params = compiled.randomize_params(seed=3)

    def run() -> Arrays:
        outputs, slopes = compiled.evaluate(params, given, {"loss": np.float32(1)}, seed=5)
        gradients = {f"gradient of {name}": slope.numpy() for name, slope in slopes.items()}
        return {"loss": outputs["loss"].numpy(), **gradients}

    return run


def compare(found: Arrays, expected: Arrays) -> None:
    """Raise unless arrays are those that are expected.

    Raises:
        Mismatch: one is not.
    """
    if set(found) != set(expected):
        raise Mismatch(f"there are {sorted(found)}, not {sorted(expected)}")
    for name, value in expected.items():
        text = describe_difference(found[name], value)
        if text:
            raise Mismatch(f"{name}: {text}")
