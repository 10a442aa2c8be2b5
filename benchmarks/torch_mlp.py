"""One step of a small MLP on PyTorch: eager autograd, Mithril, and Mithril with `jit=True`.

64-256-64 with relu, batch 32, on one rank: so small that what stands around the matrix products
shows, which is where compiling pays.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import mithril as ml
import numpy as np
import torch

from benchmarks import torch_by_hand
from benchmarks.harness import BLOCKS_KEPT, Limit, interleave, ratio, report, settle
from benchmarks.numpy_mlp import model
from benchmarks.sides import Functions, planned
from benchmarks.torch_gpt import JIT_LIMIT
from benchmarks.torch_sides import (
    VERSION,
    Eager,
    Ours,
    check_sides,
    take_over,
)

SIZES, BATCH = (64, 256, 64), 32
EAGER_LIMIT = 1.0


def contestants(sizes: tuple[int, ...], batch: int) -> Functions:
    """Return all sides, after a check that they give the same numbers."""
    rng = np.random.default_rng(0)
    data = {
        "x": rng.standard_normal((batch, sizes[0]), dtype=np.float32),
        "target": rng.integers(0, sizes[-1], batch).astype(np.int32),
    }
    plain, jitted = mithril_side(sizes, data), mithril_side(sizes, data, jit=True)
    module = take_over(torch_by_hand.MlpModel(sizes), plain.params)
    given = torch.tensor(data["x"]), torch.tensor(data["target"], dtype=torch.int64)
    eager = Eager(module, given)
    check_sides(plain, eager)
    check_sides(jitted, eager)
    return {"mithril": plain.step, "mithril, jit": jitted.step, "eager": eager.step}


def mithril_side(sizes: tuple[int, ...], data: Mapping[str, np.ndarray], jit: bool = False) -> Ours:
    """Return Mithril's side."""
    backend = ml.TorchBackend(device="cpu", jit=jit)
    return planned(
        Ours, model(sizes), backend, {name: backend.array(x) for name, x in data.items()}
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="widths of the MLP")
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=400)
    given = parser.parse_args()
    settle("benchmarks.torch_mlp", BLOCKS_KEPT)
    sizes = tuple(map(int, given.sizes.split(",")))
    times = interleave(contestants(sizes, given.batch), given.rounds, warm_up=20)
    limits = [
        Limit("mithril to eager", ratio(times, "mithril", "eager"), EAGER_LIMIT),
        Limit("mithril, jit to mithril", ratio(times, "mithril, jit", "mithril"), JIT_LIMIT),
    ]
    return report(f"MLP {given.sizes}, batch {given.batch}, {VERSION}", times, limits)


if __name__ == "__main__":
    sys.exit(main())
