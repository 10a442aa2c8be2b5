"""x * sigmoid(b x), with a kernel for each framework; a framework is imported when its kernel runs."""

from typing import Any

import mithril as ml
import numpy as np
from mithril import ops


def _numpy(x: Any, beta: float) -> Any:
    return (x / (1 + np.exp(-beta * x))).astype(x.dtype)


def _jax(x: Any, beta: float) -> Any:
    import jax

    return x * jax.nn.sigmoid(beta * x)


def _torch(x: Any, beta: float) -> Any:
    import torch

    return x * torch.sigmoid(beta * x)


def _mlx(x: Any, beta: float) -> Any:
    import mlx.core as mx

    return x * mx.sigmoid(beta * x)


def _gradient(inputs: Any, outputs: Any, cotangents: Any, beta: float) -> Any:
    gate = ops.sigmoid(inputs[0] * beta)
    return [cotangents[0] * (gate + outputs[0] * beta * (1.0 - gate))]


swish = ml.define_op(
    "acme.swish",
    shapes=lambda x: x,
    rule="elementwise",
    attributes={"beta": 1.0},
    kernels={"numpy": _numpy, "jax": _jax, "torch": _torch, "mlx": _mlx},
    gradient=_gradient,
)
