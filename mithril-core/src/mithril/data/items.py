"""Items: what a data set gives for a position, or an iterable next, as a tree of host arrays.

Dicts and other mappings, tuples and named tuples are containers. A list of numbers, or of lists of
them, is values, as Hugging Face data sets give them; a list of arrays is a container, as PyTorch's
DataLoader makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, TypeGuard

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

    def list_fields(self, count: int) -> tuple[Field, ...]:
        """Return the fields of a batch of so many samples like this one."""
        return tuple(f._replace(shape=(count, *f.shape)) for f in self.fields)


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
    *,
    opens_lists: bool = True,
) -> Item:
    """Return an item as a tree of arrays.

    Args:
        item: what a data set or an iterable gives.
        like: the form of another one: dicts with the same keys are read in its order.
        take: returns the array that a leaf stands for, given its name.
        opens_lists: whether a list of arrays is a container, not a leaf.

    Raises:
        ShapeError: a leaf is no array of numbers.
    """
    leaves: list[Any] = []
    structure = flatten(_open(item, like, take, "", opens_lists), leaves)
    return Item(structure, tuple(names(structure, "")), leaves)


def _open(
    item: object,
    like: Structure,
    take: Callable[[object, str], object],
    path: str,
    opens_lists: bool,
) -> object:
    """Return the same tree of dicts, tuples and lists, with arrays as leaves."""
    below = dict(zip(like.keys, like.children, strict=True)) if isinstance(like, Branch) else {}

    def enter(key: Any, child: object) -> object:
        inner = f"{path}.{key}" if path else str(key)
        return _open(child, below.get(key), take, inner, opens_lists)

    if item is None:
        return None
    if isinstance(item, Mapping):
        keys = below if set(below) == set(item) else item
        return {key: enter(key, item[key]) for key in keys}
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        kind: Any = type(item)
        return kind(*(enter(key, getattr(item, key)) for key in item._fields))
    if isinstance(item, tuple) or (opens_lists and is_container(item)):
        opened = [enter(position, child) for position, child in enumerate(item)]
        return tuple(opened) if isinstance(item, tuple) else opened
    return take(item, path)


def is_container(item: object) -> TypeGuard[list[Any]]:
    """Return whether an item is a list of arrays or containers, not of values."""
    return isinstance(item, list) and any(
        isinstance(x, Mapping | tuple) or getattr(x, "shape", ()) != () for x in item
    )


def check_alike(item: Item, which: str, form: Item, said: Collection[str] = ()) -> None:
    """Raise unless an item is like the first one.

    Args:
        item: a sample.
        which: names it, for messages.
        form: the first one.
        said: fields whose dtype does not follow from the first one, as somebody gave it.

    Raises:
        ShapeError: it has other fields, one of another shape, or numbers that are lost in the
            dtype of the first one: floats among integers, or either among truth values.
    """
    if item.structure != form.structure:
        raise ShapeError(
            f"{which} of the data set has the fields {listing(item.names)}, the first one "
            f"{listing(form.names)}; give all of them the same form"
        )
    for name, leaf, first in zip(item.names, item.leaves, form.leaves, strict=True):
        lone = name or LONE
        if leaf.shape != first.shape:
            raise ShapeError(
                f"{which} of the data set has '{lone}' of shape {leaf.shape}, the first "
                f"one of shape {first.shape}; pad samples to one shape, or give ready batches"
            )
        if _width(leaf) > _width(first) and lone not in said:
            raise ShapeError(
                f"{which} of the data set has '{lone}' of {leaf.dtype}, the first one of "
                f"{first.dtype}, which does not hold it; make all of them alike, or say what "
                f"they become in dtypes={{'{lone}': …}}"
            )


def _width(leaf: np.ndarray) -> int:
    """Return the place of a kind among truth values, integers and floats, which hold the former."""
    return {"b": 0, "i": 1, "u": 1}.get(leaf.dtype.kind, 2)
