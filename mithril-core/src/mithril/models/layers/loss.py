"""Losses between numbers: how far predictions are from targets.

Every loss takes `reduction`: `"mean"` over all elements, `"sum"`, or `"none"` for one an element. A
batch that is split over devices or cut into micro-batches is one batch: sums, and what a mean
divides by, are those of the whole.
"""

from __future__ import annotations

from mithril.errors import OptionError, ShapeError
from mithril.ir import Tensor
from mithril.models.definition import FINITE, POSITIVE_NUMBER, Check
from mithril.models.layer import layer
from mithril.models.shapes import require_features
from mithril.models.trace_context import layer_path
from mithril.ops import abs, cast, greater, less_equal, maximum, mean, rsqrt, sum, where

REDUCTIONS = ("mean", "sum", "none")
REDUCTION = Check("'mean', 'sum' or 'none'", lambda value: value in list(REDUCTIONS))
_BETWEEN = Check(
    "a number between 0 and 1",
    lambda value: isinstance(value, float) and 0 < value < 1,
)


@layer(checks={"reduction": REDUCTION})
def MeanSquaredError(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:  # noqa: N802
    """Average the square of input - target over all elements.

    Args:
        input: any shape, floats.
        target: the same shape.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes differ.

    >>> MeanSquaredError()
    MeanSquaredError()
    """
    require_same_shape(input, target)
    difference = input - target
    return reduce_losses(difference * difference, reduction)


@layer(checks={"reduction": REDUCTION})
def L1Loss(input: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:  # noqa: N802
    """Average the absolute value of input - target over all elements.

    Args:
        input: any shape, floats.
        target: the same shape.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes differ.

    >>> L1Loss("sum")
    L1Loss(reduction='sum')
    """
    require_same_shape(input, target)
    return reduce_losses(abs(input - target), reduction)


@layer(checks={"delta": POSITIVE_NUMBER, "reduction": REDUCTION})
def HuberLoss(  # noqa: N802
    input: Tensor, target: Tensor, *, delta: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Average half the square of input - target where it is small, and go on straight from there.

    Huber, "Robust estimation of a location parameter" (1964): beyond `delta` the loss is
    delta * (distance - delta / 2).

    Args:
        input: any shape, floats.
        target: the same shape.
        delta: the distance at which the loss goes over into a straight line.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes differ.

    >>> HuberLoss(0.5)
    HuberLoss(delta=0.5)
    """
    require_same_shape(input, target)
    distance = abs(input - target)
    square, line = distance * distance * 0.5, (distance - delta / 2) * delta
    return reduce_losses(where(less_equal(distance, delta), square, line), reduction)


@layer(checks={"quantile": _BETWEEN, "reduction": REDUCTION})
def QuantileLoss(  # noqa: N802
    input: Tensor, target: Tensor, *, quantile: float = 0.5, reduction: str = "mean"
) -> Tensor:
    """Average the pinball loss, which is smallest where the input is a quantile of the target.

    Koenker and Bassett, "Regression quantiles" (1978): quantile * (target - input) where the target
    is above the input, else (1 - quantile) * (input - target).

    Args:
        input: any shape, floats.
        target: the same shape.
        quantile: the share of targets that shall be below the input.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes differ.

    >>> QuantileLoss(0.9)
    QuantileLoss(quantile=0.9)
    """
    require_same_shape(input, target)
    missing = target - input
    return reduce_losses(maximum(missing * quantile, missing * (quantile - 1.0)), reduction)


@layer(checks={"margin": POSITIVE_NUMBER, "reduction": REDUCTION})
def HingeLoss(  # noqa: N802
    input: Tensor, target: Tensor, *, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """Average what is missing to the right side of a margin: max(0, margin - target * input).

    Args:
        input: any shape, the scores, floats.
        target: the same shape, 1 or -1, of any numbers.
        margin: scores that are right by as much cost nothing.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes differ, or the input is not of floats.

    >>> HingeLoss()
    HingeLoss()
    """
    require_floats(input)
    require_same_shape(input, target)
    right = input * cast(target, input.dtype)
    return reduce_losses(maximum(margin - right, 0.0), reduction)


_EPSILON = 1e-12
"""Added to squared lengths, as in PyTorch: vectors of zeros have a slope, too."""


@layer(checks={"margin": FINITE, "reduction": REDUCTION})
def CosineLoss(  # noqa: N802
    input: Tensor,
    target: Tensor,
    label: Tensor | None = None,
    *,
    margin: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """Average 1 - cosine of the angle between vectors; of pairs labelled as unlike, the cosine.

    As PyTorch's CosineEmbeddingLoss: a pair whose label is -1 costs max(0, cosine - margin).

    Args:
        input: [..., features], floats.
        target: the same shape.
        label: [...], 1 for vectors that shall be alike, -1 for others; need not be connected, then
            all shall be alike.
        margin: how much the cosine of unlike vectors may be for nothing; needs `label`.
        reduction: "mean", "sum" or "none".

    Returns:
        A scalar; with "none" [...].

    Raises:
        OptionError: there is a margin and no label.
        ShapeError: the shapes do not fit, or the input is not of floats.

    >>> CosineLoss()
    CosineLoss()
    """
    require_features(input)
    require_same_shape(input, target)
    squares = [sum(x * x, -1) + _EPSILON for x in (input, target)]
    cosine = sum(input * target, -1) * rsqrt(squares[0] * squares[1])
    alike = 1.0 - cosine
    if label is None:
        if margin:
            raise OptionError(
                f"layer '{layer_path()}' has margin={margin!r} and no labels that it could be for; "
                f"connect label=, or remove it"
            )
        return reduce_losses(alike, reduction)
    require_same_shape(cosine, label)
    losses = where(greater(label, 0), alike, maximum(cosine - margin, 0.0))
    return reduce_losses(losses, reduction)


# ------------------------------------------------------------------ shared pieces


def reduce_losses(losses: Tensor, reduction: str) -> Tensor:
    """Return the mean or the sum of losses, or the losses themselves."""
    if reduction == "none":
        return losses
    reduced: Tensor = mean(losses) if reduction == "mean" else sum(losses)
    return reduced


def require_same_shape(input: Tensor, target: Tensor) -> None:
    """Raise unless an input and a target have one shape.

    Raises:
        ShapeError: the shapes differ.
    """
    if target.shape != input.shape:
        raise ShapeError(
            f"layer '{layer_path()}' compares input {input.type} with target {target.type}; give "
            f"both the same shape"
        )


def require_floats(input: Tensor) -> None:
    """Raise unless an input is of floats.

    Raises:
        ShapeError: it is of another dtype.
    """
    if not input.dtype.is_float:
        raise ShapeError(
            f"layer '{layer_path()}' takes floats, not {input.type}; convert them with astype"
        )


__all__ = ["CosineLoss", "HingeLoss", "HuberLoss", "L1Loss", "MeanSquaredError", "QuantileLoss"]
