"""A train step in a process that may not have more memory of its own than it is told.

The limit is RLIMIT_DATA: what a process maps for itself alone. Files that are mapped, as those of
the host arena are, are no part of it. It prints the loss; where memory ends, `out of memory`.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np

ROWS, WIDTH, DEPTH = 4096, 256, 32
MIB = 1 << 20


def make_step(**options: Any) -> ml.TrainStep:
    model = ml.Model()
    model |= ml.Linear(WIDTH, name="first")(input="x", output="h")
    for number in range(DEPTH):
        model += ml.Linear(WIDTH, name=f"line_{number}")
        model += ml.Tanh(name=f"act_{number}")
    model += ml.MeanSquaredError(name="end")(target="t", output="loss")
    shapes = dict.fromkeys(("x", "t"), (ROWS, WIDTH))
    return ml.train_step(model, ml.NumpyBackend(), ml.optim.adamw(1e-3), shapes=shapes, **options)


OFFLOADED = {
    "activation_offload": True, "offload_threshold": 1000, "offload_optimizer": True,
    "host_arena": "file",
}  # fmt: skip


def count_own() -> int:
    """Return the bytes that count for the limit now."""
    told = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    lines = dict(line.split(":", 1) for line in told)
    return int(lines["VmData"].split()[0]) * 1024


def main(is_offloaded: bool, mib: int) -> None:
    step = make_step(**(OFFLOADED if is_offloaded else {}))
    rng = np.random.default_rng(0)
    batch = {name: rng.standard_normal((ROWS, WIDTH)).astype(np.float32) for name in ("x", "t")}
    np.ones((ROWS, WIDTH)) @ np.ones((WIDTH, WIDTH))  # BLAS has its threads and buffers now
    most = count_own() + mib * MIB
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        state = step.init(seed=0)
        state, metrics = step(state, batch)
    except MemoryError:
        print("out of memory")
        return
    print(metrics["loss"].item())


if __name__ == "__main__":
    main(sys.argv[1] == "offloaded", int(sys.argv[2]))
