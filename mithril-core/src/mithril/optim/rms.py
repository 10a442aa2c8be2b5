"""RMSprop and Adagrad: gradients divided by the root of their squares so far."""

from __future__ import annotations

from mithril import ops
from mithril.keywords import checked_keywords
from mithril.optim.basics import Rate, scale_by_learning_rate, scale_by_momentum
from mithril.optim.checks import check_number
from mithril.optim.each import transform_each
from mithril.optim.form import Leaf, zeros_like
from mithril.optim.masks import Mask
from mithril.optim.parts import mask_others, train_only
from mithril.optim.transformation import Transformation, chain
from mithril.option_checks import check_flag


@checked_keywords()
def scale_by_rms(
    decay: float = 0.99, eps: float = 1e-8, *, centered: bool = False, mask: Mask | None = None
) -> Transformation:
    """Divide gradients by the root of the mean of their squares: `g / (√v + eps)`.

    Args:
        decay: of the mean, from 0 up to 1.
        eps: added to the root.
        centered: whether the square of the mean of gradients is taken off first.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"nu": …}`, and `"mu"` with `centered`.

    Raises:
        OptionError: a number is out of range.

    >>> g = {"w": backend.array([3.0, -5.0])}
    >>> even = scale_by_rms(decay=0.75)
    >>> even.update(g, even.init(g), g)[0]["w"].numpy()
    array([ 2., -2.], dtype=float32)
    """
    check_number("scale_by_rms()", "decay", decay, below=1.0)
    check_number("scale_by_rms()", "eps", eps)
    check_flag("centered", centered)

    def formula(gradient: Leaf, _: Leaf, nu: Leaf) -> tuple[Leaf, Leaf]:
        nu = decay * nu + (1 - decay) * ops.square(gradient)
        return gradient / (ops.sqrt(nu) + eps), nu

    def formula_centered(gradient: Leaf, _: Leaf, nu: Leaf, mu: Leaf) -> tuple[Leaf, Leaf, Leaf]:
        nu = decay * nu + (1 - decay) * ops.square(gradient)
        mu = decay * mu + (1 - decay) * gradient
        return gradient / (ops.sqrt(nu - ops.square(mu)) + eps), nu, mu

    chosen, moments = (formula_centered, ["nu", "mu"]) if centered else (formula, ["nu"])
    return mask_others(transform_each("scale_by_rms()", lambda step: chosen, moments), mask)


@checked_keywords()
def rmsprop(
    learning_rate: Rate,
    decay: float = 0.99,
    eps: float = 1e-8,
    momentum: float = 0.0,
    *,
    centered: bool = False,
    mask: Mask | None = None,
) -> Transformation:
    """RMSprop: `p - learning_rate · g / (√v + eps)`, with the mean of squares; PyTorch's formula.

    Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning", 2012; centered:
    Graves, "Generating sequences with recurrent neural networks", 2013.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`.
        decay: of the mean of squares, from 0 up to 1; PyTorch calls it `alpha`.
        eps: added to the root.
        momentum: of what is divided, from 0 up to 1.
        centered: whether the square of the mean of gradients is taken off first.
        mask: which parameters are trained, the others stay as they are; see `masked`.

    Raises:
        OptionError: a number is out of range.

    >>> optimizer = rmsprop(0.5, decay=0.75)
    >>> params = {"w": backend.array([1.0, -2.0])}
    >>> optimizer.apply(params, optimizer.init(params), params)[0]["w"].numpy()
    array([ 0., -1.], dtype=float32)
    """
    check_number("rmsprop()", "momentum", momentum, below=1.0)
    parts = [scale_by_rms(decay, eps, centered=centered)]
    parts += [scale_by_momentum(momentum)] if momentum else []
    return train_only(chain(*parts, scale_by_learning_rate(learning_rate)), mask)


@checked_keywords()
def scale_by_sum_of_squares(
    initial_accumulator: float = 0.0, eps: float = 1e-10, *, mask: Mask | None = None
) -> Transformation:
    """Divide gradients by the root of the sum of all their squares: `g / (√s + eps)`.

    Args:
        initial_accumulator: what the sums begin with, of at least 0.
        eps: added to the root.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"sum": …}`.

    Raises:
        OptionError: a number is out of range.

    >>> g = {"w": backend.array([3.0, -4.0])}
    >>> even = scale_by_sum_of_squares()
    >>> even.update(g, even.init(g), g)[0]["w"].numpy()
    array([ 1., -1.], dtype=float32)
    """
    name = "scale_by_sum_of_squares()"
    first = check_number(name, "initial_accumulator", initial_accumulator)
    check_number(name, "eps", eps)

    def formula(gradient: Leaf, _: Leaf, total: Leaf) -> tuple[Leaf, Leaf]:
        total = total + ops.square(gradient)
        return gradient / (ops.sqrt(total) + eps), total

    made = transform_each(
        name,
        lambda step: formula,
        ["sum"],
        lambda x: [zeros_like(x) + first if first else zeros_like(x)],
    )
    return mask_others(made, mask)


@checked_keywords()
def adagrad(
    learning_rate: Rate,
    initial_accumulator: float = 0.0,
    eps: float = 1e-10,
    *,
    mask: Mask | None = None,
) -> Transformation:
    """Adagrad: `p - learning_rate · g / (√s + eps)`, with the sum of squares; PyTorch's formula.

    Duchi et al., "Adaptive subgradient methods for online learning and stochastic optimization",
    2011.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`.
        initial_accumulator: what the sums begin with, of at least 0.
        eps: added to the root.
        mask: which parameters are trained, the others stay as they are; see `masked`.

    Raises:
        OptionError: a number is out of range.

    >>> optimizer = adagrad(0.5)
    >>> params = {"w": backend.array([1.0, -2.0])}
    >>> optimizer.apply(params, optimizer.init(params), params)[0]["w"].numpy()
    array([ 0.5, -1.5], dtype=float32)
    """
    parts = (
        scale_by_sum_of_squares(initial_accumulator, eps),
        scale_by_learning_rate(learning_rate),
    )
    return train_only(chain(*parts), mask)
