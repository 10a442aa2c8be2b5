"""Stochastic gradient descent, with momentum, and lion, which follows the sign of it."""

from __future__ import annotations

from mithril import ops
from mithril.keywords import checked_keywords
from mithril.optim.basics import (
    Rate,
    add_decayed_weights,
    scale_by_learning_rate,
    scale_by_momentum,
)
from mithril.optim.checks import check_number
from mithril.optim.each import transform_each
from mithril.optim.form import Leaf
from mithril.optim.masks import Mask
from mithril.optim.parts import mask_others, train_only
from mithril.optim.transformation import Transformation, chain
from mithril.option_checks import check_flag
from mithril.types import to_python


@checked_keywords()
def sgd(
    learning_rate: Rate,
    momentum: float = 0.0,
    *,
    nesterov: bool = False,
    mask: Mask | None = None,
) -> Transformation:
    """Gradient descent: `p - learning_rate · m`, where m is the gradient, or momentum.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`.
        momentum: from 0 up to 1; with 0 no state is kept for parameters.
        nesterov: whether momentum is Nesterov's; see `scale_by_momentum`.
        mask: which parameters are trained, the others stay as they are; see `masked`.

    Raises:
        OptionError: a number is out of range, or `nesterov` is without momentum.

    >>> optimizer = sgd(0.5, momentum=0.9)
    >>> params = {"w": backend.array([1.0, 2.0])}
    >>> params, state = optimizer.apply(params, optimizer.init(params), params)
    >>> params["w"].numpy()
    array([0.5, 1. ], dtype=float32)
    """
    check_number("sgd()", "momentum", momentum, below=1.0)
    parts = [scale_by_learning_rate(learning_rate)]
    if check_flag("nesterov", to_python(nesterov)) or momentum:
        check_number("sgd(nesterov=True)", "momentum", momentum, below=1.0, is_open=True)
        parts = [scale_by_momentum(momentum, nesterov=nesterov), *parts]
    return train_only(chain(*parts), mask)


@checked_keywords()
def scale_by_lion(b1: float = 0.9, b2: float = 0.99, *, mask: Mask | None = None) -> Transformation:
    """Make updates of signs: `sign(b1 · m + (1 - b1) · g)`, then `m = b2 · m + (1 - b2) · g`.

    Args:
        b1: weight of the momentum in the update, from 0 up to 1.
        b2: decay of the momentum, from 0 up to 1.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"mu": …}`.

    Raises:
        OptionError: a number is out of range.

    >>> g = {"w": backend.array([0.1, -5.0])}
    >>> signs = scale_by_lion()
    >>> signs.update(g, signs.init(g), g)[0]["w"].numpy()
    array([ 1., -1.], dtype=float32)
    """
    for option, value in (("b1", b1), ("b2", b2)):
        check_number("scale_by_lion()", option, value, below=1.0)

    def formula(gradient: Leaf, _: Leaf, mu: Leaf) -> tuple[Leaf, Leaf]:
        update = ops.sign(b1 * mu + (1 - b1) * gradient)
        return update, b2 * mu + (1 - b2) * gradient

    return mask_others(transform_each("scale_by_lion()", lambda step: formula, ["mu"]), mask)


@checked_keywords()
def lion(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.99,
    weight_decay: float = 1e-3,
    *,
    decay_mask: Mask | None = None,
    mask: Mask | None = None,
) -> Transformation:
    """Lion: `p - learning_rate · (sign(b1 · m + (1 - b1) · g) + weight_decay · p)`.

    Chen et al., "Symbolic discovery of optimization algorithms", 2023. It wants a learning rate
    three to ten times smaller than AdamW's, and keeps one moment.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`.
        b1: weight of the momentum in the update, from 0 up to 1.
        b2: decay of the momentum, from 0 up to 1.
        weight_decay: of at least 0.
        decay_mask: which parameters are decayed, all by default; see `masked`.
        mask: which parameters are trained, the others stay as they are.

    Raises:
        OptionError: a number is out of range.

    >>> optimizer = lion(0.5, weight_decay=0.0)
    >>> params = {"w": backend.array([1.0, -2.0])}
    >>> optimizer.apply(params, optimizer.init(params), params)[0]["w"].numpy()
    array([ 0.5, -1.5], dtype=float32)
    """
    parts = (
        scale_by_lion(b1, b2),
        add_decayed_weights(weight_decay, mask=decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    return train_only(chain(*parts), mask)
