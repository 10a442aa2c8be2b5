"""Losses: how far predictions are from targets, as one number."""

from __future__ import annotations

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.layer import layer
from mithril.models.trace_context import layer_path
from mithril.ops import cross_entropy, mean


@layer()
def CrossEntropy(input: Tensor, target: Tensor) -> Tensor:  # noqa: N802
    """Average the negative log-probability of the target classes over all positions.

    Args:
        input: [..., classes], the logits, floats.
        target: [...], integers from 0 up to classes - 1.

    Returns:
        A scalar.

    Raises:
        ShapeError: the target is not of integers, or its shape is not that of the logits without
            the classes.

    >>> CrossEntropy()
    CrossEntropy()
    """
    if target.shape != input.shape[:-1] or not target.dtype.is_integer:
        raise ShapeError(
            f"layer '{layer_path()}' has logits {input.type} and target {target.type}; the target "
            f"must be integers of shape {input.shape[:-1]}, one class per position"
        )
    losses: Tensor = cross_entropy(input, target)
    return mean(losses)


@layer()
def MeanSquaredError(input: Tensor, target: Tensor) -> Tensor:  # noqa: N802
    """Average the square of input - target over all elements.

    Args:
        input: any shape, floats.
        target: the same shape.

    Returns:
        A scalar.

    Raises:
        ShapeError: the shapes differ.

    >>> MeanSquaredError()
    MeanSquaredError()
    """
    if target.shape != input.shape:
        raise ShapeError(
            f"layer '{layer_path()}' compares input {input.type} with target {target.type}; give "
            f"both the same shape"
        )
    difference = input - target
    return mean(difference * difference)


__all__ = ["CrossEntropy", "MeanSquaredError"]
