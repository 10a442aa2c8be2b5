"""Sources: what batches are made of, and how the rows of one are read.

Arrays and data sets are read by position, iterables in their order. A batch that is not read yet is
`Rows`: it knows the type of each field, and reads the part of a field that a device holds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mithril.data.items import LONE, Field, Item, is_container, read_item, read_leaf
from mithril.data.samples import BatchTable, read_data_set
from mithril.errors import OptionError, ShapeError, kind_of
from mithril.mesh import Box
from mithril.runtime.array import Array
from mithril.runtime.host import check_unmasked
from mithril.trees import Structure


class Rows(Protocol):
    """A batch before it is read."""

    @property
    def structure(self) -> Structure:
        """The form of the batch."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its arrays, whole."""

    def read(self, number: int, box: Box) -> np.ndarray:
        """Return what a box cuts out of a field, as an array of its own.

        Args:
            number: of the field.
            box: one slice per dimension.
        """


class Table(Protocol):
    """Samples that are read by position."""

    @property
    def count(self) -> int:
        """How many there are."""

    @property
    def form(self) -> Item:
        """A sample; its arrays may have no values."""

    def take(self, rows: np.ndarray) -> Rows:
        """Return the batch of the samples at some positions."""


# ---------------------------------------------------------------------- arrays


@dataclass(frozen=True)
class ArrayTable:
    """Arrays of equal first dimension: a sample is a row of each.

    Args:
        data: a tree of them.
    """

    data: Item

    @property
    def count(self) -> int:
        """How many rows there are."""
        return int(self.data.leaves[0].shape[0])

    @property
    def form(self) -> Item:
        """A row, without values."""
        rows = [np.empty(f.shape[1:], f.dtype) for f in self.data.fields]
        return Item(self.data.structure, self.data.names, rows)

    def take(self, rows: np.ndarray) -> Rows:
        """Return the batch of some rows."""
        return ArrayRows(self, rows)


@dataclass(frozen=True)
class ArrayRows:
    """Some rows of arrays."""

    table: ArrayTable
    rows: np.ndarray

    @property
    def structure(self) -> Structure:
        """The form of the batch."""
        return self.table.data.structure

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its arrays, whole."""
        return self.table.form.list_fields(len(self.rows))

    def read(self, number: int, box: Box) -> np.ndarray:
        """Return what a box cuts out of a field."""
        source, rows, rest = self.table.data.leaves[number], self.rows[box[0]], box[1:]
        if not len(rows):
            return np.empty([part.stop - part.start for part in box], source.dtype)
        first, last = int(rows[0]), int(rows[-1])
        if last - first + 1 == len(rows) and np.all(np.diff(rows) == 1):
            return np.array(source[first : last + 1][(slice(None), *rest)])
        if isinstance(source, np.ndarray):
            taken: np.ndarray = source[(slice(None), *rest)][rows]
            return np.asarray(taken)
        # Files of arrays, such as those of h5py, are read at growing positions only.
        order = np.argsort(rows)
        found: np.ndarray = np.asarray(source[rows[order]])[np.argsort(order)]
        return found[(slice(None), *rest)]


def read_arrays(data: object) -> ArrayTable:
    """Return arrays as a table.

    Raises:
        ShapeError: one is none, or their first dimensions differ, or there is none.
    """
    item = read_item(data, take=_read_array, opens_lists=False)
    if not item.leaves:
        raise ShapeError("data have no arrays; give a dict or tuple with at least one")
    lengths = {name or LONE: x.shape[0] for name, x in zip(item.names, item.leaves, strict=True)}
    (first, length), *others = lengths.items()
    for name, other in others:
        if other != length:
            raise ShapeError(
                f"arrays of the data have first dimensions that differ: '{first}' {length}, "
                f"'{name}' {other}; give one row of each to a sample"
            )
    return ArrayTable(item)


def _read_array(value: Any, name: str) -> object:
    if is_container(value):
        raise ShapeError(
            f"field '{name or LONE}' of the data is a list of arrays; give one array whose first "
            f"dimension counts samples, such as np.stack(…), or a tuple where each is a field"
        )
    if hasattr(value, "iloc"):  # data of pandas are read by the labels of rows, but so
        value = value.to_numpy()
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    if not is_array and not isinstance(value, list):
        raise ShapeError(
            f"field '{name or LONE}' of the data is {kind_of(value)}, no array; give arrays, or "
            f"one data set whose samples have these fields"
        )
    # Arrays of frameworks reach the host once; files of arrays are read part by part.
    check_unmasked(value, f"field '{name or LONE}' of the data is")
    if isinstance(value, Array):
        array: Any = value.numpy()
    elif is_array and (isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__")):
        array = value
    else:
        array = read_leaf(value, name)
    if not array.shape:
        raise ShapeError(
            f"field '{name or LONE}' of the data has no dimensions; its first one counts samples"
        )
    return array


# ---------------------------------------------------------------------- iterables


def find_length(data: Any) -> int | None:
    """Return how many items there are, None where nobody knows."""
    try:
        return len(data)
    except (TypeError, NotImplementedError):  # it has no length, or is a loader of what has none
        return None


@dataclass
class Stream:
    """An iterable, or a function that returns one.

    Args:
        data: it; an iterator can be gone through once.
    """

    data: Any
    _is_begun: bool = False

    @property
    def count(self) -> int | None:
        """How many items an epoch has; None where nobody knows."""
        return find_length(self.data)

    def open(self, skip: int) -> Iterator[Any]:
        """Return the items of an epoch from some position on.

        Args:
            skip: how many items are left out at the beginning.

        Raises:
            OptionError: it was gone through, or begun, before.
        """
        items: Iterable[Any] = self.data
        if callable(self.data) and not hasattr(self.data, "__iter__"):
            items = self.data()
        found = iter(items)
        if found is self.data:
            if self._is_begun:
                raise OptionError(
                    f"data are {kind_of(self.data)}, which can be gone through once, and it was "
                    f"begun before; give a list, a loader, or a function that returns a new one"
                )
            self._is_begun = True
        for _ in range(skip):
            if next(found, _END) is _END:
                break
        return found


_END = object()


def open_source(
    data: Any, has_size: bool, said: Collection[str] = ()
) -> Table | BatchTable | Stream:
    """Return what data are.

    Args:
        data: arrays, a data set, an iterable or a function that returns one.
        has_size: whether batches are made of samples.
        said: fields whose dtype somebody gave.

    Raises:
        ShapeError: arrays do not fit together, or there is no sample.
        OptionError: it is nothing of all that, or arrays without a size.
    """
    if hasattr(data, "iloc") and hasattr(data, "columns"):  # a table of pandas
        data = dict(data.items())
    if isinstance(data, Mapping | tuple) or (hasattr(data, "shape") and hasattr(data, "dtype")):
        if not has_size:
            raise OptionError(
                "size=None takes what gives ready batches, and data are arrays; give size=, the "
                "number of samples of a batch"
            )
        table = read_arrays(data)
        if not table.count:
            raise ShapeError(
                f"data set is empty: '{table.data.names[0] or LONE}' has first dimension 0; give "
                f"at least a row"
            )
        return table
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and not isinstance(data, str):
        try:
            found = read_data_set(data, said)
        except NotImplementedError:
            if not hasattr(data, "__iter__"):
                raise
            return Stream(data)  # an IterableDataset of PyTorch, which may have a length, too
        return found if has_size else BatchTable(data)
    if callable(data) or (hasattr(data, "__iter__") and not isinstance(data, str)):
        return Stream(data)
    raise OptionError(
        f"data are {kind_of(data)}; give a dict or tuple of arrays, a data set with len(data) and "
        f"data[i], or an iterable of batches"
    )


__all__ = ["Rows", "Stream", "Table", "find_length", "open_source"]
