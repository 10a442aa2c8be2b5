"""One training step's outputs and gradients of an MLP, against the same written by hand in NumPy.

784-512-256-10 with relu, batch 128, mean cross-entropy; `compiled.evaluate` on one device as a user
calls it: parameters are the backend's arrays, inputs are NumPy arrays as a data loader gives them,
and the gradient of the loss is the number 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import mithril as ml
import numpy as np

from benchmarks.harness import Limit, interleave, ratio, report, settle
from tests.tolerances import TOLERANCE

SIZES = (784, 512, 256, 10)
LIMIT = 1.15

Arrays = dict[str, np.ndarray]


def model(sizes: tuple[int, ...]) -> ml.Model:
    found = ml.Model()
    found |= ml.Linear(sizes[1], name="layer0")(input="x", output="h0")
    for i, width in enumerate(sizes[2:], start=1):
        found += ml.Relu()
        found += ml.Linear(width, name=f"layer{i}")
    found += ml.CrossEntropy()(target="target", output="loss")
    return found


def by_hand(params: Arrays, x: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, Arrays]:
    """Return loss and gradients."""
    depth = len(params) // 2
    kept = [x]
    for i in range(depth):
        x = x @ params[f"layer{i}.weight"].T
        x += params[f"layer{i}.bias"]
        if i < depth - 1:
            np.maximum(x, 0, out=x)
            kept.append(x)
    rows = np.arange(len(target))
    x -= x.max(axis=1, keepdims=True)
    powers = np.exp(x)
    total = powers.sum(axis=1)
    loss = np.mean(np.log(total) - x[rows, target])
    slope = powers
    slope /= total[:, None]
    slope[rows, target] -= 1
    slope /= np.float32(len(target))
    gradients = {}
    for i in reversed(range(depth)):
        gradients[f"layer{i}.weight"] = slope.T @ kept[i]
        gradients[f"layer{i}.bias"] = slope.sum(axis=0)
        if i:
            slope = slope @ params[f"layer{i}.weight"]
            slope *= kept[i] > 0
    return loss, gradients


def contestants(sizes: tuple[int, ...], batch: int) -> dict[str, Callable[[], object]]:
    """Return both sides, after a check that they give the same numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, sizes[0]), dtype=np.float32)
    target = rng.integers(0, sizes[-1], batch).astype(np.int32)
    backend = ml.NumpyBackend()
    compiled = ml.compile(model(sizes), backend, shapes={"x": x, "target": target})
    params = compiled.randomize_params(0)
    arrays = {name: value.numpy() for name, value in params.items()}

    def evaluate() -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        return compiled.evaluate(params, {"x": x, "target": target}, {"loss": 1.0})

    check_equal(evaluate(), by_hand(arrays, x, target))
    return {"mithril": evaluate, "by hand": lambda: by_hand(arrays, x, target)}


def check_equal(
    found: tuple[dict[str, ml.Array], dict[str, ml.Array]], expected: tuple[np.ndarray, Arrays]
) -> None:
    """Refuse sides that do not compute the same."""
    rtol, atol = TOLERANCE["float32"]
    (outputs, gradients), (loss, slopes) = found, expected
    np.testing.assert_allclose(outputs["loss"].numpy(), loss, rtol, atol)
    assert gradients.keys() == slopes.keys()
    for name, slope in slopes.items():
        np.testing.assert_allclose(gradients[name].numpy(), slope, rtol, atol, err_msg=name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=400)
    given = parser.parse_args()
    settle("benchmarks.numpy_mlp")
    times = interleave(contestants(SIZES, batch=128), given.rounds, warm_up=20)
    limit = Limit("step of the MLP", ratio(times, "mithril", "by hand"), LIMIT)
    return report("MLP 784-512-256-10, batch 128, forward and backward", times, [limit])


if __name__ == "__main__":
    sys.exit(main())
