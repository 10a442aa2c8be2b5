"""Transformations that others are made of: scaling, momentum, learning rate, weight decay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mithril import ops
from mithril.errors import OptionError, ShapeError, kind_of
from mithril.ir import Operand, Tensor
from mithril.keywords import checked_keywords
from mithril.optim.checks import check_number
from mithril.optim.each import check_state, map_gradients, read_gradients, transform_each
from mithril.optim.form import Form, Leaf, constant_like, widen
from mithril.optim.masks import Mask
from mithril.optim.parts import mask_others
from mithril.optim.places import match_parameters
from mithril.optim.transformation import State, Transformation, Tree
from mithril.option_checks import check_flag
from mithril.trees import flatten, names
from mithril.types import DType

Schedule = Callable[[Any], Any]
"""Takes the number of the step, an int32 scalar from 0 on, and returns a float32 scalar."""
Rate = float | Schedule | Operand
"""A learning rate: a number, a schedule, or a scalar array or traced tensor."""


@checked_keywords()
def scale(factor: float, *, mask: Mask | None = None) -> Transformation:
    """Multiply updates by a number.

    Args:
        factor: the number, of any sign.
        mask: which parameters it is about; see `masked`.

    Raises:
        OptionError: the factor is no finite number.

    >>> half = scale(-0.5)
    >>> g = {"w": backend.array([2.0])}
    >>> half.update(g, half.init(g), g)[0]["w"].numpy()
    array([-1.], dtype=float32)
    """
    number = check_number("scale()", "factor", factor, least=-np.inf)
    return mask_others(map_gradients("scale()", lambda u, p: u * number), mask)


@checked_keywords()
def scale_by_momentum(
    decay: float, *, nesterov: bool = False, mask: Mask | None = None
) -> Transformation:
    """Sum gradients up with a decay: `m = g + decay · m`, the update is `m`, or `g + decay · m`.

    Polyak, "Some methods of speeding up the convergence of iteration methods", 1964; the second
    form is Nesterov's, as in Sutskever et al., 2013. Torch and optax have the same formulas.

    Args:
        decay: of what was summed before, from 0 up to 1.
        nesterov: whether to use the second form.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"momentum": …}`.

    Raises:
        OptionError: the decay is out of range.

    >>> heavy = scale_by_momentum(0.5)
    >>> g = {"w": backend.array([2.0])}
    >>> _, state = heavy.update(g, heavy.init(g), g)
    >>> heavy.update(g, state, g)[0]["w"].numpy()
    array([3.], dtype=float32)
    """
    check_number("scale_by_momentum()", "decay", decay, below=1.0)
    check_flag("nesterov", nesterov)

    def formula(gradient: Leaf, _: Leaf, momentum: Leaf) -> tuple[Leaf, Leaf]:
        momentum = gradient + decay * momentum
        return gradient + decay * momentum if nesterov else momentum, momentum

    made = transform_each("scale_by_momentum()", lambda step: formula, ["momentum"])
    return mask_others(made, mask)


@checked_keywords()
def add_decayed_weights(weight_decay: float, *, mask: Mask | None = None) -> Transformation:
    """Add a multiple of the parameters to their updates: `u + weight_decay · p`.

    In front of an optimiser that is L2 regularisation; between scaling and learning rate it is the
    decoupled weight decay of Loshchilov and Hutter, "Decoupled weight decay regularization", 2019.

    Args:
        weight_decay: the factor.
        mask: which parameters are decayed, such as `"*.weight"`; all by default. See `masked`.

    Raises:
        OptionError: the factor is negative, or no finite number.

    >>> decay = add_decayed_weights(0.1)
    >>> params = {"w": backend.array([10.0])}
    >>> decay.update({"w": backend.array([2.0])}, {}, params)[0]["w"].numpy()
    array([3.], dtype=float32)
    """
    factor = check_number("add_decayed_weights()", "weight_decay", weight_decay)
    made = map_gradients("add_decayed_weights()", lambda u, p: u + factor * p)
    return mask_others(made, mask)


@checked_keywords()
def scale_by_learning_rate(learning_rate: Rate, *, mask: Mask | None = None) -> Transformation:
    """Multiply updates by the negative learning rate; the last part of most optimisers.

    Args:
        learning_rate: a number; a schedule, which takes the number of the step (an int32 scalar, 0
            at the first one) and returns a float32 scalar; or a scalar of a function that is
            traced.
        mask: which parameters it is about; see `masked`.

    Returns:
        A transformation with the state `{"count": …, "learning_rate": …}`: how many steps were made
        (int32), and the rate of the last of them (float32), at first that of the first.

    Raises:
        OptionError: the rate is negative or NaN, also at the first step of a schedule, where that
            can be seen: on arrays that are not traced.
        ShapeError: a schedule returns no scalar.

    >>> descend = scale_by_learning_rate(lambda step: 1.0 / (step + 1.0))
    >>> g = {"w": backend.array([2.0])}
    >>> updates, state = descend.update(g, descend.init(g), g)
    >>> updates, state = descend.update(g, state, g)
    >>> print(updates["w"].numpy(), state["count"].item(), state["learning_rate"].item())
    [-1.] 2 0.5
    """
    name = "scale_by_learning_rate()"
    given_rate = read_rate(learning_rate)

    def init(params: Tree) -> State:
        form = Form(params)
        count = form.scalar(0, DType.int32)
        state = {"count": count, "learning_rate": find_rate(given_rate, count)}
        check_learning_rates(state)
        return state

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form = Form(params)
        check_state(name, state, ("count", "learning_rate"))
        rate = find_rate(given_rate, state["count"])
        factor = -given_rate if isinstance(given_rate, float) else -rate
        given = read_gradients(form, gradients)
        updates = form.build([None if g is None else widen(g) * factor for g in given])
        return updates, {"count": state["count"] + 1, "learning_rate": rate}

    return mask_others(Transformation(init, update), mask)


def find_learning_rates(state: State, params: Tree | None = None) -> dict[str, Leaf]:
    """Return the learning rates in a state, by the names of the tensors: those in use.

    Args:
        state: of an optimiser.
        params: what it was made for; moments and averages of a parameter that is itself called
            `learning_rate` are left out then.

    Returns:
        float32 scalars; of most optimisers one, of `partition` and `muon` one for each part.

    >>> from mithril.optim import chain
    >>> w = {"w": backend.array([1.0])}
    >>> find_learning_rates(chain(scale(2.0), scale_by_learning_rate(0.5)).init(w))
    {'1.learning_rate': Array(0.5, float32[], P())}
    """
    leaves: list[Leaf] = []
    structure = flatten(state, leaves)
    found = dict(zip(names(structure, ""), leaves, strict=True))
    rates = {n: x for n, x in found.items() if n.rpartition(".")[2] == "learning_rate"}
    of_params = {} if params is None or not rates else match_parameters(state, params)
    return {n: x for n, x in rates.items() if n not in of_params or _is_counted(n, found)}


def _is_counted(name: str, leaves: Mapping[str, Leaf]) -> bool:
    """Return whether a learning rate stands beside a count of steps.

    So it is told from a parameter of that name where this is the only one, and has no other part.
    """
    count = leaves.get(name.removesuffix("learning_rate") + "count")
    return isinstance(count, Operand) and count.dtype.is_integer


def read_rate(rate: Rate) -> Rate:
    """Return a learning rate that is a number, a schedule, or a scalar of floats.

    Raises:
        OptionError: a number is negative or NaN.
        ShapeError: an array is no scalar of floats.
    """
    if isinstance(rate, Operand):
        if rate.shape or not rate.dtype.is_float:
            raise ShapeError(
                f"learning rate is {rate.type}, no scalar of floats; give a number, a schedule, or "
                f"such a scalar"
            )
        return rate
    return rate if callable(rate) else check_number("an optimiser", "learning_rate", rate)


def find_rate(rate: Rate, count: Leaf) -> Leaf:
    """Return the learning rate of a step as a float32 scalar."""
    made = rate if isinstance(rate, Operand) or not callable(rate) else rate(count)
    if isinstance(made, int | float | np.generic | np.ndarray) and np.ndim(made) == 0:
        value = check_number("an optimiser", "a schedule with the value", float(made))
        return constant_like(count, value, DType.float32)
    if not isinstance(made, Operand) or made.shape or not made.dtype.is_float:
        found = str(made.type) if isinstance(made, Operand) else kind_of(made)
        raise ShapeError(
            f"a schedule returns {found}, no scalar of floats; return the learning rate of the step"
        )
    return ops.cast(made, DType.float32)


def check_learning_rates(state: State, params: Tree | None = None) -> None:
    """Raise if a learning rate that training starts with is NaN, infinite or negative.

    Args:
        state: of an optimiser, as its `init` made it; rates that are traced have no value yet.
        params: what it was made for, some of which may be called `learning_rate`.

    Raises:
        OptionError: one is.
    """
    for rate in find_learning_rates(state, params).values():
        if rate.shape or isinstance(rate, Tensor):
            continue
        value = float(rate.item())
        if not 0 <= value < np.inf:
            raise OptionError(
                f"a schedule gives the learning rate {value} at step 0; give one that returns a "
                f"finite number of at least 0"
            )
