"""1F1B holds the activations of fewer micro-batches than GPipe: measured on JAX."""

from __future__ import annotations

import gc
from typing import Any

import jax
import mithril as ml
import numpy as np
import pytest
from mithril_jax.engine import JaxExecutable

STAGES, MICROBATCHES, WIDTH, ROWS = 4, 16, 64, 256


def peak(schedule: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the most bytes that the arrays of one device take during a step, beyond those before."""

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

    monkeypatch.setattr(JaxExecutable, "__call__", watched)
    compiled.evaluate(params, given, gradient)
    monkeypatch.undo()
    return max(seen) - before


def test_1f1b_takes_less_memory_than_gpipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stage keeps a micro-batch of its input, whatever comes out leaves it at once."""
    one = ROWS * WIDTH * 4
    gpipe, alternating = (peak(schedule, monkeypatch) for schedule in ("gpipe", "1f1b"))
    assert gpipe >= MICROBATCHES * one
    assert alternating <= (STAGES + 3) * one
