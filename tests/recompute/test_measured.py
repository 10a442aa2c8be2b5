"""Recomputation as frameworks see it: what PyTorch allocates, and what XLA plans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import mithril as ml
import pytest
import torch
from mithril.plan import Plan

from tests.recompute.models import looped, unrolled
from tests.torch.test_memory import count_peak

SHAPES = {"input": (8, 8, 8)}


def allocate(model: ml.Model, shape: tuple[int, ...], **options: Any) -> tuple[Plan, int]:
    """Return the plan of a model on PyTorch, and the most bytes that it allocates."""
    backend = ml.TorchBackend(device="cpu")
    compiled = ml.compile(model, backend, shapes={"input": shape}, **options)
    params = compiled.randomize_params(seed=0)
    x, cotangent = backend.ones(*shape), backend.ones(*shape)

    def run() -> list[torch.Tensor]:
        made = compiled.evaluate(params, {"input": x}, {"output": cotangent}, seed=1)
        return [x.torch() for x in made[1].values()]

    most = count_peak(run)[0]
    return compiled.plan, most


def test_pytorch_allocates_less() -> None:
    _, least = allocate(unrolled(), SHAPES["input"], checkpointing="all")
    assert least < 0.5 * allocate(unrolled(), SHAPES["input"])[1]


@pytest.mark.slow
@pytest.mark.parametrize("make", [unrolled, looped], ids=["unrolled", "loop"])
@pytest.mark.parametrize("budget", [0.8, 0.6])
def test_what_pytorch_holds_keeps_to_the_budget(
    make: Callable[[], ml.Model], budget: float
) -> None:
    shape = (32, 16, 8)
    kept, most = allocate(make(), shape)
    held = kept.memory().peak - most  # parameters and what goes in, which are there before
    found, fewer = allocate(make(), shape, checkpointing=budget)
    assert found.memory().peak <= budget * kept.memory().peak < kept.memory().peak
    assert held + fewer <= 1.1 * found.memory().peak
    assert held + fewer <= 1.02 * budget * kept.memory().peak


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
