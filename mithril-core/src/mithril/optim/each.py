"""Transformations that treat each parameter for itself: a formula for one becomes one of trees.

The formula computes in at least float32; moments are kept in the dtype of their parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mithril import ops
from mithril.errors import GraphError, ShapeError, kind_of, listing
from mithril.optim.form import Form, Leaf, is_float, widen, zeros_like
from mithril.optim.transformation import State, Transformation, Tree
from mithril.types import DType

Formula = Callable[..., tuple[Leaf, ...]]
"""Takes a gradient, its parameter and moments; returns the update and the next moments."""
Start = Callable[[Leaf], Sequence[Leaf | None]]
"""Takes a parameter and returns its first moments; None for one that is not kept."""


def transform_each(
    name: str,
    begin: Callable[[Leaf], Formula],
    moments: Sequence[str] = (),
    start: Start | None = None,
    *,
    is_counted: bool = False,
) -> Transformation:
    """Return the transformation that a formula for one parameter makes.

    Args:
        name: of the transformation, for messages.
        begin: takes the number of this step, a scalar of floats from 1 on (None unless counted),
            and returns the formula; what all parameters share is computed there.
        moments: names of the tensors that are kept for each parameter.
        start: what they are at first; by default zeros like the parameter.
        is_counted: whether the state has a `count` of the steps that were made, an int32 scalar.
    """
    keys = ("count",) * is_counted + tuple(moments)

    def init(params: Tree) -> State:
        form = Form(params)
        begun = start or (lambda x: [zeros_like(x) for _ in moments])
        kept = [begun(x) if is_float(x) else [None] * len(moments) for x in form.leaves]
        state = {moment: form.build([k[i] for k in kept]) for i, moment in enumerate(moments)}
        return {"count": form.scalar(0, DType.int32), **state} if is_counted else state

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form = Form(params)
        check_state(name, state, keys)
        given = read_gradients(form, gradients)
        before = [form.find(state[moment], f"moments '{moment}' of {name}") for moment in moments]
        count = state["count"] + 1 if is_counted else None
        formula = begin(None if count is None else ops.cast(count, form.widest))
        updates: list[Leaf | None] = []
        after: list[list[Leaf | None]] = [[] for _ in moments]
        for i, (gradient, parameter) in enumerate(zip(given, form.leaves, strict=True)):
            old = [moment[i] for moment in before]
            made = (None, *old)
            if gradient is not None:
                check_kept(name, old, parameter, form.names[i], start is not None)
                made = _round_moments(
                    formula(widen(gradient), widen(parameter), *map(_widen, old)), old
                )
            updates.append(made[0])
            for column, moment in zip(after, made[1:], strict=True):
                column.append(moment)
        kept = dict(zip(moments, map(form.build, after), strict=True))
        return form.build(updates), {"count": count, **kept} if is_counted else kept

    return Transformation(init, update)


def map_gradients(name: str, function: Callable[[Leaf, Leaf], Leaf]) -> Transformation:
    """Return the transformation without a state that a function of gradient and parameter makes."""
    return transform_each(name, lambda step: lambda gradient, p: (function(gradient, p),))


def read_gradients(form: Form, gradients: Tree) -> list[Leaf | None]:
    """Return the gradient of each parameter, None for what has none.

    Raises:
        GraphError: one is of no parameter, or all are arrays of NumPy, which nothing computes with.
        ShapeError: one has another shape than its parameter, or is not of floats.
    """
    given = form.read(gradients, "gradients")
    for name, gradient in zip(form.names, given, strict=True):
        if gradient is not None and not is_float(gradient):
            raise ShapeError(
                f"gradient of '{name}' is of {gradient.dtype}, not of floats; give None for "
                f"what is not trained"
            )
        if isinstance(gradient, np.ndarray):
            raise GraphError(
                f"gradient and parameter '{name}' are arrays of NumPy, on no backend; put them "
                f"there by backend.array(…), or call the optimiser in ml.jit(…, backend=backend)"
            )
    return given


def check_state(name: str, state: object, keys: Sequence[str]) -> None:
    """Raise unless a state is a dict with certain entries.

    Args:
        name: of the transformation, for messages.
        state: what it is given.
        keys: what it has to have.

    Raises:
        GraphError: it is another one.
    """
    if not isinstance(state, Mapping) or set(state) != set(keys):
        found = (
            f"one of {listing(map(str, state))}" if isinstance(state, Mapping) else kind_of(state)
        )
        raise GraphError(
            f"{name} is given a state of another transformation, {found}; its own has "
            f"{listing(keys)}; give what its init(params) or its last update returned"
        )


def check_kept(name: str, moments: Sequence[Any], parameter: Leaf, of: str, may_lack: bool) -> None:
    """Raise unless a state has what is kept of a parameter.

    Args:
        name: of the transformation, for messages.
        moments: what it has.
        parameter: what they are of.
        of: its name.
        may_lack: whether some of them may be missing.

    Raises:
        GraphError: there is nothing.
        ShapeError: it has another shape.
    """
    lacking = [moment is None for moment in moments]
    if moments and (all(lacking) if may_lack else any(lacking)):
        raise GraphError(
            f"the state of {name} has nothing for '{of}', which has a gradient; make it by "
            f"init(params) of these parameters"
        )
    for moment in moments:
        if not may_lack and tuple(moment.shape) != tuple(parameter.shape):
            raise ShapeError(
                f"the state of {name} has {list(moment.shape)} for '{of}', whose parameter has "
                f"{list(parameter.shape)}; make it by init(params) of these parameters"
            )


def _widen(moment: Leaf | None) -> Leaf | None:
    return None if moment is None else widen(moment)


def _round_moments(made: tuple[Leaf, ...], old: Sequence[Leaf | None]) -> tuple[Leaf, ...]:
    """Return what a formula made, moments in the dtype that they are kept in."""
    kept = [
        x if before is None else ops.cast(x, before.dtype)
        for x, before in zip(made[1:], old, strict=True)
    ]
    return (made[0], *kept)
