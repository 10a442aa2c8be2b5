"""Adafactor: second moments of a matrix as a product of rows and columns, of little size."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mithril import ops
from mithril.keywords import checked_keywords
from mithril.optim.basics import Rate, add_decayed_weights, scale_by_learning_rate
from mithril.optim.checks import check_count, check_number
from mithril.optim.clipping import clip_by_block_rms, root_mean_square
from mithril.optim.each import map_gradients, transform_each
from mithril.optim.form import Leaf, zeros_like
from mithril.optim.masks import Mask
from mithril.optim.parts import mask_others, train_only
from mithril.optim.transformation import Transformation, chain
from mithril.option_checks import check_flag


@checked_keywords()
def scale_by_factored_rms(
    decay_rate: float = 0.8,
    eps: float = 1e-30,
    min_dim_size_to_factor: int = 128,
    *,
    mask: Mask | None = None,
) -> Transformation:
    """Divide gradients by the root of the mean of their squares, which is kept by rows and columns.

    The decay of the mean at step t is `1 - t ** -decay_rate`. Where the two largest dimensions are
    large enough, means over either are kept instead of one number for each element.

    Args:
        decay_rate: above 0, at most 1.
        eps: added to squares.
        min_dim_size_to_factor: the smaller of the two dimensions has at least so many elements.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"count": …, "v_row": …, "v_col": …, "v": …}`; for each
        parameter either the first two, without a dimension each, or the last is None.

    Raises:
        OptionError: a number is out of range.

    >>> even = scale_by_factored_rms(min_dim_size_to_factor=2)
    >>> g = {"w": backend.array([[3.0, 3.0], [-3.0, 3.0]])}
    >>> updates, state = even.update(g, even.init(g), g)
    >>> print(updates["w"].numpy().round(4).tolist(), state["v_row"]["w"].shape, state["v"])
    [[1.0, 1.0], [-1.0, 1.0]] (2,) {'w': None}
    """
    name = "scale_by_factored_rms()"
    check_number(name, "decay_rate", decay_rate, below=1.0 + 1e-9, is_open=True)
    check_number(name, "eps", eps)
    least = check_count(name, "min_dim_size_to_factor", min_dim_size_to_factor, least=1)

    def start(x: Leaf) -> Sequence[Leaf | None]:
        dims = find_factored_dims(x.shape, least)
        if dims is None:
            return [None, None, zeros_like(x)]
        smaller, larger = dims
        return [
            zeros_like(x, _without(x.shape, larger)),
            zeros_like(x, _without(x.shape, smaller)),
            None,
        ]

    def begin(step: Leaf) -> Callable[..., tuple[Leaf, ...]]:
        decay = 1.0 - step ** (-decay_rate)

        def formula(
            gradient: Leaf, _: Leaf, row: Leaf | None, column: Leaf | None, whole: Leaf | None
        ) -> tuple[Leaf, ...]:
            square = ops.square(gradient) + eps
            if whole is not None:
                whole = decay * whole + (1.0 - decay) * square
                return gradient * ops.rsqrt(whole), None, None, whole
            smaller, larger = find_factored_dims(gradient.shape, least) or (0, 0)
            row = decay * row + (1.0 - decay) * ops.mean(square, larger)
            column = decay * column + (1.0 - decay) * ops.mean(square, smaller)
            along = smaller - 1 if smaller > larger else smaller  # of what has lost the larger one
            by_row = ops.rsqrt(row / ops.mean(row, along, keepdims=True))
            factors = ops.expand_dims(by_row, larger), ops.expand_dims(ops.rsqrt(column), smaller)
            return gradient * factors[0] * factors[1], row, column, None

        return formula

    made = transform_each(name, begin, ["v_row", "v_col", "v"], start, is_counted=True)
    return mask_others(made, mask)


def find_factored_dims(shape: Sequence[int], least: int) -> tuple[int, int] | None:
    """Return the second largest and the largest dimension, None if the former is too small."""
    order = sorted(range(len(shape)), key=lambda i: shape[i])
    if len(shape) < 2 or shape[order[-2]] < least:
        return None
    return order[-2], order[-1]


def _without(shape: Sequence[int], dimension: int) -> tuple[int, ...]:
    return tuple(size for i, size in enumerate(shape) if i != dimension)


@checked_keywords()
def scale_by_parameter_scale(least: float = 1e-3, *, mask: Mask | None = None) -> Transformation:
    """Multiply the update of each parameter by the parameter's root mean square.

    Args:
        least: what it is multiplied by at least.
        mask: which parameters it is about; see `masked`.

    Raises:
        OptionError: the number is negative.

    >>> params, g = {"w": backend.array([3.0, -3.0])}, {"w": backend.array([1.0, 2.0])}
    >>> scale_by_parameter_scale().update(g, {}, params)[0]["w"].numpy()
    array([3., 6.], dtype=float32)
    """
    check_number("scale_by_parameter_scale()", "least", least)

    def enlarge(update: Leaf, parameter: Leaf) -> Leaf:
        return update * ops.maximum(root_mean_square(parameter), least)

    return mask_others(map_gradients("scale_by_parameter_scale()", enlarge), mask)


@checked_keywords()
def adafactor(
    learning_rate: Rate,
    decay_rate: float = 0.8,
    eps: float = 1e-30,
    clipping_threshold: float | None = 1.0,
    weight_decay: float = 0.0,
    min_dim_size_to_factor: int = 128,
    *,
    multiply_by_parameter_scale: bool = True,
    decay_mask: Mask | None = None,
    mask: Mask | None = None,
) -> Transformation:
    """Adafactor: second moments kept by rows and columns, steps relative to the parameter's size.

    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost", 2018;
    without momentum, with optax's defaults. A matrix of m × n keeps m + n numbers.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`. The
            paper's is `lambda step: mnp.minimum(1e-2, 1 / mnp.sqrt(step + 1.0))`.
        decay_rate: of second moments; see `scale_by_factored_rms`.
        eps: added to squares.
        clipping_threshold: what the root mean square of an update may be at most; None for any.
        weight_decay: of at least 0; multiplied by the learning rate, as in AdamW.
        min_dim_size_to_factor: smaller dimensions are not factored.
        multiply_by_parameter_scale: whether steps are relative to the parameter's root mean square.
        decay_mask: which parameters are decayed, all by default; see `masked`.
        mask: which parameters are trained, the others stay as they are.

    Raises:
        OptionError: a number is out of range.

    >>> optimizer = adafactor(0.5)
    >>> params = {"w": backend.array([1.0, -1.0])}
    >>> optimizer.apply(params, optimizer.init(params), params)[0]["w"].numpy()
    array([ 0.5, -0.5], dtype=float32)
    """
    parts = [scale_by_factored_rms(decay_rate, eps, min_dim_size_to_factor)]
    if clipping_threshold is not None:
        parts.append(clip_by_block_rms(clipping_threshold))
    if check_flag("multiply_by_parameter_scale", multiply_by_parameter_scale):
        parts.append(scale_by_parameter_scale())
    if decay_mask is not None or not (type(weight_decay) in (int, float) and weight_decay == 0):
        parts.append(add_decayed_weights(weight_decay, mask=decay_mask))
    return train_only(chain(*parts, scale_by_learning_rate(learning_rate)), mask)
