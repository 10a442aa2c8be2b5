"""Losses between probabilities: of classes, of yes or no, of distributions.

`reduction` and what it means are those of `loss`. Computed are sums of 16-bit floats in float32.
"""

from __future__ import annotations

from mithril.errors import OptionError, ShapeError
from mithril.ir import Tensor
from mithril.models.definition import INTEGER_OR_NONE, SHARE, Check
from mithril.models.layer import layer
from mithril.models.layers.loss import (
    REDUCTION,
    REDUCTIONS,
    reduce_losses,
    require_floats,
    require_same_shape,
)
from mithril.models.trace_context import layer_path
from mithril.ops import (
    accumulator,
    cast,
    cross_entropy,
    equal,
    exp,
    greater,
    less,
    log,
    log1p,
    log_softmax,
    maximum,
    mean,
    not_equal,
    softplus,
    sum,
    take,
    where,
)
from mithril.types import DType

_BATCH_REDUCTION = Check(
    "'mean', 'batchmean', 'sum' or 'none'", lambda value: value in ["batchmean", *REDUCTIONS]
)
_LOWEST_LOG = -100.0
"""Below it a logarithm is cut off, as in PyTorch: a probability of 0 costs 100, not infinity."""


@layer(
    checks={"reduction": REDUCTION, "ignore_index": INTEGER_OR_NONE, "label_smoothing": SHARE},
)
def CrossEntropy(  # noqa: N802
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Average the negative log-probability of the target classes over all positions.

    As PyTorch's cross_entropy, with the classes last: a mean over classes divides by the number of
    positions that are not ignored, with class weights by the weights of their targets; a mean over
    probabilities divides by the number of positions.

    Args:
        input: [..., classes], the logits, floats.
        target: [...], integers from 0 up to classes - 1, or probabilities [..., classes], floats.
        weight: [classes], what the loss of each class is multiplied by; need not be connected.
        reduction: "mean", "sum" or "none".
        ignore_index: a target of which the loss is 0 and not counted, such as -100. Of nothing but
            ignored targets the mean is NaN, as in PyTorch.
        label_smoothing: share of the targets that is spread evenly over all classes (Szegedy et
            al., 2015), from 0 to 1.

    Returns:
        A scalar; with "none" [...].

    Raises:
        OptionError: ignore_index is given, and the targets are probabilities.
        ShapeError: the shapes do not fit, the target is of bools, or, where targets are looked at,
            one is no class (`docs/layers.md` says where that is).

    >>> CrossEntropy(ignore_index=-100, label_smoothing=0.1)
    CrossEntropy(ignore_index=-100, label_smoothing=0.1)
    """
    require_floats(input)
    if weight is not None:
        _require_class_weights(input, weight)
        weight = cast(weight, input.dtype)
    if target.dtype.is_float and target.shape == input.shape:
        if ignore_index is not None:
            raise OptionError(
                f"layer '{layer_path()}' has ignore_index={ignore_index} and probabilities as "
                f"targets, which have no index; remove it, or give classes"
            )
        return _of_probabilities(input, target, weight, label_smoothing, reduction)
    if target.shape != input.shape[:-1] or not target.dtype.is_integer:
        raise ShapeError(
            f"layer '{layer_path()}' has logits {input.type} and target {target.type}; the target "
            f"must be integers of shape {input.shape[:-1]}, one class per position, or "
            f"probabilities of the shape of the logits"
        )
    is_counted = None
    if ignore_index is not None:
        target = cast(target, DType.int64 if target.dtype.itemsize == 8 else DType.int32)
        is_counted = not_equal(target, ignore_index)
        target = where(is_counted, target, 0)
    losses: Tensor = cross_entropy(input, target)
    counted = None if weight is None else take(weight, target)
    losses = losses if counted is None else losses * counted
    if label_smoothing:
        spread = _spread_evenly(input, weight)
        losses = losses * (1.0 - label_smoothing) + spread * label_smoothing
    if is_counted is not None:
        losses = where(is_counted, losses, 0.0)
        counted = (
            cast(is_counted, input.dtype) if counted is None else where(is_counted, counted, 0.0)
        )
    if counted is None or reduction != "mean":
        return reduce_losses(losses, reduction)
    wide = accumulator(input.dtype)
    average: Tensor = sum(cast(losses, wide)) / sum(cast(counted, wide))
    return cast(average, input.dtype)


def _of_probabilities(
    input: Tensor, target: Tensor, weight: Tensor | None, smoothing: float, reduction: str
) -> Tensor:
    if smoothing:
        target = target * (1.0 - smoothing) + smoothing / input.shape[-1]
    costs = target * log_softmax(input)
    return reduce_losses(-sum(costs if weight is None else costs * weight, -1), reduction)


def _spread_evenly(input: Tensor, weight: Tensor | None) -> Tensor:
    """Return the loss against a target that is spread evenly over the classes."""
    costs = log_softmax(input)
    average: Tensor = mean(costs if weight is None else costs * weight, -1)
    return -average


def _require_class_weights(input: Tensor, weight: Tensor) -> None:
    if weight.shape != input.shape[-1:] or not weight.dtype.is_float:
        raise ShapeError(
            f"layer '{layer_path()}' has logits {input.type} and class weights {weight.type}; give "
            f"floats of shape {input.shape[-1:]}, one for each class"
        )


@layer(checks={"reduction": REDUCTION})
def BinaryCrossEntropy(  # noqa: N802
    input: Tensor, target: Tensor, weight: Tensor | None = None, *, reduction: str = "mean"
) -> Tensor:
    """Average the negative log-probability of yes or no over all elements.

    A logarithm is at least -100, as in PyTorch's BCELoss. For logits, BinaryCrossEntropyWithLogits
    is exact and has a slope everywhere.

    Args:
        input: any shape, probabilities of yes from 0 to 1, floats.
        target: the same shape, 1 for yes, 0 for no, or a probability; of any numbers or bools.
        weight: what the loss of each element is multiplied by, a shape that broadcasts to the
            input's; need not be connected.
        reduction: "mean" over all elements, "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes do not fit, or the input is not of floats.

    >>> BinaryCrossEntropy()
    BinaryCrossEntropy()
    """
    require_floats(input)
    require_same_shape(input, target)
    target = cast(target, input.dtype)
    # A logarithm of 0 is not even computed: its slope times 0 would be NaN.
    is_some, is_less = greater(input, 0.0), less(input, 1.0)
    yes = where(is_some, log(where(is_some, input, 1.0)), _LOWEST_LOG)
    no = where(is_less, log1p(where(is_less, -input, 0.0)), _LOWEST_LOG)
    yes, no = maximum(yes, _LOWEST_LOG), maximum(no, _LOWEST_LOG)
    losses = -(target * yes + (1.0 - target) * no)
    return reduce_losses(_weight_losses(losses, weight, "weight"), reduction)


@layer(checks={"reduction": REDUCTION})
def BinaryCrossEntropyWithLogits(  # noqa: N802
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Average the negative log-probability of yes or no, from logits, over all elements.

    Args:
        input: any shape, the logits of yes, floats.
        target: the same shape, 1 for yes, 0 for no, or a probability; of any numbers or bools.
        weight: what the loss of each element is multiplied by, a shape that broadcasts to the
            input's; need not be connected.
        pos_weight: what the loss of a yes is multiplied by, likewise: [classes] of [..., classes].
        reduction: "mean" over all elements, "sum" or "none".

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes do not fit, or the input is not of floats.

    >>> BinaryCrossEntropyWithLogits("none")
    BinaryCrossEntropyWithLogits(reduction='none')
    """
    require_floats(input)
    require_same_shape(input, target)
    target = cast(target, input.dtype)
    # The negative log-probabilities of yes and of no; neither cancels where it is small.
    yes, no = target * softplus(-input), (1.0 - target) * softplus(input)
    losses = _weight_losses(yes, pos_weight, "pos_weight") + no
    return reduce_losses(_weight_losses(losses, weight, "weight"), reduction)


@layer(checks={"reduction": _BATCH_REDUCTION})
def KLDivergence(  # noqa: N802
    input: Tensor, target: Tensor, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Average target * (log(target) - input), the divergence of Kullback and Leibler (1951).

    Args:
        input: any shape, logarithms of probabilities, floats.
        target: the same shape, probabilities, floats.
        reduction: "mean" over all elements, as PyTorch's KLDivLoss; "batchmean", the sum over the
            first size, which is the divergence of distributions in rows; "sum" or "none".
        log_target: whether the target is of logarithms, too.

    Returns:
        A scalar; with "none" the input's shape.

    Raises:
        ShapeError: the shapes differ, or the input is not of floats, or a scalar with "batchmean".

    >>> KLDivergence("batchmean")
    KLDivergence(reduction='batchmean')
    """
    require_floats(input)
    require_same_shape(input, target)
    if log_target:
        losses = exp(target) * (target - input)
    else:
        is_zero = equal(target, 0.0)
        surprise = log(where(is_zero, 1.0, target)) - input
        losses = where(is_zero, 0.0, target * surprise)
    if reduction != "batchmean":
        return reduce_losses(losses, reduction)
    if not input.ndim:
        raise ShapeError(
            f"layer '{layer_path()}' has reduction='batchmean' and a scalar {input.type}; give "
            f"[batch, ...], or choose another reduction"
        )
    return reduce_losses(losses, "sum") / max(1, input.shape[0])


def _weight_losses(losses: Tensor, weight: Tensor | None, port: str) -> Tensor:
    """Return losses, each multiplied by its weight."""
    if weight is None:
        return losses
    weighted = losses * cast(weight, losses.dtype)
    if weighted.shape != losses.shape:
        raise ShapeError(
            f"layer '{layer_path()}' has losses {losses.type} and {port} {weight.type}; give a "
            f"shape that broadcasts to that of the losses"
        )
    return weighted


__all__ = [
    "BinaryCrossEntropy", "BinaryCrossEntropyWithLogits", "CrossEntropy", "KLDivergence",
]  # fmt: skip
