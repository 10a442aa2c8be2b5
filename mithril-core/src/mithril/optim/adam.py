"""Adam and AdamW; the formula of one tensor is `find_adam_direction`."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from mithril import ops
from mithril.keywords import checked_keywords
from mithril.optim.basics import (
    Rate,
    add_decayed_weights,
    find_rate,
    read_rate,
    scale_by_learning_rate,
)
from mithril.optim.checks import check_number
from mithril.optim.each import check_kept, check_state, read_gradients, transform_each
from mithril.optim.form import Form, Leaf
from mithril.optim.masks import Mask, read_mask
from mithril.optim.parts import mask_others, train_only
from mithril.optim.transformation import State, Transformation, Tree, chain, check_chained


def correct_bias(decay: float, step: Leaf) -> Leaf:
    """Return `1 - decay ** step`, by which a moment that began at zero is divided.

    Through `expm1`, which loses no digits where the power is close to 1.
    """
    return 1.0 if decay == 0 else -ops.expm1(step * math.log(decay))


def find_adam_direction(
    gradient: Leaf,
    mu: Leaf,
    nu: Leaf,
    *,
    b1: float,
    b2: float,
    eps: float,
    corrections: tuple[Leaf, Leaf],
) -> tuple[Leaf, Leaf, Leaf]:
    """Return Adam's direction for one tensor, and the next moments.

    Args:
        gradient: of the parameter.
        mu: the mean of gradients so far.
        nu: the mean of their squares.
        b1: decay of the first.
        b2: decay of the second.
        eps: added to the root.
        corrections: what the two are divided by, see `correct_bias`.
    """
    mu = b1 * mu + (1 - b1) * gradient
    nu = b2 * nu + (1 - b2) * ops.square(gradient)
    direction = (mu / corrections[0]) / (ops.sqrt(nu / corrections[1]) + eps)
    return direction, mu, nu


@checked_keywords()
def scale_by_adam(
    b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, *, mask: Mask | None = None
) -> Transformation:
    """Divide the mean of gradients by the root of the mean of their squares, as Adam does.

    Args:
        b1: decay of the mean, from 0 up to 1.
        b2: decay of the mean of squares, from 0 up to 1.
        eps: added to the root.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"count": …, "mu": …, "nu": …}`.

    Raises:
        OptionError: a number is out of range.

    >>> g = {"w": backend.array([4.0, -4.0])}
    >>> adapt = scale_by_adam()
    >>> updates, state = adapt.update(g, adapt.init(g), g)
    >>> updates["w"].numpy().round(4), state["mu"]["w"].numpy().round(4)
    (array([ 1., -1.], dtype=float32), array([ 0.4, -0.4], dtype=float32))
    """
    for option, value in (("b1", b1), ("b2", b2)):
        check_number("scale_by_adam()", option, value, below=1.0)
    check_number("scale_by_adam()", "eps", eps)

    def begin(step: Leaf) -> Callable[[Leaf, Leaf, Leaf, Leaf], tuple[Leaf, ...]]:
        corrections = correct_bias(b1, step), correct_bias(b2, step)
        return lambda gradient, _, mu, nu: find_adam_direction(
            gradient, mu, nu, b1=b1, b2=b2, eps=eps, corrections=corrections
        )

    made = transform_each("scale_by_adam()", begin, ["mu", "nu"], is_counted=True)
    return mask_others(made, mask)


@checked_keywords()
def adam(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    *,
    mask: Mask | None = None,
) -> Transformation:
    """Adam: `p - learning_rate · m̂ / (√v̂ + eps)`, with means of gradients and of their squares.

    Kingma and Ba, "Adam: a method for stochastic optimization", 2015.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`.
        b1: decay of the mean of gradients, from 0 up to 1.
        b2: decay of the mean of their squares, from 0 up to 1.
        eps: added to the root.
        mask: which parameters are trained, the others stay as they are; see `masked`.

    Raises:
        OptionError: a number is out of range.

    >>> optimizer = adam(0.5)
    >>> params = {"w": backend.array([1.0, -2.0])}
    >>> params, state = optimizer.apply(params, optimizer.init(params), params)
    >>> params["w"].numpy().round(4)
    array([ 0.5, -1.5], dtype=float32)
    """
    made = chain(scale_by_adam(b1, b2, eps), scale_by_learning_rate(learning_rate))
    return train_only(_fuse(made, learning_rate, 2, b1=b1, b2=b2, eps=eps), mask)


@checked_keywords()
def adamw(
    learning_rate: Rate,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    *,
    decay_mask: Mask | None = None,
    mask: Mask | None = None,
) -> Transformation:
    """AdamW: `p - learning_rate · (m̂ / (√v̂ + eps) + weight_decay · p)`.

    Loshchilov and Hutter, "Decoupled weight decay regularization", 2019. Defaults are PyTorch's.

    Args:
        learning_rate: a number, or a function of the step; see `scale_by_learning_rate`.
        b1: decay of the mean of gradients, from 0 up to 1.
        b2: decay of the mean of their squares, from 0 up to 1.
        eps: added to the root.
        weight_decay: of at least 0.
        decay_mask: which parameters are decayed, such as `"*.weight"`, all by default; see
            `masked`. Optax calls it `mask`.
        mask: which parameters are trained, the others stay as they are.

    Raises:
        OptionError: a number is out of range.

    >>> optimizer = adamw(0.5, weight_decay=0.1)
    >>> params = {"w": backend.array([1.0, -2.0])}
    >>> params, state = optimizer.apply(params, optimizer.init(params), params)
    >>> params["w"].numpy().round(4)
    array([ 0.45, -1.4 ], dtype=float32)
    """
    made = chain(
        scale_by_adam(b1, b2, eps),
        add_decayed_weights(weight_decay, mask=decay_mask),
        scale_by_learning_rate(learning_rate),
    )
    numbers = {"b1": b1, "b2": b2, "eps": eps, "weight_decay": weight_decay}
    return train_only(_fuse(made, learning_rate, 3, decay_mask, **numbers), mask)


def _fuse(
    made: Transformation,
    learning_rate: Rate,
    parts: int,
    decay_mask: Mask | None = None,
    *,
    weight_decay: float = 0.0,
    **numbers: float,
) -> Transformation:
    """Return a chain that makes updates with one op for each parameter, `ops.adamw_step`.

    Args:
        made: a chain that begins with `scale_by_adam` and ends with `scale_by_learning_rate`.
        learning_rate: of that.
        parts: how many there are.
        decay_mask: which parameters are decayed.
        weight_decay: of these.
        numbers: b1, b2 and eps.
    """
    given_rate = read_rate(learning_rate)

    def apply(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form = Form(params)
        if any(isinstance(x, np.ndarray) for x in form.leaves):  # no backend to run an op on
            return made.apply(gradients, state, params)
        check_chained(state, parts)
        moments, *between, rates = state
        check_state("scale_by_adam()", moments, ("count", "mu", "nu"))
        check_state("scale_by_learning_rate()", rates, ("count", "learning_rate"))
        count, rate = moments["count"] + 1, find_rate(given_rate, rates["count"])
        factor = given_rate if isinstance(given_rate, float) else rate  # float64 keeps its digits
        decays = [True] * len(form.leaves)
        if decay_mask is not None:
            decays = read_mask(decay_mask, params, form)
        before = [
            form.find(moments[key], f"moments '{key}' of scale_by_adam()") for key in ("mu", "nu")
        ]
        after: list[tuple[Leaf | None, ...]] = []
        slopes = read_gradients(form, gradients)
        columns = zip(form.names, form.leaves, slopes, *before, decays, strict=True)
        for name, parameter, gradient, mu, nu, decayed in columns:
            if gradient is None:
                after.append((parameter, mu, nu))
                continue
            check_kept("scale_by_adam()", [mu, nu], parameter, name, may_lack=False)
            decay = weight_decay if decayed else 0.0
            after.append(
                ops.adamw_step(
                    parameter, gradient, mu, nu, factor, count, weight_decay=decay, **numbers
                )
            )
        new, mu, nu = (form.build([row[i] for row in after]) for i in range(3))
        kept = {"count": count, "mu": mu, "nu": nu}
        return new, (kept, *between, {"count": rates["count"] + 1, "learning_rate": rate})

    return Transformation(made.init, made.update, apply)
