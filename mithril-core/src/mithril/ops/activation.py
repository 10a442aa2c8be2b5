"""Activations that are short compositions: leaky_relu, elu, softplus, mish, hard_swish, glu.

They have no op of their own: rules, gradients and kernels are those of their pieces. 16-bit floats
are computed in float32.
"""

from __future__ import annotations

from typing import Any

from mithril.errors import ShapeError
from mithril.ir.operand import AnyOperand
from mithril.ops.arithmetic import multiply
from mithril.ops.choice import greater, where
from mithril.ops.elementwise import cast
from mithril.ops.functions import exp, tanh
from mithril.ops.nn import require_float
from mithril.ops.numbers import clip, expm1, log1p, sigmoid
from mithril.ops.shape import normalize_axis
from mithril.ops.wide import compute_wide


def leaky_relu(x: AnyOperand, negative_slope: float = 0.01) -> AnyOperand:
    """Return x where it is positive, else a small multiple of it.

    Maas, Hannun and Ng, "Rectifier nonlinearities improve neural network acoustic models", 2013.

    Args:
        x: any tensor of a float dtype.
        negative_slope: the multiple.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> leaky_relu(backend.array([-1.0, 2.0]), 0.25).numpy().tolist()
    [-0.25, 2.0]
    """
    require_float(x.type, "leaky_relu")
    result: AnyOperand = where(greater(x, 0.0), x, multiply(x, negative_slope))
    return result


def elu(x: AnyOperand, alpha: float = 1.0) -> AnyOperand:
    """Return x where it is positive, else alpha * (exp(x) - 1).

    Clevert, Unterthiner and Hochreiter, "Exponential linear units", 2015.

    Args:
        x: any tensor of a float dtype.
        alpha: minus the value that is approached far below zero.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> elu(backend.array([-1.0, 2.0])).numpy().round(4).tolist()
    [-0.632099986076355, 2.0]
    """

    def compute(wide: Any) -> Any:
        is_positive = greater(wide, 0.0)
        below = where(is_positive, 0.0, wide)  # so that exp cannot overflow where it is not used
        return where(is_positive, wide, expm1(below) * alpha)

    result: AnyOperand = compute_wide("elu", compute, x)
    return result


def softplus(x: AnyOperand, beta: float = 1.0) -> AnyOperand:
    """Return log(1 + exp(beta * x)) / beta, a smooth relu, without overflow.

    Dugas et al., "Incorporating second-order functional knowledge", 2001.

    Args:
        x: any tensor of a float dtype.
        beta: how sharply it bends, positive.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> softplus(backend.array([0.0, 1000.0])).numpy().round(4).tolist()
    [0.6930999755859375, 1000.0]
    """

    def compute(wide: Any) -> Any:
        is_plain = isinstance(beta, int | float) and beta == 1
        return _softplus(wide) if is_plain else _softplus(wide * beta) / beta

    result: AnyOperand = compute_wide("softplus", compute, x)
    return result


def mish(x: AnyOperand) -> AnyOperand:
    """Return x times the hyperbolic tangent of its softplus.

    Misra, "Mish: A self regularized non-monotonic activation function", 2019.

    Args:
        x: any tensor of a float dtype.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> mish(backend.array([0.0, 50.0])).numpy().tolist()
    [0.0, 50.0]
    """
    result: AnyOperand = compute_wide("mish", lambda wide: wide * tanh(_softplus(wide)), x)
    return result


def hard_swish(x: AnyOperand) -> AnyOperand:
    """Return x * clip(x + 3, 0, 6) / 6, which is nearly silu and needs no exponential.

    Howard et al., "Searching for MobileNetV3", 2019.

    Args:
        x: any tensor of a float dtype.

    Returns:
        The same shape and dtype as x.

    Raises:
        ShapeError: x is not of a float dtype.

    >>> hard_swish(backend.array([0.0, 1.5, 4.0])).numpy().tolist()
    [0.0, 1.125, 4.0]
    """
    result: AnyOperand = compute_wide(
        "hard_swish", lambda wide: wide * (clip(wide + 3.0, 0.0, 6.0) / 6.0), x
    )
    return result


def glu(x: AnyOperand, axis: int = -1) -> AnyOperand:
    """Return the first half of a dimension times the sigmoid of the second half.

    Dauphin et al., "Language modeling with gated convolutional networks", 2017.

    Args:
        x: any tensor of a float dtype but a scalar.
        axis: the dimension, of even size; the last by default.

    Returns:
        The dtype of x, and its shape with half as many elements along the dimension.

    Raises:
        ShapeError: x is not of a float dtype, or there is no such dimension, or its size is odd.

    >>> glu(backend.array([3.0, 4.0, 0.0, 100.0])).numpy().tolist()
    [1.5, 4.0]
    """
    at = normalize_axis(axis, x.ndim, "glu")
    half, odd = divmod(x.shape[at], 2)
    if odd:
        raise ShapeError(
            f"glu halves dimension {axis} of {x.type}, and its size is odd; choose an even size"
        )
    before = (slice(None),) * at

    def compute(wide: Any) -> Any:
        left, right = wide[(*before, slice(half))], wide[(*before, slice(half, None))]
        return left * sigmoid(right)

    result: AnyOperand = compute_wide("glu", compute, x)
    return result


def _softplus(x: Any) -> Any:
    """Return max(x, 0) + log(1 + e ** -|x|), whose halves bend in opposite ways at 0.

    Both are written with one condition, so that their gradients there are those of one side, and
    all derivatives of the sum are right; with `maximum` and `abs` the second would be 0 there.
    """
    is_positive = greater(x, 0.0)
    sign = cast(where(is_positive, -1.0, 1.0), x.dtype)
    return where(is_positive, x, 0.0) + log1p(exp(x * sign))


__all__ = ["elu", "glu", "hard_swish", "leaky_relu", "mish", "softplus"]
