"""Optimisers around optimisers: averages of parameters, and float32 copies of 16-bit ones."""

from __future__ import annotations

from mithril import ops
from mithril.keywords import checked_keywords
from mithril.optim.checks import check_number
from mithril.optim.each import check_state
from mithril.optim.form import Form, Leaf, is_float, widen
from mithril.optim.transformation import (
    State,
    Transformation,
    Tree,
    apply_updates,
    check_transformation,
)
from mithril.types import DType, as_dtype


@checked_keywords()
def with_ema(optimizer: Transformation, decay: float = 0.999) -> Transformation:
    """Keep an exponential moving average of the parameters: `e = decay · e + (1 - decay) · p`.

    Polyak and Juditsky, "Acceleration of stochastic approximation by averaging", 1992. It begins
    with the parameters themselves, and is of float32 where they have 16 bits.

    Args:
        optimizer: what trains the parameters.
        decay: from 0 up to 1.

    Returns:
        An optimiser with the state `{"optimizer": …, "ema": …}`; `state["ema"]` is a tree of the
        form of the parameters, to evaluate with.

    Raises:
        OptionError: the decay is out of range, or there is no optimiser.

    >>> from mithril.optim import sgd
    >>> averaged = with_ema(sgd(1.0), decay=0.75)
    >>> params = {"w": backend.array([4.0])}
    >>> params, state = averaged.apply(params, averaged.init(params), params)
    >>> params["w"].item(), state["ema"]["w"].item()
    (0.0, 3.0)
    """
    check_transformation("with_ema()", optimizer)
    check_number("with_ema()", "decay", decay, below=1.0)

    def init(params: Tree) -> State:
        form = Form(params)
        ema = [_copy(x) if is_float(x) else None for x in form.leaves]
        return {"optimizer": optimizer.init(params), "ema": form.build(ema)}

    def average(params: Tree, old: Tree) -> Tree:
        form = Form(params)
        pairs = zip(form.leaves, form.read(old, "averages of with_ema()"), strict=True)
        return form.build(
            [None if e is None else decay * e + (1 - decay) * widen(p) for p, e in pairs]
        )

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        check_state("with_ema()", state, ("optimizer", "ema"))
        updates, inner = optimizer.update(gradients, state["optimizer"], params)
        ema = average(apply_updates(params, updates), state["ema"])
        return updates, {"optimizer": inner, "ema": ema}

    def apply(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        check_state("with_ema()", state, ("optimizer", "ema"))
        params, inner = optimizer.apply(gradients, state["optimizer"], params)
        return params, {"optimizer": inner, "ema": average(params, state["ema"])}

    return Transformation(init, update, apply)


@checked_keywords()
def with_master_copies(optimizer: Transformation) -> Transformation:
    """Train float32 copies of 16-bit parameters, which are rounded from them after each step.

    Micikevicius et al., "Mixed precision training", 2018. Steps that are too small for 16 bits add
    up in the copies. Moments of the optimiser are float32 then, too. Parameters of float32 and
    float64 have no copy.

    Args:
        optimizer: what trains the copies.

    Returns:
        An optimiser with the state `{"optimizer": …, "master": …}`.

    Raises:
        OptionError: there is no optimiser.

    >>> from mithril.optim import sgd
    >>> optimizer = with_master_copies(sgd(0.001))
    >>> params = {"w": backend.array([1.0], dtype="bfloat16")}
    >>> params, state = optimizer.apply(params, optimizer.init(params), params)
    >>> params["w"].item(), round(state["master"]["w"].item(), 4)
    (1.0, 0.999)
    """
    check_transformation("with_master_copies()", optimizer)

    def init(params: Tree) -> State:
        form = Form(params)
        copies = [widen(x) if _is_narrow(x) else None for x in form.leaves]
        masters = _merge(form, copies)
        return {"optimizer": optimizer.init(masters), "master": form.build(copies)}

    def read(state: State, params: Tree) -> tuple[Form, list[Leaf | None], Tree]:
        check_state("with_master_copies()", state, ("optimizer", "master"))
        form = Form(params)
        copies = form.read(state["master"], "master copies of with_master_copies()")
        return form, copies, _merge(form, copies)

    def write(form: Form, copies: list[Leaf | None], masters: Tree, inner: State) -> State:
        found = form.read(masters, "master copies of with_master_copies()")
        kept = [None if c is None else m for c, m in zip(copies, found, strict=True)]
        return {"optimizer": inner, "master": form.build(kept)}

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form, copies, masters = read(state, params)
        updates, inner = optimizer.update(gradients, state["optimizer"], masters)
        moved = form.read(apply_updates(masters, updates), "updates")
        given = form.read(updates, "updates")
        # What brings a rounded parameter to the copy, which the update alone does not.
        rows = zip(form.leaves, copies, moved, given, strict=True)
        steps = [u if c is None or u is None else m - widen(p) for p, c, m, u in rows]
        return form.build(steps), write(form, copies, form.build(moved), inner)

    def apply(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form, copies, masters = read(state, params)
        masters, inner = optimizer.apply(gradients, state["optimizer"], masters)
        pairs = zip(form.read(masters, "parameters"), form.leaves, strict=True)
        rounded = [p if m is None else ops.cast(m, p.dtype) for m, p in pairs]
        return form.build(rounded), write(form, copies, masters, inner)

    return Transformation(init, update, apply)


def _copy(x: Leaf) -> Leaf:
    """Return a float32 copy of a parameter; of one that is wide another array, not to be shared.

    A step that gives up the memory of its state gives up that of its parameters, too.
    """
    return widen(x) + 0.0 if as_dtype(x.dtype).itemsize > 2 else widen(x)


def _is_narrow(x: Leaf) -> bool:
    return is_float(x) and as_dtype(x.dtype).itemsize < DType.float32.itemsize


def _merge(form: Form, copies: list[Leaf | None]) -> Tree:
    pairs = zip(form.leaves, copies, strict=True)
    return form.build([x if copy is None else copy for x, copy in pairs])
