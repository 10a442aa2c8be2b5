"""One step of an MLP on MLX: outputs and gradients, against `mx.value_and_grad` by hand.

64-256-64 with relu, batch 32, is so small that what stands around the matrix products shows; with
`--sizes 784,512,256,10 --batch 128` it is the MLP of `numpy_mlp`.
"""

from __future__ import annotations

import argparse
import sys

import mithril as ml
import mlx.core as mx
import numpy as np

from benchmarks import mlx_by_hand
from benchmarks.harness import Limit, interleave, ratio, report
from benchmarks.mlx_sides import (
    LIMIT,
    VERSION,
    ByHand,
    Ours,
    check_sides,
    plain,
    settle_mlx,
)
from benchmarks.numpy_mlp import model
from benchmarks.sides import Functions, planned

SIZES, BATCH = (64, 256, 64), 32


def contestants(sizes: tuple[int, ...], batch: int) -> Functions:
    """Return both sides, after a check that they give the same numbers."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, sizes[0]), dtype=np.float32)
    target = rng.integers(0, sizes[-1], batch).astype(np.int32)
    backend = ml.MLXBackend(device="cpu")
    inputs = {"x": backend.array(x), "target": backend.array(target)}
    mithril = planned(Ours, model(sizes), backend, inputs)
    given = mx.array(x), mx.array(target)
    by_hand = ByHand(mlx_by_hand.step(mlx_by_hand.mlp), plain(mithril.params), given)
    check_sides(mithril, by_hand)
    return {"mithril": mithril.step, "by hand": by_hand.step}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="widths of the MLP")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=400)
    given = parser.parse_args()
    settle_mlx("benchmarks.mlx_mlp")
    sizes = tuple(int(size) for size in given.sizes.split(","))
    times = interleave(contestants(sizes, given.batch), given.rounds, warm_up=20)
    limit = Limit("mithril to by hand", ratio(times, "mithril", "by hand"), LIMIT)
    return report(f"MLP {given.sizes}, batch {given.batch}, {VERSION}", times, [limit])


if __name__ == "__main__":
    sys.exit(main())
