"""Layers that work on each element by itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mithril.errors import listing
from mithril.ir import Tensor
from mithril.models.definition import FINITE, FRACTION, POSITIVE_NUMBER, Check
from mithril.models.layer import layer
from mithril.models.shapes import require_features
from mithril.models.trace_context import is_inference, layer_salt, seed
from mithril.ops import (
    dropout,
    elu,
    gelu,
    glu,
    hard_swish,
    leaky_relu,
    mish,
    relu,
    sigmoid,
    silu,
    softmax,
    softplus,
    tanh,
)

Function = Callable[[Tensor], Tensor]
Activation = str | Function
ACTIVATIONS: dict[str, Function] = {
    "elu": elu, "gelu": gelu, "gelu_tanh": partial(gelu, approximate=True),
    "hard_swish": hard_swish, "leaky_relu": leaky_relu, "mish": mish, "relu": relu,
    "sigmoid": sigmoid, "silu": silu, "softplus": softplus, "tanh": tanh,
}  # fmt: skip
GATED = {"geglu": "gelu", "reglu": "relu", "swiglu": "silu"}
"""Names of gated activations (Shazeer, 2020), and the activation of the gate."""
ACTIVATION = Check(
    f"one of {listing([*ACTIVATIONS, *GATED])}, or a function of a tensor",
    lambda value: (
        value in (*ACTIVATIONS, *GATED)
        if isinstance(value, str)
        else callable(value) and not isinstance(value, type)
    ),
)


def read_activation(activation: Activation, gated: bool) -> tuple[Function, bool]:
    """Return the function of an activation, and whether it is that of a gate.

    >>> read_activation("reglu", gated=False) == (relu, True)
    True
    """
    if not isinstance(activation, str):
        return activation, gated
    return ACTIVATIONS[GATED.get(activation, activation)], gated or activation in GATED


@layer()
def Relu(input: Tensor) -> Tensor:  # noqa: N802
    """Replace negative numbers by zero.

    Args:
        input: any shape.

    Returns:
        The same shape.

    >>> Relu()
    Relu()
    """
    return relu(input)


@layer()
def Gelu(input: Tensor, *, approximate: bool = False) -> Tensor:  # noqa: N802
    """Multiply each number by the normal distribution function of itself.

    Args:
        input: any shape, floats.
        approximate: use the tanh form instead of the exact one.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Gelu(approximate=True)
    Gelu(approximate=True)
    """
    return gelu(input, approximate=approximate)


@layer
def Silu(input: Tensor) -> Tensor:  # noqa: N802
    """Multiply each number by its sigmoid (Elfwing et al., 2017), also called swish.

    Args:
        input: any shape, floats.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Silu()
    Silu()
    """
    return silu(input)


@layer
def Sigmoid(input: Tensor) -> Tensor:  # noqa: N802
    """Map each number to 1 / (1 + e ** -x), between 0 and 1.

    Args:
        input: any shape, floats.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Sigmoid()
    Sigmoid()
    """
    return sigmoid(input)


@layer
def Tanh(input: Tensor) -> Tensor:  # noqa: N802
    """Map each number to its hyperbolic tangent, between -1 and 1.

    Args:
        input: any shape, floats.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Tanh()
    Tanh()
    """
    return tanh(input)


@layer
def Softmax(input: Tensor, *, axis: int = -1) -> Tensor:  # noqa: N802
    """Turn numbers along a dimension into probabilities: e ** x over the sum of all of them.

    Args:
        input: any shape but a scalar, floats.
        axis: the dimension; the last by default.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats, or has no such dimension.

    >>> Softmax()
    Softmax()
    """
    return softmax(input, axis)


@layer(checks={"negative_slope": FINITE})
def LeakyRelu(input: Tensor, *, negative_slope: float = 0.01) -> Tensor:  # noqa: N802
    """Keep positive numbers, and shrink negative ones (Maas et al., 2013).

    Args:
        input: any shape, floats.
        negative_slope: what negative numbers are multiplied by.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> LeakyRelu(0.2)
    LeakyRelu(negative_slope=0.2)
    """
    return leaky_relu(input, negative_slope)


@layer(checks={"alpha": FINITE})
def Elu(input: Tensor, *, alpha: float = 1.0) -> Tensor:  # noqa: N802
    """Keep positive numbers, and map negative ones to alpha * (e ** x - 1) (Clevert et al., 2015).

    Args:
        input: any shape, floats.
        alpha: minus the value that is approached far below zero.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Elu()
    Elu()
    """
    return elu(input, alpha)


@layer(checks={"beta": POSITIVE_NUMBER})
def Softplus(input: Tensor, *, beta: float = 1.0) -> Tensor:  # noqa: N802
    """Map each number to log(1 + e ** (beta x)) / beta, a smooth relu.

    Args:
        input: any shape, floats.
        beta: how sharply it bends.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Softplus()
    Softplus()
    """
    return softplus(input, beta)


@layer
def Mish(input: Tensor) -> Tensor:  # noqa: N802
    """Multiply each number by the hyperbolic tangent of its softplus (Misra, 2019).

    Args:
        input: any shape, floats.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Mish()
    Mish()
    """
    return mish(input)


@layer
def HardSwish(input: Tensor) -> Tensor:  # noqa: N802
    """Multiply each number by clip(x + 3, 0, 6) / 6, nearly its sigmoid (Howard et al., 2019).

    Args:
        input: any shape, floats.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> HardSwish()
    HardSwish()
    """
    return hard_swish(input)


@layer
def Glu(input: Tensor, *, axis: int = -1) -> Tensor:  # noqa: N802
    """Multiply the first half of a dimension by the sigmoid of the second (Dauphin et al., 2017).

    Args:
        input: any shape but a scalar, floats.
        axis: the dimension, of even size; the last by default.

    Returns:
        The input's shape with half as many elements along the dimension.

    Raises:
        ShapeError: the input is not of floats, or has no such dimension, or its size is odd.

    >>> Glu()
    Glu()
    """
    return glu(input, axis)


@layer(checks={"rate": FRACTION})
def Dropout(input: Tensor, *, rate: float = 0.5) -> Tensor:  # noqa: N802
    """Set a random share of the elements to zero and scale the others up to make up for it.

    The mask follows from the seed of the evaluation and the layer's path: the same seed gives the
    same mask, on every mesh. Compiled for inference the layer does nothing.

    Args:
        input: any shape, floats.
        rate: share of the elements to drop, from 0 up to, not including, 1.

    Returns:
        The same shape.

    Raises:
        ShapeError: the input is not of floats.

    >>> Dropout(rate=0.1)
    Dropout(rate=0.1)
    """
    require_features(input)
    if is_inference() or rate == 0:
        return input
    masked: Tensor = dropout(input, seed(), rate, layer_salt())
    return masked


__all__ = [
    "Dropout", "Elu", "Gelu", "Glu", "HardSwish", "LeakyRelu", "Mish", "Relu", "Sigmoid", "Silu",
    "Softmax", "Softplus", "Tanh",
]  # fmt: skip
