"""What JAX's engine says of how devices share the processor, and how often it compiles."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest


def test_cpu_devices_share_the_threads_of_the_process():
    two = ml.JaxBackend(ml.Mesh(data=2)).engine.execution
    assert (two.devices_per_processor, two.largest_part, two.overlaps) == (2, 2.0, False)
    one = ml.JaxBackend().engine.execution
    assert (one.devices_per_processor, one.largest_part) == (1, 1.0)


@pytest.mark.parametrize("devices", [1, 4])
def test_a_step_is_compiled_once(devices: int) -> None:
    """What the optimiser keeps at first depends on no array, and JAX tells such results apart."""
    model = ml.Model()
    model |= ml.Linear(4, name="down")(input="x", output="y")
    model += ml.MeanSquaredError()(input="y", target="t", output="loss")
    batch = {name: np.ones((8, 4), np.float32) for name in ("x", "t")}
    backend, optimizer = ml.JaxBackend(ml.Mesh(data=devices)), ml.optim.adam(0.1)
    step = ml.train_step(model, backend, optimizer, shapes={n: x.shape for n, x in batch.items()})
    state = step.init()
    for _ in range(3):
        state, _ = step(state, batch)
    executable: Any = step._latest.executable
    assert executable.jitted._cache_size() == 1
