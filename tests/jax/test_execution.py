"""What JAX's engine says of how devices share the processor, and how often it compiles."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril_jax.executable import JaxExecutable


def test_cpu_devices_share_the_threads_of_the_process():
    two = ml.JaxBackend(ml.Mesh(data=2)).engine.execution
    assert (two.devices_per_processor, two.largest_part, two.overlaps) == (2, 2.0, False)
    assert two.shares_threads
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


@pytest.mark.parametrize("devices", [1, 2])
def test_a_repeated_evaluation_calls_what_jax_has_jitted(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one device; an observer, as several devices, is for the executable."""
    compiled = ml.compile(
        ml.Linear(2), ml.JaxBackend(ml.Mesh(data=devices)), shapes={"input": (4, 3)}
    )
    params, rng = compiled.randomize_params(seed=0), np.random.default_rng(0)
    weight, bias = params["weight"].numpy(), params["bias"].numpy()
    called: list[Any] = []
    call = JaxExecutable.__call__

    def tell(self: JaxExecutable, inputs: Any, observe: Any = None) -> Any:
        called.append(observe)
        return call(self, inputs, observe)

    monkeypatch.setattr(JaxExecutable, "__call__", tell)
    for count in (1, 2, 2 if devices == 1 else 3):
        x = rng.standard_normal((4, 3)).astype(np.float32)
        outputs = compiled.evaluate(params, {"input": x})
        np.testing.assert_allclose(outputs["output"].numpy(), x @ weight.T + bias, 1e-5, 1e-6)
        assert len(called) == count
    observed: list[Any] = []
    compiled.evaluate(params, {"input": x}, observe=observed.append)
    assert called[-1] == observed.append
