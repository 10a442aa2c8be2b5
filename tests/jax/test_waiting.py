"""A thread asks for a result a while before it sleeps, unless that was in vain."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril_jax.waiting import ASKS, RESTS, Waiting


class Computed:
    """What is there when it was asked for a number of times."""

    def __init__(self, after: int) -> None:
        self.after, self.asked = after, 0

    def is_ready(self) -> bool:
        self.asked += 1
        return self.asked > self.after


def ask(waiting: Waiting, after: int) -> int:
    """Return how often something is asked for."""
    computed: Any = Computed(after)
    waiting.ask(computed)
    return int(computed.asked)


def test_what_is_there_soon_is_asked_for_each_time() -> None:
    waiting = Waiting()
    assert [ask(waiting, after) for after in (3, 0, ASKS - 1)] == [4, 1, ASKS]


def test_after_asking_in_vain_the_next_waits_sleep_at_once() -> None:
    waiting = Waiting()
    assert ask(waiting, ASKS) == ASKS
    assert [ask(waiting, 3) for _ in range(RESTS)] == [0] * RESTS
    assert ask(waiting, 3) == 4


@pytest.mark.parametrize("devices", [1, 2])
def test_one_device_alone_is_asked(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(Waiting, "ask", lambda self, array: asked.append(array))
    backend = ml.JaxBackend(ml.Mesh(data=devices))
    x = backend.array(np.ones((256, 256), np.float32), sharding=ml.P("data"))
    for _ in range(50):  # what is there at once is not asked for
        x = x @ x * (1 / 256)
    assert (x.block_until_ready().numpy() == 1).all()
    assert bool(asked) == (devices == 1)
