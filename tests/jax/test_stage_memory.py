"""1F1B holds the activations of fewer micro-batches than GPipe: measured on JAX."""

from __future__ import annotations

import pytest

from benchmarks.stage_memory import MICROBATCHES, ONE, STAGES, jax_peak


@pytest.mark.slow
def test_1f1b_takes_less_memory_than_gpipe() -> None:
    """The first stage keeps a micro-batch of its input, whatever comes out leaves it at once."""
    assert jax_peak("gpipe") >= MICROBATCHES * ONE
    assert jax_peak("1f1b") <= (STAGES + 3) * ONE
