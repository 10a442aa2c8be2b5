"""Transformations of some of the parameters, and optimisers side by side.

`masked` hands the updates of the others on as they are, which is what a part of a chain does. An
optimiser with `mask=`, and `freeze`, leave the other parameters as they are. `partition` gives each
parameter to one of several optimisers. What is left out has no moments: there the state has None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mithril.errors import OptionError, kind_of, listing
from mithril.keywords import checked_keywords
from mithril.optim.each import check_state
from mithril.optim.form import Form, Leaf
from mithril.optim.masks import Mask, check_mask, read_labels, read_mask
from mithril.optim.transformation import State, Transformation, Tree, check_transformation


@checked_keywords()
def masked(transformation: Transformation, mask: Mask) -> Transformation:
    """Return a transformation that is about some of the parameters; other updates pass as they are.

    Args:
        transformation: of which only a part of the parameters is seen.
        mask: a pattern of names with `*`, `?` and `[…]` as in `fnmatch`, such as `"*.weight"`, or
            several; a mapping from patterns to True or False, of which the last match counts and
            what matches none is False; a tree of booleans in the form of the parameters, or of its
            upper part; or a function that takes the parameters and returns one of these.

    Raises:
        OptionError: the mask is none of these. A pattern that matches no parameter, and a mask that
            is False everywhere, are refused when parameters are known.

    >>> from mithril.optim import scale
    >>> decay = masked(scale(10.0), "*.weight")
    >>> g = {"up.weight": backend.array([1.0]), "up.bias": backend.array([1.0])}
    >>> updates, _ = decay.update(g, decay.init(g), g)
    >>> updates["up.weight"].item(), updates["up.bias"].item()
    (10.0, 1.0)
    """
    check_transformation("masked()", transformation)
    check_mask("masked()", mask)

    def init(params: Tree) -> State:
        form = Form(params)
        return transformation.init(form.keep(read_mask(mask, params, form)))

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form = Form(params)
        chosen = read_mask(mask, params, form)
        given = form.read(gradients, "gradients")
        made, state = transformation.update(form.keep(chosen, given), state, form.keep(chosen))
        pairs = zip(chosen, form.read(made, "updates"), given, strict=True)
        return form.build([u if is_in else g for is_in, u, g in pairs]), state

    return Transformation(init, update)


def train_only(optimizer: Transformation, mask: Mask | None) -> Transformation:
    """Return an optimiser of the parameters in a mask; others stay, and have no state."""
    if mask is None:
        return optimizer
    check_mask("mask=", mask)

    def label(params: Tree) -> list[str]:
        chosen = read_mask(mask, params, Form(params))
        return ["trained" if is_in else "" for is_in in chosen]

    return _only(optimizer, label)


@checked_keywords()
def freeze(optimizer: Transformation, mask: Mask) -> Transformation:
    """Return an optimiser that leaves some parameters as they are, and keeps no state for them.

    Gradients of them may be given, and are not read. That none are computed is said of the model:
    `model.freeze("embed.*")`.

    Args:
        optimizer: of the others.
        mask: which parameters stay as they are; see `masked`.

    Raises:
        OptionError: the mask is none. One that matches nothing, or every parameter, is refused
            when parameters are known.

    >>> from mithril.optim import sgd
    >>> optimizer = freeze(sgd(1.0), "embed.*")
    >>> params = {"embed.weight": backend.array([1.0]), "head.weight": backend.array([1.0])}
    >>> params, _ = optimizer.apply(params, optimizer.init(params), params)
    >>> params["embed.weight"].item(), params["head.weight"].item()
    (1.0, 0.0)
    """
    check_transformation("freeze()", optimizer)
    check_mask("freeze()", mask)

    def label(params: Tree) -> list[str]:
        frozen = read_mask(mask, params, Form(params))
        if all(frozen):
            raise OptionError(
                "freeze() leaves no parameter to train; give a mask that some parameters are not in"
            )
        return ["" if is_in else "trained" for is_in in frozen]

    return _only(optimizer, label)


def _only(optimizer: Transformation, label: Callable[[Tree], list[str]]) -> Transformation:
    """Return an optimiser of the parameters that are labelled `trained`; its state is that."""
    parts = split_by_label({"trained": optimizer}, label)

    def init(params: Tree) -> State:
        return parts.init(params)["trained"]

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        updates, state = parts.update(gradients, {"trained": state}, params)
        return updates, state["trained"]

    def apply(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        params, state = parts.apply(gradients, {"trained": state}, params)
        return params, state["trained"]

    return Transformation(init, update, apply)


@checked_keywords()
def partition(
    optimizers: Mapping[str, Transformation],
    labels: Mapping[str, Any] | Callable[[Tree], Any],
) -> Transformation:
    """Return an optimiser that gives each parameter to one of several, by a label.

    What torch calls parameter groups and optax `partition`.

    Args:
        optimizers: by label.
        labels: a label by pattern of names, of which the last match counts; a tree of labels in the
            form of the parameters, or of its upper part; or a function of the parameters.

    Returns:
        An optimiser whose state is a dict with the state of each, by label.

    Raises:
        OptionError: there is no optimiser, or labels are none of these. A parameter without a
            label, a label that names none, and an optimiser without parameters are refused when
            parameters are known.

    >>> from mithril.optim import sgd
    >>> optimizer = partition({"slow": sgd(0.1), "fast": sgd(1.0)}, {"*": "slow", "head.*": "fast"})
    >>> params = {"body.weight": backend.array([1.0]), "head.weight": backend.array([1.0])}
    >>> params, _ = optimizer.apply(params, optimizer.init(params), params)
    >>> print(params["body.weight"].item(), params["head.weight"].item())
    0.8999999761581421 0.0
    """
    if not isinstance(optimizers, Mapping) or not optimizers:
        raise OptionError(
            f"partition() is given {kind_of(optimizers)}, no optimiser by label; give a dict, such "
            f'as {{"head": adamw(1e-3), "body": adamw(1e-4)}}'
        )
    for optimizer in optimizers.values():
        check_transformation("partition()", optimizer)
    if not isinstance(labels, Mapping | list | tuple) and not callable(labels):
        raise OptionError(
            f"partition() is given {kind_of(labels)} as labels; give a label by pattern, a tree of "
            f"labels, or a function of the parameters"
        )

    def label(params: Tree) -> list[str]:
        form = Form(params)
        found = read_labels(labels, params, form)
        for name, said in zip(form.names, found, strict=True):
            if said not in optimizers:
                what = f"has the label '{said}'" if said else "has no label"
                raise OptionError(
                    f"parameter '{name}' {what} in partition(); labels of optimisers: "
                    f"{listing(optimizers)}"
                )
        unused = [name for name in optimizers if name not in found]
        if unused:
            raise OptionError(
                f"optimiser '{unused[0]}' of partition() has no parameters; label some, or leave "
                f"it out"
            )
        return [str(said) for said in found]

    return split_by_label(optimizers, label)


def split_by_label(
    optimizers: Mapping[str, Transformation], label: Callable[[Tree], list[str]]
) -> Transformation:
    """Return optimisers side by side, each of the parameters that have its label.

    Args:
        optimizers: by label; of one that has no parameters the state is an empty dict.
        label: takes parameters and returns the label of each; a label of no optimiser is for what
            stays as it is.
    """

    def parts(params: Tree) -> tuple[Form, dict[str, list[bool]]]:
        form, labels = Form(params), label(params)
        return form, {name: [said == name for said in labels] for name in optimizers}

    def init(params: Tree) -> State:
        form, chosen = parts(params)
        return {
            name: each.init(form.keep(chosen[name])) if any(chosen[name]) else {}
            for name, each in optimizers.items()
        }

    def run(
        kind: str, gradients: Tree, state: State, params: Tree, others: list[Leaf | None]
    ) -> tuple[Form, list[Leaf | None], State]:
        form, chosen = parts(params)
        check_state("partition()", state, tuple(optimizers))
        given = form.read(gradients, "gradients")
        made, after = list(others), dict(state)
        for name, each in optimizers.items():
            if any(chosen[name]):
                of = form.keep(chosen[name], given), state[name], form.keep(chosen[name])
                tree, after[name] = getattr(each, kind)(*of)
                found = form.read(tree, "updates")
                made = [
                    u if is_in else m for is_in, u, m in zip(chosen[name], found, made, strict=True)
                ]
        return form, made, after

    def update(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        nothing: list[Leaf | None] = [None] * len(Form(params).leaves)
        form, made, state = run("update", gradients, state, params, nothing)
        return form.build(made), state

    def apply(gradients: Tree, state: State, params: Tree) -> tuple[Tree, State]:
        form, made, state = run("apply", gradients, state, params, list(Form(params).leaves))
        return form.build(made), state

    return Transformation(init, update, apply)


def mask_others(transformation: Transformation, mask: Mask | None) -> Transformation:
    """Return a transformation as its `mask=` says: as it is, or `masked`."""
    return transformation if mask is None else masked(transformation, mask)
