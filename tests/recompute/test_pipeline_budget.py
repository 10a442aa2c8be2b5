"""A Llama in a pipeline, with ZeRO 3 and tensor parallelism, trained within a memory budget."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.cli.gpt import Sizes, megatron
from mithril.plan import Plan

from benchmarks.training_cases import Case, Ours, cut
from tests.tolerances import TOLERANCE

CASE = Case(Sizes(layers=4, width=32, heads=4, hidden=96, context=32, batch=16), 32, 2)
MESH = ml.Mesh(pipeline=2, data=2, tensor=2)
BACKENDS = {
    "numpy": lambda: ml.NumpyBackend(MESH),
    "torch": lambda: ml.TorchBackend(MESH, device="cpu", executor="lockstep"),
    "jax": lambda: ml.JaxBackend(MESH),
}


def train(backend: ml.Backend, **options: Any) -> tuple[Ours, list[float]]:
    """Return a side and the losses of its first steps."""
    ours = Ours(backend, CASE, **options)
    return ours, [ours.loss() for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", BACKENDS)
def test_steps_within_a_budget_are_those_of_one_device(name: str) -> None:
    pipeline = ml.PipelineOptions(microbatch_size=2)
    one, losses = train(ml.NumpyBackend())
    kept = Ours(BACKENDS[name](), CASE, 3, pipeline=pipeline)
    ours, found = train(BACKENDS[name](), zero=3, pipeline=pipeline, checkpointing=0.7)
    most = kept.run.plan.memory().peak
    assert ours.run.plan.memory().peak <= 0.7 * most
    assert ours.run.plan.policy.seconds > 0
    np.testing.assert_allclose(found, losses, *TOLERANCE["float32"])
    parameters = ours.parameters()
    for key, expected in one.parameters().items():
        np.testing.assert_allclose(parameters[key], expected, *TOLERANCE["float32"], err_msg=key)


@pytest.mark.slow
def test_gathered_parameters_are_counted_once_for_all_micro_batches() -> None:
    """What every layer computed again takes is a budget that is kept to, and little more is fast."""
    case = Case(Sizes(layers=8, width=64, heads=4, hidden=192, context=64, batch=8), 32, 2)

    def plan(asked: object) -> Plan:
        pipeline = ml.PipelineOptions(microbatch_size=1)
        return Ours(BACKENDS["numpy"](), case, 3, pipeline=pipeline, checkpointing=asked).run.plan

    again = plan("all")
    assert plan(f"{again.memory().peak} B").memory().peak <= again.memory().peak
    limit = int(1.1 * again.memory().peak)
    found = plan(f"{limit} B")
    assert found.memory().peak <= limit
    assert found.timeline().seconds < 0.9 * again.timeline().seconds


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torch", "jax"])
def test_every_layer_again_is_within_its_own_peak(name: str) -> None:
    """Plans are counted as they end: with collectives that are waited for at once, if need be."""
    case = Case(Sizes(layers=8, width=256, heads=4, hidden=768, context=512, batch=8), 512, 2)
    backend = {**BACKENDS, "torch": lambda: ml.TorchBackend(MESH, device="cpu")}[name]()

    def plan(asked: object) -> Plan:
        model = case.model()
        megatron(model)
        cut(model, case, 2)
        shapes = {
            n: ml.TensorSpec(x.shape, str(x.dtype), ml.P("data")) for n, x in case.data().items()
        }
        step = ml.train_step(
            model, backend, ml.optim.adamw(1e-4), shapes=shapes, zero=3, checkpointing=asked,
            pipeline=ml.PipelineOptions(microbatch_size=2),
        )  # fmt: skip
        return step.plan

    again = plan("all")
    found = plan(f"{again.memory().peak} B")
    assert found.memory().peak <= again.memory().peak
    assert found.timeline().seconds <= again.timeline().seconds
