"""How much a schedule of a pipeline holds: GPipe, 1F1B and ZB-H1, measured on JAX and on PyTorch.

On JAX the buffers of the first device after every program that runs, beyond those before the step;
on PyTorch the tensors that are alive on the first rank, its text run by a thread. Four stages; on
JAX 16 micro-batches of 64 KiB, on PyTorch 64 small ones.
"""

from __future__ import annotations

import argparse
import gc
import sys
from typing import Any

import mithril as ml
import numpy as np

STAGES, MICROBATCHES, WIDTH, ROWS = 4, 16, 64, 256
ONE = ROWS * WIDTH * 4  # bytes of a micro-batch
SCHEDULES = ("gpipe", "1f1b", "zb-h1")


def jax_peak(schedule: str) -> int:
    """Return the most bytes that buffers of JAX's first device take during a step."""
    import jax
    from mithril_jax.engine import JaxExecutable

    def held() -> int:
        parts = [
            shard.data
            for x in jax.live_arrays()
            for shard in x.addressable_shards
            if shard.device == jax.devices()[0]
        ]
        buffers = {part.unsafe_buffer_pointer(): part.nbytes for part in parts}
        return sum(buffers.values())  # several arrays may be views of one buffer

    model = ml.Model()
    stages = [ml.Linear(WIDTH) for _ in range(STAGES)]
    model |= ml.Pipeline(stages, microbatch_size=ROWS)(input="input", output="output")
    backend = ml.JaxBackend(ml.Mesh(pipeline=STAGES))
    compiled = ml.compile(model, backend, pipeline_schedule=schedule)
    params = compiled.randomize_params()
    x = np.ones((ROWS * MICROBATCHES, WIDTH), np.float32)
    given, gradient = {"input": backend.array(x)}, {"output": backend.array(x)}
    compiled.evaluate(params, given, gradient)
    gc.collect()
    before, seen = held(), []
    run = JaxExecutable.__call__

    def watched(self: JaxExecutable, inputs: Any, observe: Any = None) -> Any:
        results = jax.block_until_ready(run(self, inputs, observe))
        seen.append(held())
        return results

    JaxExecutable.__call__ = watched  # type: ignore[method-assign]
    try:
        compiled.evaluate(params, given, gradient)
    finally:
        JaxExecutable.__call__ = run  # type: ignore[method-assign]
    return max(seen) - before


def torch_peak(schedule: str) -> int:
    """Return the most bytes of tensors that are alive on the first rank during a step."""
    from tests.torch.test_stages import in_threads

    return in_threads(STAGES, schedule, 64).most[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("jax", "torch"), default="jax")
    given = parser.parse_args()
    measure = jax_peak if given.backend == "jax" else torch_peak
    peaks = {schedule: measure(schedule) for schedule in SCHEDULES}
    for schedule, peak in peaks.items():
        print(f"{schedule:6} {peak:9} bytes, {peak / peaks['gpipe']:.2f} of gpipe")
    return 0 if peaks["1f1b"] < 0.5 * peaks["gpipe"] else 1


if __name__ == "__main__":
    sys.exit(main())
