"""Ready batches of several processes: who gives other rows than the rest is told so everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.data import agreement
from mithril.data.agreement import Agreement, Read
from mithril.data.items import read_item
from mithril.data.order import Position
from mithril.data.placing import HostBatch, Placing
from mithril.data.samples import ReadyRows

BACKEND = ml.NumpyBackend(ml.Mesh(data=2))
Numbers = Sequence[int]


def batch_of(rows: int) -> HostBatch:
    """Return a batch of which this process gives so many rows, on the devices of all."""
    placing = Placing(BACKEND, P("data"), {}, per_process=True)
    return placing.read(ReadyRows(read_item({"x": np.ones((rows, 3), np.float32)})))


def walk(rows: Iterable[int], taken: int = 0, count: int | None = None) -> Iterator[Read]:
    """Yield batches as a loop reads them that begins behind so many; -1 cannot be read."""
    epoch = 0
    for number in rows:
        if number < 0:
            raise ValueError("no such file")
        taken += 1
        if taken == count:
            epoch, taken = epoch + 1, 0
        yield batch_of(number), Position(epoch, taken)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Numbers]:
    """What this process told the others, who give the same."""
    told: list[Numbers] = []

    def exchange(backend: Any, numbers: Numbers) -> np.ndarray:
        told.append(tuple(numbers))
        return np.array([numbers, numbers])

    monkeypatch.setattr(agreement, "exchange", exchange)
    return told


def test_first_batches_and_last_ones_are_compared_and_no_others(asked: list[Numbers]) -> None:
    rows = [4, 2, 6, 4, 4, 6]
    assert len(list(Agreement(BACKEND, 3).check_each(walk(rows, count=3)))) == 6
    assert [given[0] for given in asked] == [4, 6, 6]


def test_batches_of_a_loader_without_a_length_may_differ_in_size(asked: list[Numbers]) -> None:
    assert len(list(Agreement(BACKEND, None).check_each(walk([4, 4, 2, 4, 4, 2])))) == 6
    assert [given[0] for given in asked] == [4]


def test_a_loop_that_begins_with_the_last_batch_of_an_epoch_goes_on(asked: list[Numbers]) -> None:
    rows = [2, 4, 4, 2]
    assert len(list(Agreement(BACKEND, 3).check_each(walk(rows, taken=2, count=3)))) == 4
    assert [given[0] for given in asked] == [2, 2]


@pytest.mark.parametrize("rows", [[-1], [4, 4, -1]], ids=["first", "last"])
def test_who_cannot_read_a_batch_tells_the_others_before_it_raises(
    rows: list[int], asked: list[Numbers]
) -> None:
    with pytest.raises(ValueError, match="no such file"):
        list(Agreement(BACKEND, 3).check_each(walk(rows, count=3)))
    assert asked[-1] == agreement.UNREADABLE
    assert len(asked) == (1 if rows == [-1] else 2)


def test_nobody_is_told_of_an_error_in_a_batch_that_is_not_compared(asked: list[Numbers]) -> None:
    with pytest.raises(ValueError, match="no such file"):
        list(Agreement(BACKEND, 3).check_each(walk([4, -1], count=3)))
    assert len(asked) == 1


def test_a_batch_that_another_process_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    others = np.array([[4, 0], agreement.UNREADABLE])
    monkeypatch.setattr(agreement, "exchange", lambda backend, own: others)
    text = (
        "ready batch of another process cannot be read, and that of this one makes "
        "x: float32[4, 3] with it; see what that process says"
    )
    with pytest.raises(ml.ShapeError, match=re.escape(text)):
        next(Agreement(BACKEND, 3).check_each(walk([4])))


@pytest.mark.parametrize("is_last", [False, True])
def test_other_rows_of_another_process_are_refused(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = Agreement(BACKEND, 2).check_each(walk([4, 4], count=2))
    if is_last:
        next(batches)

    def exchange(backend: Any, numbers: Numbers) -> np.ndarray:
        return np.array([numbers, np.add(numbers, 2)])

    monkeypatch.setattr(agreement, "exchange", exchange)
    text = (
        "ready batches differ between processes: that of this one makes x: float32[4, 3] with those "
        "of others, 2 in an epoch, and theirs have first dimensions of 4 to 6, or other fields"
    )
    with pytest.raises(ml.ShapeError, match=re.escape(text)):
        next(batches)
