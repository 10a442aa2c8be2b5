"""Pipelines whose stages exchange samples between replicas, or loop, equal one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops

from tests.placement.models import FEATURES, block, compared, followed, head, samples

MESH = ml.Mesh(data=2, pipeline=2)


@ml.layer
def Merge(input: ml.ir.Tensor) -> ml.ir.Tensor:  # noqa: N802 - a layer
    """Double every sample, by way of another shape."""
    return ops.reshape(ops.reshape(input, (-1, input.shape[-1])) * 2.0, input.shape)


def experts() -> ml.MoE:
    return ml.MoE(
        num_experts=4,
        expert_dim=8,
        sharding={"experts.in.weight": P("data"), "experts.out.weight": P("data")},
    )


@pytest.mark.parametrize(("first", "batch"), [(experts, 8), (Merge, 8), (Merge, 6)])
def test_samples_stay_in_order(first, batch: int) -> None:
    stage = ml.Model()
    stage |= first()(input="x", output="h")
    model = ml.Model()
    model |= ml.Pipeline([stage, ml.Linear(3)], microbatch_size=2)(input="input", output="output")
    x = np.random.default_rng(0).standard_normal((batch, 4, FEATURES)).astype(np.float32)
    alone = ml.compile(model, ml.NumpyBackend(), inference=True)
    expected = alone.evaluate(alone.randomize_params(), {"input": x})["output"].numpy()
    backend = ml.NumpyBackend(MESH)
    for spec in (None, P("data")):
        shardings = None if spec is None else {"output": spec}
        compiled = ml.compile(model, backend, inference=True, out_shardings=shardings)
        given = {"input": backend.array(x, sharding=P("data"))}
        found = compiled.evaluate(compiled.randomize_params(), given)["output"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
        assert spec is None or found.sharding == ml.Sharding.of(MESH, spec, 3)


def deep(rate: float) -> ml.Model:
    inner = block()
    inner += ml.Dropout(rate=rate)
    model = ml.Model()
    model |= ml.Repeat(inner, 2)(input="x", output="y")
    return model


@pytest.mark.parametrize(("batch", "rate"), [(7, 0.0), (8, 0.3), (7, 0.3)])
@pytest.mark.parametrize("mesh", [ml.Mesh(pipeline=2), MESH], ids=str)
def test_loops_know_their_microbatch(batch: int, rate: float, mesh: ml.Mesh) -> None:
    model = ml.Model()
    model |= ml.Pipeline([deep(rate), followed(deep(rate), head())], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    spec = P("data") if "data" in mesh.names else None
    compared(model, ml.NumpyBackend(mesh), samples(batch), spec=spec)


@pytest.mark.parametrize("spec", [P(), P("data"), P("pipeline"), P(("data", "pipeline"))], ids=str)
@pytest.mark.parametrize("arrives", [None, P("data")], ids=str)
def test_outputs_leave_as_they_are_asked_to(spec: P, arrives: P | None) -> None:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="output")
    given = {"input": samples(8)["input"]}
    compiled = compared(
        model, ml.NumpyBackend(MESH), given, spec=arrives, out_shardings={"output": spec}
    )
    (port, *_) = compiled.plan.outputs
    assert port.sharding == ml.Sharding.of(MESH, spec, 2)
