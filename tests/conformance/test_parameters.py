"""Parameters on every backend: how they start, which are trained, which are one."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.runtime.test_initializers import KINDS, values
from tests.runtime.test_tied_parameters import IDS, TARGETS, language_model
from tests.runtime.test_trainable import SLOPE, X, lora, mlp
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
RTOL, ATOL = TOLERANCE["float32"]


@pytest.mark.parametrize("kind", ["truncated normal", "xavier", "orthogonal", "a function"])
def test_they_start_with_the_same_bits(backend: str, kind: str) -> None:
    expected = values(KINDS[kind])
    found = values(KINDS[kind], opened(backend, tensor=2), P("tensor"))
    for name, value in expected.items():
        assert value.tobytes() == found[name].tobytes(), name


def step(
    model: ml.Model, backend: ml.Backend, inputs: dict[str, np.ndarray], slopes: dict[str, object]
) -> tuple[ml.CompiledModel, dict[str, np.ndarray]]:
    """Return a compiled model, and its outputs and gradients."""
    compiled = ml.compile(model, backend)
    spec = P("data") if backend.mesh.size > 1 else None
    given = {name: backend.array(x, sharding=spec) for name, x in inputs.items()}
    outputs, gradients = compiled.evaluate(compiled.randomize_params(1), given, slopes)
    return compiled, {n: np.asarray(x.numpy()) for n, x in {**outputs, **gradients}.items()}


@pytest.mark.parametrize("case", ["a frozen layer", "lora", "tied"])
def test_a_step_is_that_of_numpy_on_one_device(backend: str, case: str) -> None:
    frozen = mlp()
    frozen.freeze("up.*")
    model, inputs, slopes = {
        "a frozen layer": (frozen, {"x": X}, {"y": SLOPE}),
        "lora": (lora(), {"x": X, "target": SLOPE}, {"loss": 1.0}),
        "tied": (language_model(), {"ids": IDS, "targets": TARGETS}, {"loss": 1.0}),
    }[case]
    _, expected = step(model, ml.NumpyBackend(), inputs, slopes)
    compiled, found = step(model, opened(backend, data=2), inputs, slopes)
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=RTOL, atol=ATOL, err_msg=name)
    trained = sum(expected[name].nbytes for name in compiled.trainable)
    loss = 4 if "loss" in expected else 0
    reduced = [row.bytes for row in compiled.plan.collectives() if str(row.phase) == "backward"]
    assert sum(reduced) == trained + loss
