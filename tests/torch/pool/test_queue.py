"""Runs that wait for the next message: in order, with what they need, and errors that say so."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from mithril.errors import BackendError
from mithril_torch.executors.pool import controller
from mithril_torch.executors.pool.controller import Pool

from tests.torch.pool.programs import load

NEXT = "def run(inputs): return [inputs[0] * 2 + rank]"
FAILING = """
calls = [0]
def run(inputs):
    calls[0] += 1
    if calls[0] > 1:
        raise ValueError("no more")
    return [inputs[0] + 1]
"""
HELD = """
import gc
from mithril_torch.executors.pool.message_handler import MessageHandler

def run(inputs):
    (executor,) = (x for x in gc.get_objects() if type(x) is MessageHandler)
    return [torch.tensor([len(executor.tensors), len(executor.programs)], dtype=torch.float64)]
"""


def values(pool: Pool, handle: object, rank: int) -> list[float]:
    return pool.fetch(handle, rank).data.view(np.float64).tolist()  # type: ignore[arg-type]


def test_runs_wait_for_a_message_and_are_done_in_order(pool: Pool, monkeypatch):
    program = load(pool, NEXT)
    pool.run(program, [pool.put([np.zeros(2)] * 2)], 1)
    with monkeypatch.context() as quiet:
        quiet.setattr(pool, "_request", lambda *arguments: pytest.fail("a message was sent"))
        x = pool.put([np.ones(2)] * 2)
        for _ in range(5):
            (x,) = pool.queue(program, [x], 1)  # what was there before is dropped, and still used
    assert values(pool, x, 0) == [32, 32]
    assert values(pool, x, 1) == [63, 63]


def test_the_first_run_is_done_at_once(pool: Pool, monkeypatch):
    program = load(pool, NEXT)
    (x,) = pool.queue(program, [pool.put([np.ones(100)] * 2)], 1)
    assert x.spec(1).shape == (100,)


def test_many_runs_do_not_wait(pool: Pool, monkeypatch):
    monkeypatch.setattr(controller, "QUEUED", 3)
    program = load(pool, NEXT)
    x = pool.put([np.ones(2)] * 2)
    sent = []
    request = pool._request
    monkeypatch.setattr(
        pool, "_request", lambda action, *more: sent.append(1) or request(action, *more)
    )
    for _ in range(7):
        (x,) = pool.queue(program, [x], 1)
    assert len(sent) == 3, "the first one, and every third after it"
    assert values(pool, x, 0) == [128, 128]


def test_a_program_may_be_forgotten_while_its_run_waits(pool: Pool):
    program = load(pool, NEXT)
    x = pool.put([np.ones(2)] * 2)
    pool.run(program, [x], 1)
    (y,) = pool.queue(program, [x], 1)
    pool.unload(program)
    assert values(pool, y, 1) == [3, 3]


def test_an_error_is_told_with_the_next_message(pool: Pool):
    program, other = load(pool, FAILING), load(pool, NEXT)
    x = pool.put([np.ones(2)] * 2)
    pool.run(program, [x], 1)
    (y,) = pool.queue(program, [x], 1)
    with pytest.raises(
        BackendError,
        match="raised ValueError: no more in an operation that was asked for before",
    ):
        pool.run(other, [x], 1)
    with pytest.raises(BackendError, match="cannot be used; what makes it failed; make it anew"):
        pool.fetch(y, 0)
    assert pool.is_alive
    (z,) = pool.run(other, [x], 1)
    assert values(pool, z, 0) == [2, 2]


def test_what_was_dropped_before_an_error_is_gone_after_it(pool: Pool):
    failing, other, held = load(pool, FAILING), load(pool, NEXT), load(pool, HELD)
    x = pool.put([np.ones(2)] * 2)
    pool.run(failing, [x], 1)
    y = pool.run(other, [x], 1)
    gc.collect()  # what tests before this one left to errors that they caught
    values(pool, *pool.run(held, [], 1), 0)
    tensors, programs = values(pool, *pool.run(held, [], 1), 0)
    lost = pool.queue(failing, [x], 1)
    del y
    pool.unload(other)
    with pytest.raises(BackendError, match="no more"):
        pool.run(held, [], 1)
    del lost
    assert values(pool, *pool.run(held, [], 1), 0) == [tensors - 1, programs - 1]


@pytest.mark.slow
def test_an_array_of_an_interrupted_message_is_dropped(pool: Pool, monkeypatch):
    gc.collect()  # arrays of other tests
    held = load(pool, HELD)
    before = values(pool, *pool.run(held, [], 1), 0)
    request = pool._connection.request

    def interrupted(*arguments: object) -> None:
        request(*arguments)
        raise KeyboardInterrupt

    x = pool.put([np.ones(2)] * 2)
    with monkeypatch.context() as once:
        once.setattr(pool._connection, "request", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pool.run(held, [], 1)
    del x
    assert values(pool, *pool.run(held, [], 1), 0) == before


def test_arrays_that_are_waited_for_are_there(pool: Pool, monkeypatch):
    x = pool.put([np.ones(2)] * 2)
    pool.wait([x])
    with monkeypatch.context() as quiet:
        quiet.setattr(pool, "_request", lambda *arguments: pytest.fail("a message was sent"))
        pool.wait([x])
    assert values(pool, x, 1) == [1, 1]


def test_who_waits_for_an_array_that_is_lost_is_told(pool: Pool):
    program = load(pool, "def run(inputs): return [inputs[0] * 2]")
    x = pool.put([np.ones(2)] * 2)
    pool.run(program, [x], 1, donate=[0])
    with pytest.raises(BackendError, match="cannot be used; it was donated to a program"):
        pool.wait([x])


def test_who_waits_on_a_pool_that_has_ended_is_told():
    pool = Pool(1, "cpu", "gloo", 60.0)
    x = pool.put([np.ones(2)])
    pool.close()
    with pytest.raises(BackendError, match="Worker pool of 1 has ended"):
        pool.wait([x])
