"""One training step's outputs and gradients of the demo's GPT, against the same by hand in NumPy.

The model and the sizes of `mithril demo` on one device; `compiled.evaluate` as its trainer calls
it, but with tokens and targets as the NumPy arrays a data loader gives.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, with_loss

from benchmarks.gpt_by_hand import loss_and_gradients
from benchmarks.harness import Limit, interleave, ratio, report, settle
from benchmarks.numpy_mlp import check_equal

VOCABULARY = 96
LIMIT = 1.15


def contestants(sizes: Sizes, vocabulary: int) -> dict[str, Callable[[], object]]:
    """Return both sides, after a check that they give the same numbers."""
    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.context)
    tokens, target = (rng.integers(0, vocabulary, shape).astype(np.int32) for _ in range(2))
    inputs = {"tokens": tokens, "target": target}
    backend = ml.NumpyBackend()
    compiled = ml.compile(with_loss(gpt(vocabulary, sizes)), backend, shapes=inputs)
    params = compiled.randomize_params(0)
    arrays = {name.removeprefix("gpt."): value.numpy() for name, value in params.items()}

    def evaluate() -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        return compiled.evaluate(params, inputs, {"loss": 1.0})

    def by_hand() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        return loss_and_gradients(arrays, tokens, target, sizes.heads)

    loss, slopes = by_hand()
    check_equal(evaluate(), (loss, {f"gpt.{name}": slope for name, slope in slopes.items()}))
    return {"mithril": evaluate, "by hand": by_hand}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    settle("benchmarks.numpy_gpt")
    times = interleave(contestants(Sizes(), VOCABULARY), given.rounds)
    limit = Limit("step of the GPT", ratio(times, "mithril", "by hand"), LIMIT)
    return report(f"GPT {Sizes()}, vocabulary {VOCABULARY}, forward and backward", times, [limit])


if __name__ == "__main__":
    sys.exit(main())
