"""Layers that work on each element by itself."""

from __future__ import annotations

import zlib

from mithril.ir import Tensor
from mithril.models.definition import FRACTION
from mithril.models.layer import layer
from mithril.models.shapes import require_features
from mithril.models.trace_context import is_inference, layer_path, seed
from mithril.ops import dropout, gelu, relu, sigmoid, silu, softmax, tanh


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
    salt = zlib.crc32(layer_path().encode()) >> 1  # stable from run to run, unlike hash()
    masked: Tensor = dropout(input, seed(), rate, salt)
    return masked


__all__ = ["Dropout", "Gelu", "Relu", "Sigmoid", "Silu", "Softmax", "Tanh"]
