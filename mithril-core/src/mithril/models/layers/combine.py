"""Layers that join or rearrange tensors."""

from __future__ import annotations

import functools
import math
import operator

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.layer import layer
from mithril.models.tracing import layer_path


@layer()
def Add(*inputs: Tensor) -> Tensor:  # noqa: N802
    """Add tensors: `Add()(inputs=["a", "b"], output="sum")`.

    Args:
        inputs: two or more tensors whose shapes broadcast.

    Returns:
        Their sum.

    Raises:
        ShapeError: fewer than two tensors, or the shapes do not broadcast.

    >>> Add()
    Add()
    """
    if len(inputs) < 2:
        raise ShapeError(
            f"layer '{layer_path()}' adds {len(inputs)} tensor; give at least two, such as "
            f'inputs=["a", "b"]'
        )
    return functools.reduce(operator.add, inputs)


@layer()
def Flatten(input: Tensor) -> Tensor:  # noqa: N802
    """Join all dimensions after the first into one.

    Args:
        input: [batch, ...].

    Returns:
        [batch, features].

    Raises:
        ShapeError: the input is a scalar.

    >>> Flatten()
    Flatten()
    """
    if not input.ndim:
        raise ShapeError(
            f"layer '{layer_path()}' cannot flatten the scalar {input.type}; give [batch, ...]"
        )
    return input.reshape(input.shape[0], math.prod(input.shape[1:]))
