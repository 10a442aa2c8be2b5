"""Small models of repeated blocks, and their outputs and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
from mithril import P
from mithril.runtime.backend import Backend

BATCH, LENGTH, WIDTH = 8, 8, 8


def block(rate: float = 0.5) -> ml.Model:
    """A transformer block with dropout."""
    model = ml.Model()
    model |= ml.LayerNorm(name="norm")(input="input", output="normed")
    model += ml.MultiHeadAttention(num_heads=2, name="attention")(input="normed", output="seen")
    model += ml.Add(name="first")(inputs=["input", "seen"], output="middle")
    model += ml.LayerNorm(name="second_norm")(input="middle", output="again")
    model += ml.FeedForward(4 * WIDTH, name="mlp")(input="again", output="wide")
    model += ml.Dropout(rate, name="dropout")(input="wide", output="thin")
    model += ml.Add(name="last")(inputs=["middle", "thin"], output="output")
    return model


def unrolled(count: int = 4) -> ml.Model:
    """Blocks one after another between two linear layers."""
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="embed")(input="input", output="x0")
    for number in range(count):
        model += block()(input=f"x{number}", output=f"x{number + 1}")
    model += ml.Linear(WIDTH, name="head")(input=f"x{count}", output="output")
    return model


def looped(count: int = 4) -> ml.Model:
    """The same as a loop."""
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="embed")(input="input", output="start")
    model += ml.Repeat(block(), count, name="blocks")(input="start", output="end")
    model += ml.Linear(WIDTH, name="head")(input="end", output="output")
    return model


def staged() -> ml.Model:
    """Two stages with two blocks each."""
    first, second, model = ml.Model(), ml.Model(), ml.Model()
    first |= ml.Linear(WIDTH, name="embed")(input="input", output="x0")
    first += block()(input="x0", output="x1")
    first += block()(input="x1", output="x2")
    second |= block()(input="y0", output="y1")
    second += block()(input="y1", output="y2")
    second += ml.Linear(WIDTH, name="head")(input="y2", output="output")
    model |= ml.Pipeline(stages=[first, second], microbatch_size=2)(input="input", output="output")
    return model


@dataclass(frozen=True)
class Ran:
    """A compiled model with its outputs and gradients."""

    compiled: Any
    output: np.ndarray
    gradients: dict[str, np.ndarray]

    @property
    def peak(self) -> int:
        """The most bytes that a device is predicted to hold."""
        return int(self.compiled.plan.memory().peak)


def evaluate(model: ml.Model, backend: Backend, **options: Any) -> Ran:
    """Compile a model with some options and evaluate it with gradients."""
    sharding = P("data") if "data" in backend.mesh.sizes else None
    shape = (BATCH, LENGTH, WIDTH)
    shapes = {"input": ml.TensorSpec(shape, sharding=sharding)}
    compiled = ml.compile(model, backend, shapes=shapes, **options)
    rng = np.random.default_rng(0)
    x, cotangent = rng.normal(size=(2, *shape)).astype(np.float32)
    outputs, gradients = compiled.evaluate(
        compiled.randomize_params(seed=1), {"input": x}, {"output": cotangent}, seed=3
    )
    found = {name: gradient.numpy() for name, gradient in gradients.items()}
    return Ran(compiled, outputs["output"].numpy(), found)


def train(model: ml.Model, backend: Backend, **options: Any) -> tuple[Any, list[float]]:
    """Return a train step with AdamW, and the losses of three steps of it."""
    model += ml.MeanSquaredError(name="mse")(input="output", target="t", output="loss")
    shape = (BATCH, LENGTH, WIDTH)
    spec = ml.TensorSpec(shape, sharding=P("data"))
    step = ml.train_step(
        model, backend, ml.optim.adamw(1e-2), shapes={"input": spec, "t": spec}, **options
    )
    x, t = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    state, losses = step.init(seed=0), []
    for _ in range(3):
        state, metrics = step(state, {"input": x, "t": t})
        losses.append(metrics["loss"].item())
    return step, losses


def check_same(found: Ran, expected: Ran) -> None:
    """Outputs and gradients are the same bits."""
    np.testing.assert_array_equal(found.output, expected.output)
    for name, gradient in expected.gradients.items():
        np.testing.assert_array_equal(found.gradients[name], gradient, err_msg=name)
