"""Masks and labels: patterns, trees and functions, read as one value for each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np

from mithril.errors import GraphError, OptionError, kind_of, listing, near_names
from mithril.optim.form import Form
from mithril.optim.transformation import Tree
from mithril.trees import Branch, Structure, names
from mithril.trees import Leaf as TreeLeaf

Said = TypeVar("Said", bool, str)
Mask = str | Sequence[str] | Mapping[str, Any] | Callable[[Tree], Any] | bool
"""Patterns of names, booleans by pattern, a tree of booleans, or a function of parameters."""


def check_mask(call: str, mask: object) -> None:
    """Raise unless something may be a mask.

    Args:
        call: what takes it, for messages.
        mask: what it is given.

    Raises:
        OptionError: it is none.
    """
    if not (isinstance(mask, str | Mapping | list | tuple | bool) or callable(mask)):
        raise OptionError(
            f"{call} is given {kind_of(mask)} as a mask; give patterns of names, such as "
            f'"*.weight", a tree of booleans, or a function of the parameters'
        )


def read_mask(mask: Mask, params: Tree, form: Form) -> list[bool]:
    """Return for each parameter whether it is in a mask.

    Raises:
        OptionError: a pattern matches nothing, or nothing is in the mask.
        GraphError: a tree of booleans is of another form.
    """
    said = mask(params) if callable(mask) else mask
    if callable(mask):
        check_mask("mask=", said)
    if isinstance(said, str):
        said = [said]
    if isinstance(said, list | tuple) and said and all(isinstance(x, str) for x in said):
        said = dict.fromkeys(said, True)
    found = [bool(x) for x in _read_said(said, form, bool, "mask")]
    if not any(found):
        raise OptionError(
            f"mask {mask!r} is False for every parameter; give one that some are in; near names: "
            f"{listing(form.names[:5])}"
        )
    return found


def read_labels(labels: Any, params: Tree, form: Form) -> list[str | None]:
    """Return for each parameter its label, None for none.

    Raises:
        OptionError: a pattern matches nothing.
        GraphError: a tree of labels is of another form.
    """
    return _read_said(labels(params) if callable(labels) else labels, form, str, "label")


def _read_said(said: Any, form: Form, kind: type[Said], what: str) -> list[Said | None]:
    """Return what a tree, or a mapping from patterns, says of each parameter."""
    if isinstance(said, Mapping) and not _has_keys(said, form.structure):
        return _match(said, form, kind, what)
    return list(_spread(said, form.structure, kind, what))


def _has_keys(said: Mapping[Any, Any], structure: Structure) -> bool:
    return isinstance(structure, Branch) and set(said) == set(structure.keys)


def _match(rules: Mapping[Any, Any], form: Form, kind: type[Said], what: str) -> list[Said | None]:
    found: list[Said | None] = [None] * len(form.names)
    for pattern, value in rules.items():
        if not isinstance(pattern, str) or not isinstance(value, kind):
            raise OptionError(
                f"{what} has {pattern!r}: {value!r}; give a {kind.__name__} for each pattern of "
                f"names, or a tree of them in the form of the parameters"
            )
        hits = [i for i, name in enumerate(form.names) if fnmatchcase(name, pattern)]
        if not hits:
            raise OptionError(
                f"pattern '{pattern}' of a {what} matches no parameter; near names: "
                f"{listing(near_names(pattern, form.names))}"
            )
        for i in hits:
            found[i] = value
    return found


def _spread(said: Any, structure: Structure, kind: type[Said], what: str) -> Iterable[Said]:
    """Yield what a tree says of each leaf; what stands at an upper place holds below it."""
    if isinstance(said, np.bool_):
        said = bool(said)
    if isinstance(said, kind):
        yield from [said] * len(list(names(structure, "")))
    elif isinstance(structure, Branch) and _fits(said, structure):
        for key, child in zip(structure.keys, structure.children, strict=True):
            inside = said[key] if isinstance(said, Mapping) else said[structure.keys.index(key)]
            yield from _spread(inside, child, kind, what)
    elif structure is not None:
        raise GraphError(
            f"{what} is of another form than the parameters, {_describe(said)} where they have "
            f"{_form(structure)}; give a {kind.__name__} for each, or patterns of names"
        )


def _fits(said: Any, structure: Branch) -> bool:
    if isinstance(said, Mapping):
        return _has_keys(said, structure)
    return isinstance(said, list | tuple) and len(said) == len(structure.keys)


def _describe(said: object) -> str:
    return f"keys {listing(map(str, said))}" if isinstance(said, Mapping) else kind_of(said)


def _form(structure: Structure) -> str:
    if isinstance(structure, TreeLeaf):
        return "an array"
    return f"keys {listing(map(str, structure.keys))}" if isinstance(structure, Branch) else "None"
