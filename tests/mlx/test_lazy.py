"""When programs are computed, and functions that MLX's CPU takes long for."""

from __future__ import annotations

import math

import mithril as ml
import mlx.core as mx
import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import Kernel
from mithril.ir import Op
from mithril.types import DType, TensorType
from mithril_mlx.kernels import KERNELS

from tests.tolerances import TOLERANCE

EDGES = [0.0, -0.0, 1e-30, -1e-30, 3.72, 3.73, -8.0, -87.5, -110.0, 88.7, 88.8, -1e30, 1e30]


def result(op: Op, x: np.ndarray) -> np.ndarray:
    kernel: Kernel = KERNELS[op.name]
    return np.asarray(kernel(op, [TensorType(x.shape, DType.float32)])(mx.array(x)))


@pytest.mark.parametrize(
    ("op", "exact"), [(ops.Exp(), math.exp), (ops.Erf(), math.erf)], ids=["exp", "erf"]
)
def test_functions_are_exact_far_out_too(op: Op, exact) -> None:
    numbers = np.array([*np.linspace(-86, 88, 2001), *np.linspace(-5, 5, 2001)], np.float32)
    expected = np.array([exact(float(x)) for x in numbers])
    np.testing.assert_allclose(result(op, numbers), expected, rtol=4e-7)


def test_functions_at_their_edges() -> None:
    numbers = np.array([*EDGES, np.inf, -np.inf, np.nan], np.float32)
    with np.errstate(all="ignore"):
        grown = np.exp(numbers)
        gate = 1 / (1 + 1 / grown)
    rtol, tiny = 4e-7, float(np.finfo(np.float32).tiny)
    np.testing.assert_allclose(result(ops.Exp(), numbers), grown, rtol, tiny)
    np.testing.assert_allclose(result(ops.Sigmoid(), numbers), gate, rtol, tiny)
    expected = [math.erf(float(x)) for x in numbers]
    np.testing.assert_allclose(result(ops.Erf(), numbers), expected, rtol)
    assert result(ops.Exp(), numbers)[-2] == 0.0
    assert list(result(ops.Erf(), np.array([-9, 9], np.float32))) == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("layers", "width", "jit"), [(30, 128, False), (30, 128, True), (8, 128, False), (30, 4, False)]
)
def test_values_are_computed_while_the_graph_is_built(
    layers: int, width: int, jit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a program that is short, tiny or goes through mx.compile is computed at its end."""
    model = ml.Model()
    for _ in range(layers):
        model += ml.Linear(width)
        model += ml.Tanh()
    started: list[int] = []
    start = mx.async_eval

    def noted(arrays: list[mx.array]) -> None:
        started.append(len(arrays))
        start(arrays)

    monkeypatch.setattr(mx, "async_eval", noted)
    x = np.ones((32, 3), np.float32)
    found = []
    for backend in (ml.MLXBackend(device="cpu", jit=jit), ml.NumpyBackend()):
        compiled = ml.compile(model, backend, shapes={"input": x})
        outputs = compiled.evaluate(compiled.randomize_params(0), {"input": x})
        found.append(outputs["output"].numpy())
    np.testing.assert_allclose(found[0], found[1], *TOLERANCE["float32"])
    assert (len(started) == 1) is (jit or layers == 8 or width == 4)
