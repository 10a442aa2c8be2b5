"""Recomputation as frameworks see it: what PyTorch allocates, and what XLA plans."""

from __future__ import annotations

from typing import Any

import jax
import mithril as ml
import pytest
import torch

from tests.recompute.models import unrolled
from tests.torch.test_memory import count_peak

SHAPES = {"input": (8, 8, 8)}


def test_pytorch_allocates_less() -> None:
    def measure(**options: Any) -> int:
        compiled = ml.compile(unrolled(), ml.TorchBackend(device="cpu"), shapes=SHAPES, **options)
        params = compiled.randomize_params(seed=0)
        backend = compiled.backend
        x, cotangent = backend.ones(8, 8, 8), backend.ones(8, 8, 8)

        def run() -> list[torch.Tensor]:
            made = compiled.evaluate(params, {"input": x}, {"output": cotangent}, seed=1)
            return [x.torch() for x in made[1].values()]

        return count_peak(run)[0]

    assert measure(checkpointing="all") < 0.5 * measure()


@pytest.mark.slow
def test_xla_plans_less() -> None:
    def measure(**options: Any) -> int:
        compiled = ml.compile(unrolled(), ml.JaxBackend(), **options)
        program = compiled.program_for(SHAPES, gradients=True)
        inputs = [
            jax.numpy.zeros(port.type.shape, port.type.dtype.numpy) for port in program.plan.inputs
        ]
        return int(program.executable.memory(inputs).temp_size_in_bytes)

    assert measure(checkpointing="all") < 0.7 * measure()
