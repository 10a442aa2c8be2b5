"""Transformation: what every optimiser is, how several are chained, and how updates are applied.

The shape is optax's: `init(params)` makes a state, `update(gradients, state, params)` turns
gradients into updates that are to be added to the parameters. `apply(gradients, state, params)`
does both steps at once, so that an optimiser may do it by a fused kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from mithril import ops
from mithril.errors import GraphError, OptionError, kind_of
from mithril.optim.form import Form, widen

Tree = Any
"""Dicts, lists and tuples with arrays or traced tensors as leaves; the `Parameters` of a model."""
State = Any
"""A tree of dicts and tuples; see `mithril.optim` for how its tensors are called."""
Init = Callable[[Tree], State]
Step = Callable[[Tree, State, Tree], tuple[Tree, State]]


@dataclass(frozen=True)
class Transformation:
    """A transformation of gradients, an optimiser above all: three functions and nothing else.

    One's own is made of two functions that compute with the functions of `mithril.numpy`; they
    then work on arrays at once, in `ml.jit`, and in a training step.

    Args:
        init: takes parameters and returns the state that training starts with.
        update: takes gradients, state and parameters, and returns updates, which are added to the
            parameters, and the next state.
        apply: takes the same, and returns the new parameters and the next state; by default it adds
            what `update` returns.

    >>> halve = Transformation(
    ...     init=lambda params: {},
    ...     update=lambda gradients, state, params: (
    ...         {name: -0.5 * gradient for name, gradient in gradients.items()}, state
    ...     ),
    ... )
    >>> w = {"w": backend.array([4.0, 8.0])}
    >>> params, state = halve.apply(w, halve.init(w), w)
    >>> params["w"].numpy()
    array([2., 4.], dtype=float32)
    """

    init: Init
    update: Step
    apply: Step = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.apply is None:
            object.__setattr__(self, "apply", partial(_add_updates, self.update))


def _add_updates(update: Step, gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
    updates, state = update(gradients, state, params)
    return apply_updates(params, updates), state


def apply_updates(params: Tree, updates: Tree) -> Tree:
    """Return parameters with updates added to them.

    Parameters of 16 bits are added to in float32 and rounded once.

    Args:
        params: a tree of arrays.
        updates: a tree with the same names and shapes; what is None or not there changes nothing.

    Returns:
        The tree of the parameters, each in its own shape and dtype.

    Raises:
        GraphError: there is an update of no parameter.
        ShapeError: an update has another shape than its parameter.

    >>> params = {"w": backend.array([1.0, 2.0]), "b": backend.array([0.0])}
    >>> apply_updates(params, {"w": backend.array([0.5, 0.5])})["w"].numpy()
    array([1.5, 2.5], dtype=float32)
    """
    form = Form(params)
    given = form.read(updates, "updates")
    pairs = zip(form.leaves, given, strict=True)
    return form.build([p if u is None else ops.cast(widen(p) + u, p.dtype) for p, u in pairs])


def chain(*transformations: Transformation) -> Transformation:
    """Return transformations one after the other, as one.

    Each takes what the one before it returned. `apply` is that of the last one, on what the others
    made of the gradients: `chain(clip_by_global_norm(1.0), adamw(1e-3))` updates as `adamw` does.

    Args:
        transformations: at least one. The state is a tuple with the state of each.

    Raises:
        OptionError: there is none, or something else is given.

    >>> from mithril.optim import clip_by_global_norm, sgd
    >>> optimizer = chain(clip_by_global_norm(1.0), sgd(0.5))
    >>> w = {"w": backend.array([3.0, 4.0])}
    >>> params, state = optimizer.apply(w, optimizer.init(w), w)
    >>> params["w"].numpy()
    array([2.7, 3.6], dtype=float32)
    """
    for given in transformations:
        check_transformation("chain()", given)
    if not transformations:
        raise OptionError("chain() is given no transformation; give at least one, such as sgd(0.1)")
    *before, last = transformations

    def init(params: Tree) -> State:
        return tuple(each.init(params) for each in transformations)

    def update_before(gradients: Tree, state: State, params: Tree) -> tuple[Tree, list[State]]:
        check_chained(state, len(transformations))
        made = []
        for each, part in zip(before, state, strict=False):
            gradients, part = each.update(gradients, part, params)
            made.append(part)
        return gradients, made

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        gradients, made = update_before(gradients, state, params)
        gradients, part = last.update(gradients, state[-1], params)
        return gradients, (*made, part)

    def apply(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        gradients, made = update_before(gradients, state, params)
        params, part = last.apply(gradients, state[-1], params)
        return params, (*made, part)

    return Transformation(init, update, apply)


def check_chained(state: object, count: int) -> None:
    """Raise unless there is a state for each transformation of a chain.

    Raises:
        GraphError: there are more or fewer, or something else.
    """
    if not isinstance(state, tuple | list) or len(state) != count:
        found = f"{len(state)} states" if isinstance(state, tuple | list) else kind_of(state)
        raise GraphError(
            f"a chain of {count} transformations is given {found}, not a state for each; give what "
            f"its init(params) or its last update returned"
        )


def check_transformation(call: str, given: object) -> None:
    """Raise unless something is a transformation.

    Args:
        call: what takes it, for messages.
        given: what it is given.

    Raises:
        OptionError: it is none; classes and functions that make one are not called yet.
    """
    if not isinstance(given, Transformation):
        remedy = "call it first" if callable(given) else "give one, such as ml.optim.adamw(1e-3)"
        raise OptionError(f"{call} takes transformations, not {kind_of(given)}; {remedy}")
