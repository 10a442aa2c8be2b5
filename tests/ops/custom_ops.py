"""Ops that users might define, as fixtures, and graphs of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.ir import Builder, Graph
from mithril.types import DType, TensorType

F32, F64, I32 = DType.float32, DType.float64, DType.int32
Define = Callable[..., Any]


@pytest.fixture
def softsign() -> Define:
    """An elementwise op with a gradient."""
    return ml.define_op(
        "my.softsign",
        shapes=lambda x: x,
        rule="elementwise",
        kernels={"numpy": lambda x: x / (1 + np.abs(x))},
        gradient=lambda inputs, outputs, cotangents: [
            cotangents[0] / ((ops.abs(inputs[0]) + 1.0) * (ops.abs(inputs[0]) + 1.0))
        ],
    )


def moments_kernel(x: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    return x.sum(-1), (x**order).sum(-1)


@pytest.fixture
def moments() -> Define:
    """Two results, an attribute, and a factor that both results lack: partial sums when split."""
    return ml.define_op(
        "moments",
        shapes=lambda x: [x.with_shape(x.shape[:-1])] * 2,
        rule="... n -> ..., ...",
        attributes={"order": int},
        kernels={"numpy": moments_kernel},
        gradient=lambda inputs, outputs, cotangents, order: [
            wide(cotangents[0], inputs[0])
            + wide(cotangents[1], inputs[0]) * order * inputs[0] ** float(order - 1)
        ],
    )


def wide(x: Any, like: Any) -> Any:
    return ops.broadcast_to(x.reshape(*x.shape, 1), like.shape)


def norm_kernel(x: np.ndarray, gain: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(epsilon)) * gain


def norm_expansion(x: Any, gain: Any, epsilon: float) -> Any:
    return x * ops.rsqrt(ops.mean(x * x, -1, keepdims=True) + epsilon) * gain


@pytest.fixture
def norm() -> Define:
    """A kernel that needs a whole dimension, and an expansion that does not."""
    return ml.define_op(
        "my.norm",
        shapes=lambda x, gain: x,
        rule="... n, n -> ... n",
        expandable=["n"],
        attributes={"epsilon": 1e-6},
        kernels={"numpy": norm_kernel},
        expand=norm_expansion,
    )


def graph_of(function: Callable[..., Any], *types: TensorType) -> Graph:
    """Return the graph of a function over inputs x0, x1, …, with results y0, y1, …."""
    builder = Builder()
    with builder.at(scope="layer", source=None):
        found = function(*(builder.input(t, f"x{i}") for i, t in enumerate(types)))
    results = found if isinstance(found, tuple) else (found,)
    return builder.build({f"y{i}": y for i, y in enumerate(results)})


def f64(*shape: int) -> TensorType:
    return TensorType(shape, F64)


def activation_model(softsign: Define) -> ml.Model:
    @ml.layer
    def Softsign(input):  # noqa: N802
        return softsign(input)

    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="input", output="hidden")
    model += Softsign(name="act")(input="hidden", output="active")
    model += ml.Linear(4, name="down")(input="active", output="output")
    model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    return model
