"""Small models, and what they give on one device, for tests of orders of mesh axes."""

from __future__ import annotations

from dataclasses import replace

import mithril as ml
import numpy as np
from mithril.cost import SIMULATED, Level
from mithril.mesh import Mesh, P

from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
NODES = replace(
    SIMULATED,
    name="nodes",
    levels=(Level("node", 2, 1e-6, 1e10), Level("network", None, 1e-5, 1e8)),
)
"""Nodes of two devices, far from one another."""
X = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
T = np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32)
GIVEN = Mesh(data=2, tensor=2)


def perceptron(**shardings: P) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model |= ml.Relu()(input="h", output="a")
    model |= ml.Linear(4, name="down")(input="a", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    model.shard({f"{name}.weight": spec for name, spec in shardings.items()})
    return model


SPLIT = {"up": P("tensor", None), "down": P(None, "tensor")}


def evaluated(model: ml.Model, backend: ml.Backend, placed: bool = True) -> dict[str, np.ndarray]:
    """Return loss and gradients, from inputs that are split over the batch."""
    spec = P("data") if placed and "data" in backend.mesh.sizes else None
    inputs = {n: backend.array(v, sharding=spec) if spec else v for n, v in (("x", X), ("t", T))}
    compiled = ml.compile(model, backend)
    seen: list[tuple[str, tuple[str, ...], int]] = []
    outputs, gradients = compiled.evaluate(
        compiled.randomize_params(3), inputs, {"loss": 1.0}, observe=lambda t: seen.append(t.row)
    )
    assert sorted(seen) == sorted(compiled.plan.list_issued())
    return {"loss": outputs["loss"].numpy(), **{n: g.numpy() for n, g in gradients.items()}}


def check_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, RTOL, ATOL, err_msg=name)


def staged() -> ml.Model:
    model = ml.Model()
    stages = [ml.Linear(8, name="first"), ml.Linear(4, name="second")]
    model |= ml.Pipeline(stages, microbatch_size=2, name="all")(input="x", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    return model


ALONE = evaluated(perceptron(), ml.NumpyBackend())
