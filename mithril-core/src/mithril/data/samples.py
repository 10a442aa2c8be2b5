"""Samples and ready batches: what data sets and iterables give, and the rows of batches made of it.

Samples of one source are alike. Each is read once, when a part of it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mithril.data.items import Field, Item, check_alike, read_item
from mithril.errors import ShapeError, kind_of
from mithril.mesh import Box
from mithril.trees import Structure


@dataclass(frozen=True)
class SampleTable:
    """A data set: samples that are read one by one.

    Args:
        data: has `len(data)` and `data[i]`, or `data.__getitems__(positions)` for several at once.
        form: the first sample.
        said: fields whose dtype somebody gave.
    """

    data: Any
    form: Item
    said: Collection[str] = ()

    @property
    def count(self) -> int:
        """How many samples there are."""
        return len(self.data)

    def take(self, rows: np.ndarray) -> SampleRows:
        """Return the batch of some samples."""
        return SampleRows(self, rows)

    def read(self, rows: list[int]) -> dict[int, Item]:
        """Return samples by position.

        Raises:
            ShapeError: the data set gives fewer or others than the first one.
        """
        found = {}
        for row, sample in zip(rows, self._give(rows), strict=True):
            found[row] = read_item(sample, self.form.structure)
            check_alike(found[row], f"sample {row}", self.form, self.said)
        return found

    def _give(self, rows: list[int]) -> list[Any]:
        several = getattr(self.data, "__getitems__", None)
        if several is None:
            return [_ask(self.data.__getitem__, row) for row in rows]
        given = _ask(several, rows)
        samples = [] if isinstance(given, Mapping) else list(given)
        if len(samples) != len(rows):
            raise ShapeError(
                f"data set returns {kind_of(given)} with {len(samples)} samples from __getitems__ "
                f"of {len(rows)} positions; return a list with a sample for each"
            )
        return samples


def _ask(give: Callable[[Any], Any], place: object) -> Any:
    """Return what a data set gives for a position, or for several.

    Raises:
        ShapeError: it says that it ends there.
    """
    try:
        return give(place)
    except StopIteration as error:  # which would end the loop that asks
        raise ShapeError(
            f"data set raises StopIteration when it is asked for {place}; let its length say how "
            f"many samples it has"
        ) from error


@dataclass(frozen=True)
class SampleRows:
    """Some samples of a data set; each is read once, when a part of it is asked for."""

    table: SampleTable
    rows: np.ndarray
    known: dict[int, Item] = field(default_factory=dict)

    @property
    def structure(self) -> Structure:
        """The form of the batch."""
        return self.table.form.structure

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its arrays, whole."""
        return self.table.form.list_fields(len(self.rows))

    def read(self, number: int, box: Box) -> np.ndarray:
        """Return what a box cuts out of a field."""
        rows = [int(row) for row in self.rows[box[0]]]
        lacking = [row for row in rows if row not in self.known]
        self.known.update(self.table.read(lacking) if lacking else {})
        return _stack([self.known[row].leaves[number] for row in rows], self.fields[number], box)


def _stack(leaves: list[np.ndarray], of: Field, box: Box) -> np.ndarray:
    if not leaves:
        return np.empty([part.stop - part.start for part in box], of.dtype)
    return np.stack([leaf[box[1:]] for leaf in leaves])


def read_data_set(data: Any, said: Collection[str] = ()) -> SampleTable:
    """Return a data set as a table.

    Args:
        data: it.
        said: fields whose dtype somebody gave.

    Raises:
        ShapeError: it is empty.
    """
    if not len(data):
        raise ShapeError(f"data set is empty: {kind_of(data)} of length 0; give at least a sample")
    return SampleTable(data, read_item(_ask(data.__getitem__, 0)), said)


@dataclass(frozen=True)
class StackedRows:
    """Samples that an iterable gave one after the other.

    Args:
        samples: they.
        form: the first one of the iterable.
    """

    samples: list[Item]
    form: Item

    @property
    def structure(self) -> Structure:
        """The form of the batch."""
        return self.form.structure

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its arrays, whole."""
        return self.form.list_fields(len(self.samples))

    def read(self, number: int, box: Box) -> np.ndarray:
        """Return what a box cuts out of a field."""
        leaves = [sample.leaves[number] for sample in self.samples[box[0]]]
        return _stack(leaves, self.fields[number], box)


@dataclass(frozen=True)
class ReadyRows:
    """A batch that a source gave ready made."""

    item: Item

    @property
    def structure(self) -> Structure:
        """The form of the batch."""
        return self.item.structure

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its arrays, whole."""
        return self.item.fields

    def read(self, number: int, box: Box) -> np.ndarray:
        """Return what a box cuts out of a field."""
        return np.array(self.item.leaves[number][box])


@dataclass(frozen=True)
class BatchTable:
    """A data set whose items are batches already; `rows` of it are single ones.

    Args:
        data: has `len(data)` and `data[i]`.
    """

    data: Any

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.data)

    def take(self, rows: np.ndarray) -> ReadyRows:
        """Return one batch."""
        return ReadyRows(read_item(_ask(self.data.__getitem__, int(rows[0]))))


__all__ = ["BatchTable", "ReadyRows", "StackedRows", "read_data_set"]
