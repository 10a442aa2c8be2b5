"""Items: what a data set gives for a position, or an iterable next, as a tree of host arrays.

Dicts and other mappings, tuples and named tuples are containers. A list of numbers, or of lists of
them, is values, as Hugging Face data sets give them; a list of arrays is a container, as PyTorch's
DataLoader makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from mithril.errors import ShapeError, listing
from mithril.runtime.array import Array
from mithril.runtime.host import on_host
from mithril.trees import Branch, Structure, flatten, names
from mithril.types import Shape

LONE = "data"
"""What messages call data that have no names."""


class Field(NamedTuple):
    """One array of an item.

    Args:
        name: its keys, with dots in between; empty where the item is a single array.
        shape: of it.
        dtype: NumPy's.
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{self.name or LONE}: {self.dtype}{list(self.shape)}"


class Item(NamedTuple):
    """A tree of arrays.

    Args:
        structure: its form.
        names: of its leaves.
        leaves: the arrays.
    """

    structure: Structure
    names: tuple[str, ...]
    leaves: list[Any]

    @property
    def fields(self) -> tuple[Field, ...]:
        """What each leaf is."""
        found = zip(self.names, self.leaves, strict=True)
        return tuple(Field(name, tuple(x.shape), np.dtype(x.dtype)) for name, x in found)


def read_leaf(value: object, name: str) -> np.ndarray:
    """Return one array of an item on the host.

    Raises:
        ShapeError: it holds no numbers, or lists of several lengths, or lies on devices already.
    """
    if isinstance(value, Array):
        raise ShapeError(
            f"field '{name or LONE}' of an item is an array of backend '{value.backend.name}' "
            f"already; give values of the host, or loop over the data themselves"
        )
    try:
        return on_host(value)
    except ShapeError as error:
        raise ShapeError(
            f"field '{name or LONE}' of the data cannot be made an array; {error}"
        ) from error


def read_item(
    item: object,
    like: Structure = None,
    take: Callable[[object, str], object] = read_leaf,
) -> Item:
    """Return an item as a tree of arrays.

    Args:
        item: what a data set or an iterable gives.
        like: the form of another one: dicts with the same keys are read in its order.
        take: returns the array that a leaf stands for, given its name.

    Raises:
        ShapeError: a leaf is no array of numbers.
    """
    leaves: list[Any] = []
    structure = flatten(_open(item, like, take, ""), leaves)
    return Item(structure, tuple(names(structure, "")), leaves)


def _open(
    item: object, like: Structure, take: Callable[[object, str], object], path: str
) -> object:
    """Return the same tree of dicts, tuples and lists, with arrays as leaves."""
    below = dict(zip(like.keys, like.children, strict=True)) if isinstance(like, Branch) else {}

    def enter(key: Any, child: object) -> object:
        return _open(child, below.get(key), take, f"{path}.{key}" if path else str(key))

    if item is None:
        return None
    if isinstance(item, Mapping):
        keys = below if set(below) == set(item) else item
        return {key: enter(key, item[key]) for key in keys}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        kind: Any = type(item)
        return kind(*(enter(key, getattr(item, key)) for key in item._fields))
    if isinstance(item, tuple) or (isinstance(item, list) and _is_container(item)):
        opened = [enter(position, child) for position, child in enumerate(item)]
        return tuple(opened) if isinstance(item, tuple) else opened
    return take(item, path)


def _is_container(items: list[Any]) -> bool:
    """Whether a list holds arrays or containers, not values."""
    return any(isinstance(x, Mapping | tuple) or getattr(x, "shape", ()) != () for x in items)


def check_alike(item: Item, which: str, form: Item) -> None:
    """Raise unless an item is like the first one.

    Args:
        item: a sample.
        which: names it, for messages.
        form: the first one.

    Raises:
        ShapeError: it has other fields, or one of another shape.
    """
    if item.structure != form.structure:
        raise ShapeError(
            f"{which} of the data set has the fields {listing(item.names)}, the first one "
            f"{listing(form.names)}; give all of them the same form"
        )
    for name, leaf, first in zip(item.names, item.leaves, form.leaves, strict=True):
        if leaf.shape != first.shape:
            raise ShapeError(
                f"{which} of the data set has '{name or LONE}' of shape {leaf.shape}, the first "
                f"one of shape {first.shape}; pad samples to one shape, or give ready batches"
            )
