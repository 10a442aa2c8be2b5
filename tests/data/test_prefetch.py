"""Reading ahead: how far, where errors arrive, and that no thread is left behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.data.prefetch import NAME

from tests.data.test_batches import Samples, X


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_a_thread_reads_no_further_ahead_than_it_is_told() -> None:
    data = Samples()
    batches = iter(ml.data.batches(data, 2, backend=ml.NumpyBackend(), prefetch=3))
    next(batches)
    wait_until(lambda: len(data.read) >= 1 + 2 * 4)
    time.sleep(0.05)
    assert len(data.read) == 1 + 2 * 4, "the form, the batch that was taken, and three more"
    batches.close()  # type: ignore[attr-defined]


def test_without_prefetch_there_is_no_thread() -> None:
    data = Samples()
    for number, _ in enumerate(ml.data.batches(data, 2, backend=ml.NumpyBackend(), prefetch=0)):
        assert len(data.read) == 1 + 2 * (number + 1)
        assert not threads()


@pytest.mark.slow
def test_a_loop_that_is_left_leaves_no_thread() -> None:
    batches = ml.data.batches(Samples(), 2, backend=ml.NumpyBackend())
    for _ in batches:
        (thread,) = threads()
        assert thread.daemon
        break
    gc.collect()
    assert not threads()
    with pytest.raises(ZeroDivisionError):
        for _ in batches:
            _ = 1 / 0
    gc.collect()
    assert not threads()
    list(batches)
    assert not threads()


class Faulty(Samples):
    def __getitem__(self, i: int) -> Any:
        if i == 5:
            raise FileNotFoundError("sample 5 is gone")
        return super().__getitem__(i)


@pytest.mark.parametrize("prefetch", [0, 4])
def test_an_error_of_the_data_arrives_in_its_turn(prefetch: int) -> None:
    batches = ml.data.batches(Faulty(), 2, backend=ml.NumpyBackend(), prefetch=prefetch)
    found: list[list[int]] = []
    with pytest.raises(FileNotFoundError, match="sample 5 is gone"):
        found.extend(batch["y"].numpy().tolist() for batch in batches)
    assert found == [[0, 1], [2, 3]]
    assert batches.state()["position"] == 4
    assert not threads()


def test_data_that_hang_do_not_hold_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from mithril.data import prefetch

    hangs = threading.Event()

    def make() -> Iterator[np.ndarray]:
        yield X
        hangs.wait(30)

    monkeypatch.setattr(prefetch, "PATIENCE", 0.01)
    with pytest.warns(ml.MithrilWarning, match=r"its data did not come back within 0\.01 s"):
        for _ in ml.data.batches(make, backend=ml.NumpyBackend()):
            break
    hangs.set()
    wait_until(lambda: not threads())


def wait_until(condition: Any) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
