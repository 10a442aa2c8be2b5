"""Ready batches of several processes: who gives other rows than the rest is told so everywhere."""

from __future__ import annotations

import re
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.data.agreement import Agreement
from mithril.data.items import read_item
from mithril.data.placing import HostBatch, Placing
from mithril.data.samples import ReadyRows

BACKEND = ml.NumpyBackend(ml.Mesh(data=2))


def batch_of(rows: int) -> HostBatch:
    """Return a batch of which this process gives so many rows, on the devices of all."""
    placing = Placing(BACKEND, P("data"), {}, per_process=True)
    return placing.read(ReadyRows(read_item({"x": np.ones((rows, 3), np.float32)})))


def test_batches_alike_go_on_and_a_last_one_may_differ() -> None:
    agreement = Agreement(BACKEND, count=3)
    for rows, is_last in ((4, False), (4, False), (2, True), (4, False)):
        agreement.check(batch_of(rows), is_last)


def test_a_batch_unlike_the_first_one_is_refused_without_asking(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agreement = Agreement(BACKEND, count=None)
    agreement.check(batch_of(4), is_last=False)
    monkeypatch.setattr(BACKEND, "place", None)
    agreement.check(batch_of(4), is_last=False)
    text = (
        "ready batch of this process makes x: float32[2, 3] with those of others, and the first one "
        "of the loop made x: float32[4, 3], as others may do still; drop or pad rows"
    )
    with pytest.raises(ml.ShapeError, match=re.escape(text)):
        agreement.check(batch_of(2), is_last=False)


@pytest.mark.parametrize("is_last", [False, True])
def test_other_rows_of_another_process_are_refused(
    is_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreement = Agreement(BACKEND, count=3)
    if is_last:
        agreement.check(batch_of(4), is_last=False)
    place = BACKEND.place

    def place_with_others(type: Any, sharding: Any, produce: Any) -> Any:
        return place(type, sharding, lambda box: produce(box) + (2 if box[0].start else 0))

    monkeypatch.setattr(BACKEND, "place", place_with_others)
    text = (
        "ready batches differ between processes: that of this one makes x: float32[4, 3] with those "
        "of others, 3 in an epoch, and theirs have first dimensions of 4 to 6, or other fields"
    )
    with pytest.raises(ml.ShapeError, match=re.escape(text)):
        agreement.check(batch_of(4), is_last)
