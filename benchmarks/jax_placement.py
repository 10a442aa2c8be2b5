"""Layers that are placed on devices against the same segments by hand, on JAX.

Sixteen segments, each a linear layer and a relu, go round four devices: forward and backward, the
gradients of all weights. By hand a segment is one jitted function, another one its gradient, and
what it passes on goes to the next device by `jax.device_put`; nothing waits in between.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np

from benchmarks.harness import Limit, interleave, ratio, report, settle
from benchmarks.jax_sides import VERSION

SEGMENTS, DEVICES = 16, 4
LIMIT = 1.1
OURS, BY_HAND = "mithril", "by hand"


@dataclass(frozen=True, eq=False)
class Placed:
    """Mithril's side.

    Args:
        compiled: the model, its layers on devices.
        params: its parameters.
        inputs: its input.
        gradient: of its output.
    """

    compiled: ml.CompiledModel
    params: Any
    inputs: Any
    gradient: Any

    def step(self) -> tuple[Any, Any]:
        """Return outputs and gradients, computed."""
        outputs, gradients = self.compiled.evaluate(
            self.params, self.inputs, {"output": self.gradient}
        )
        jax.block_until_ready([x.shards for x in (*outputs.values(), *gradients.values())])
        return outputs, gradients


@jax.jit
def forward(weight: Any, bias: Any, x: Any) -> Any:
    """Return what a segment makes of its input."""
    return jax.nn.relu(x @ weight.T + bias)


@jax.jit
def backward(weight: Any, x: Any, y: Any, gradient: Any) -> tuple[Any, Any, Any]:
    """Return the gradients of a segment's weight, bias and input."""
    inside = jnp.where(y > 0, gradient, 0)
    return inside.T @ x, inside.sum(0), inside @ weight


@jax.jit
def backward_of_first(x: Any, y: Any, gradient: Any) -> tuple[Any, Any]:
    """Return the gradients of the first segment's weight and bias."""
    inside = jnp.where(y > 0, gradient, 0)
    return inside.T @ x, inside.sum(0)


@dataclass(frozen=True, eq=False)
class ByHand:
    """The side written by hand.

    Args:
        params: weight and bias of each segment, on its device.
        x: the input, on the first device.
        gradient: of the output, on the last device.
        devices: of the segments.
    """

    params: list[tuple[Any, Any]]
    x: Any
    gradient: Any
    devices: list[Any]

    def step(self) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return the output and the gradients, computed."""
        inputs, outputs = [], []
        x = self.x
        for (weight, bias), device in zip(self.params, self.devices, strict=True):
            x = jax.device_put(x, device)
            inputs.append(x)
            x = forward(weight, bias, x)
            outputs.append(x)
        gradients: list[Any] = [None] * len(self.params)
        gradient = self.gradient
        for i in reversed(range(1, len(self.params))):
            gradient = jax.device_put(gradient, self.devices[i])
            weight, bias, gradient = backward(self.params[i][0], inputs[i], outputs[i], gradient)
            gradients[i] = weight, bias
        gradient = jax.device_put(gradient, self.devices[0])
        gradients[0] = backward_of_first(inputs[0], outputs[0], gradient)
        jax.block_until_ready((x, gradients))
        return x, gradients


def close(found: ml.Array, expected: Any) -> None:
    """Assert that both sides have found the same numbers."""
    np.testing.assert_allclose(found.numpy(), np.asarray(expected), rtol=1e-4, atol=1e-4)


def contestants(width: int, batch: int) -> tuple[Placed, ByHand]:
    """Return both sides, after a check that they give the same numbers."""
    backend = ml.JaxBackend(ml.Mesh(data=DEVICES))
    model = ml.Model()
    for segment in range(SEGMENTS):
        wires = {"output": "output"} if segment == SEGMENTS - 1 else {}
        model += ml.Linear(width, device_id=segment % DEVICES, name=f"layer{segment}")()
        model += ml.Relu()(**wires)
    x = np.random.default_rng(0).standard_normal((batch, width), dtype=np.float32)
    inputs, gradient = {"input": backend.array(x)}, backend.ones(batch, width)
    compiled = ml.compile(model, backend, shapes=inputs)
    placed = Placed(compiled, compiled.randomize_params(0), inputs, gradient)
    outputs, gradients = placed.step()
    devices = [jax.devices()[segment % DEVICES] for segment in range(SEGMENTS)]
    params = [
        tuple(
            jax.device_put(placed.params[f"layer{i}.{name}"].numpy(), device)
            for name in ("weight", "bias")
        )
        for i, device in enumerate(devices)
    ]
    by_hand = ByHand(
        params,  # type: ignore[arg-type]
        jax.device_put(x, devices[0]),
        jax.device_put(gradient.numpy(), devices[-1]),
        devices,
    )
    expected, slopes = by_hand.step()
    close(outputs["output"], expected)
    for i, (weight, bias) in enumerate(slopes):
        close(gradients[f"layer{i}.weight"], weight)
        close(gradients[f"layer{i}.bias"], bias)
    return placed, by_hand


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    settle("benchmarks.jax_placement")
    placed, by_hand = contestants(given.width, given.batch)
    functions: dict[str, Callable[[], object]] = {OURS: placed.step, BY_HAND: by_hand.step}
    times = interleave(functions, given.rounds)
    limits = [Limit("step to by hand", ratio(times, OURS, BY_HAND), LIMIT)]
    title = (
        f"{SEGMENTS} segments of width {given.width} on {DEVICES} devices, batch {given.batch}, "
        f"{VERSION}, forward and backward"
    )
    return report(title, times, limits)


if __name__ == "__main__":
    sys.exit(main())
