"""What the examples share: what the command line says, and the loop that trains."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P


def command_line(description: str, steps: int) -> argparse.ArgumentParser:
    """Return the options that every example has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--mesh", type=read_mesh, default="", help="such as data=2,tensor=2")
    parser.add_argument("--steps", type=int, default=steps)
    return parser


def read_mesh(text: str) -> ml.Mesh:
    """Return the mesh that a text such as `data=2,tensor=2` describes, of these two axes."""
    sizes = dict(part.split("=") for part in text.split(",") if part)
    return ml.Mesh(data=int(sizes.pop("data", 1)), tensor=int(sizes.pop("tensor", 1)), **sizes)


def train(
    compiled: ml.CompiledModel,
    params: Mapping[str, ml.Array],
    make_batch: Callable[[int], dict[str, np.ndarray]],
    steps: range,
    rate: float,
) -> Mapping[str, ml.Array]:
    """Return the parameters after some steps of Adam (Kingma and Ba, 2014); print some losses.

    Args:
        compiled: a model whose output `loss` is a mean over the batch.
        params: its parameters.
        make_batch: called with the step, returns all inputs of the model.
        steps: the numbers of the steps.
        rate: how far a parameter moves in a step, about.
    """
    moments = None
    for step in steps:
        inputs = {
            name: compiled.backend.array(value, sharding=P("data"))
            for name, value in make_batch(step).items()
        }
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": np.float32(1)}, seed=step)
        trained = {name: params[name] for name in compiled.trainable}
        moments = moments or (make_zeros(gradients), make_zeros(gradients))
        trained, moments = update(trained, gradients, moments, rate, step - steps[0] + 1.0)
        params = {**params, **trained}
        if step % 5 == 0 or step == steps[-1]:
            print(f"step {step}: loss {outputs['loss'].item():.6f}", flush=True)
    return params


@ml.jit
def make_zeros(gradients):
    return {name: mnp.zeros_like(gradient) for name, gradient in gradients.items()}


@ml.jit
def update(params, gradients, moments, rate, count):
    """Return parameters and moments after a step; `count` is 1 in the first one."""
    first, second = (
        {n: decay * old[n] + (1 - decay) * gradients[n] ** power for n in params}
        for old, decay, power in zip(moments, (0.9, 0.99), (1, 2), strict=True)
    )
    scale = rate / (1 - 0.9**count)
    root = mnp.sqrt(1 - 0.99**count)
    # An epsilon of 1e-4: gradients that are rounding errors, which no two machines share, move little.
    moved = {n: params[n] - scale * first[n] / (mnp.sqrt(second[n]) / root + 1e-4) for n in params}
    return moved, (first, second)
