"""What normalises channels by statistics that are known."""

from __future__ import annotations

import re
from typing import Any

import jax
import mithril as ml
import numpy as np
import pytest
from mithril import ops
from mithril.ir import Builder
from mithril.mesh import Mesh
from mithril.types import DType, TensorType

from tests.engine.programs import program_of

SHAPE, EPSILON = (4, 8, 6, 6), 1e-5


def lower() -> Any:
    """Return the executable that normalises."""
    builder, row = Builder(), TensorType(SHAPE[1:2], DType.float32)
    rows = dict.fromkeys(("gain", "bias", "mean", "variance"), row)
    types = {"x": TensorType(SHAPE, DType.float32), **rows}
    inputs = [builder.input(type, name) for name, type in types.items()]
    (y,) = builder.apply(ops.NormalizeChannels(EPSILON), *inputs)
    return ml.JaxBackend().engine.lower(program_of(Mesh(), builder.build({"y": y})))


def draw(away: float) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    gain, bias = rng.standard_normal((2, SHAPE[1]), "float32")
    x = away + rng.standard_normal(SHAPE, "float32")
    return [x, gain, bias, x.mean((0, 2, 3)), x.var((0, 2, 3))]


def test_an_element_takes_one_product_and_one_sum() -> None:
    """XLA:CPU has kernels of so many operations around convolutions, and cuts off what is more."""
    text = lower().jitted.lower(*draw(0.0)).as_text()
    wide = "x".join(map(str, SHAPE))
    found = re.findall(rf"stablehlo\.(\w+) .*tensor<{wide}xf32>", text)
    assert sorted(name for name in found if "broadcast" not in name) == ["add", "multiply"]


@pytest.mark.parametrize("away", [0.0, 30.0, 1e3])
def test_means_far_from_zero_cost_no_more_than_a_rounding_of_x(away: float) -> None:
    x, gain, bias, mean, variance = draw(away)
    (found,) = lower()([jax.numpy.asarray(a) for a in (x, gain, bias, mean, variance)])

    def normalize(x: np.ndarray) -> np.ndarray:
        wide = (np.asarray(a, np.float64)[:, None, None] for a in (gain, bias, mean, variance))
        gain_, bias_, mean_, variance_ = wide
        return (x - mean_) / np.sqrt(variance_ + EPSILON) * gain_ + bias_

    exact = normalize(x.astype(np.float64))
    slope = np.abs(gain / np.sqrt(variance + EPSILON))[:, None, None]
    allowed = 4 * np.finfo(np.float32).eps * (np.abs(x) * slope + np.abs(exact) + 1)
    assert (np.abs(found - exact) <= allowed).all()
