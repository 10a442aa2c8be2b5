"""A run that is measured while activations wait on the host: its memory is that of the devices."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest

from tests.conformance.engines import BACKENDS, opened
from tests.offload.models import SEED, batch, compile_model
from tests.profiles import quick

ON = {"activation_offload": True, "offload_threshold": 1000}


def measure(backend: ml.Backend, **options: object) -> tuple[int, dict[str, np.ndarray]]:
    """Return the most bytes that a device held, and the gradients of a loop."""
    compiled = compile_model("loop", backend, **options)
    params = compiled.randomize_params(seed=0)
    with ml.profile(backend) as prof:
        _, gradients = compiled.evaluate(params, batch(), output_gradients=SEED, seed=3)
    assert prof._known is not None
    (run,) = prof._known[0].runs
    found = {name: x.numpy() for name, x in gradients.items()}
    return max(use.peak for use in run.memory), found


@quick(lambda name: name in ("numpy", "mlx"))
@pytest.mark.parametrize("name", ["numpy", *BACKENDS])
def test_a_loop_whose_slices_wait_on_the_host_is_measured(name: str) -> None:
    backend = opened(name, data=2)
    most, expected = measure(backend)
    offloaded, found = measure(backend, **ON)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6)
    if name == "numpy":  # others count what their libraries hold, or what is in the whole process
        assert offloaded < 0.7 * most
