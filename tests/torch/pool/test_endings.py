"""Ctrl-C, and the death of the controller: the pool can be used, or no process of it is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mithril.errors import BackendError
from mithril_torch.executors.pool.remote_array import RemoteArray

from tests.runtime.jobs import crowding
from tests.torch.pool.programs import LOOP, children_of, is_gone, load, until
from tests.torch.pool.victims import REPETITIONS, Victim, dice, victim, works

SCRIPT = """
import time
from functools import reduce
import mithril as ml
from mithril import P
from mithril_torch.executors.pool.controller import Pool

def train():
    global held
    backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", timeout=30)
    held = backend.arange(8.0, sharding=P("data"))
    x = backend.ones(1000, 1000, sharding=P("data")) / 1000.0
    step = ml.jit(lambda x: reduce(lambda y, _: y @ x, range(30), x))
    step(x)
    print("step", flush=True)
    while True:
        step(x)

try:
    print("starting", flush=True)
    pool = Pool.of(2, timeout=30)
    pool.load("loop", LOOP30, None)
    pool.load("short", LOOP0, None)
    print(*pool.pids, flush=True)
    WORK
except KeyboardInterrupt:
    print("interrupted", flush=True)
    if "held" in globals():
        print("kept" if float(held.sum()) == 28 else "lost")
    pool.run("short", [], 0)
    print("works", flush=True)
"""


def source_of(work: str) -> str:
    """Return the script with some work to do."""
    texts = {"LOOP30": repr(LOOP.format(seconds=30)), "LOOP0": repr(LOOP.format(seconds=0.01))}
    source = SCRIPT.replace("WORK", work)
    for name, text in texts.items():
        source = source.replace(name, text)
    return source


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


NUMBERS = np.arange(3.0)


def kept(target: Victim, handle: RemoteArray) -> bool:
    """Whether the workers still have an array that was made of `NUMBERS`, and still work."""
    part = target.pool.fetch(handle, 1)
    return (part.data.view(np.float64) == NUMBERS).all() and works(target.pool)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 2.0])
@REPETITIONS
def test_ctrl_c_waits_for_the_program(
    seconds: float, chance: int, capsys: pytest.CaptureFixture[str]
) -> None:
    target = victim()
    held = target.pool.put([NUMBERS])
    program = load(target.pool, LOOP.format(seconds=seconds + dice(chance).uniform(0, 0.15)))
    thread = target.at(lambda: target.step(1) > 1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        target.pool.run(program, [], 0)
    thread.join()
    assert kept(target, held)
    assert re.fullmatch(
        r"mithril: Ctrl-C waits for 3 workers \(rank 0 is in step \d+ \(all_reduce of weight \d+\)\), "
        r"so that no array is lost; press it again to read what ending them costs\n",
        capsys.readouterr().err,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("times", "is_kept"), [(2, True), (3, False)])
def test_the_third_ctrl_c_ends_the_workers(
    times: int, is_kept: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    target = victim()
    held = target.pool.put([NUMBERS])
    program = load(target.pool, LOOP.format(seconds=1.0 if is_kept else 20))

    def strike() -> None:
        for _ in range(times):
            interrupt()
            time.sleep(0.1)

    thread = target.at(lambda: target.step(1) > 1, strike)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        target.pool.run(program, [], 0)
    thread.join()
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert told[1].startswith("mithril: one more Ctrl-C ends 3 workers (rank 0 is in step ")
    assert re.search(r", and with them [1-9]\d* arrays?$", told[1])
    if is_kept:
        assert kept(target, held)
        return
    assert time.monotonic() - started < 3 * crowding()
    text = "and its arrays with it; it was interrupted three times in the middle of a program; open"
    with pytest.raises(BackendError, match=text):
        target.pool.run(program, [], 0)
    target.is_clean()
    assert works(victim().pool)


@REPETITIONS
@pytest.mark.slow
def test_ctrl_c_at_any_moment(chance: int) -> None:
    """Also between two instructions of the controller."""
    target = victim()
    held = target.pool.put([NUMBERS])
    program = load(target.pool, "def run(inputs): return []")

    def strike() -> None:
        time.sleep(dice(chance).uniform(0, 0.05))
        interrupt()

    thread = target.at(lambda: True, strike)
    with pytest.raises(KeyboardInterrupt):
        while True:
            target.pool.run(program, [], 0)
    thread.join()
    assert kept(target, held)


def test_the_number_of_arrays_that_would_be_lost() -> None:
    pool = victim().pool
    before = pool._count_arrays()
    first, second = pool.put([NUMBERS]), pool.put([NUMBERS])
    assert pool._count_arrays() == before + 2
    del first
    assert pool._count_arrays() == before + 1
    assert works(pool)
    assert pool._count_arrays() == before + 1
    del second


@pytest.mark.parametrize("handler", [signal.SIG_IGN, "own"])
def test_a_handler_of_the_user_stays(handler: Any) -> None:
    target, received = victim(), []
    own = (lambda *_: received.append(target.step(1))) if handler == "own" else handler
    program = load(target.pool, LOOP.format(seconds=0.3))
    before = signal.signal(signal.SIGINT, own)
    try:
        thread = target.at(lambda: target.step(1) > 1, interrupt)
        target.pool.run(program, [], 0)
        thread.join()
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(received) == (1 if handler == "own" else 0)
    assert works(target.pool)


def test_an_exception_of_another_handler_waits_for_the_program() -> None:
    target = victim()
    held = target.pool.put([NUMBERS])
    program = load(target.pool, LOOP.format(seconds=0.3))

    def tell(number: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, tell)
    try:
        thread = target.at(lambda: target.step(1) > 1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        with pytest.raises(TimeoutError):
            target.pool.run(program, [], 0)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert kept(target, held)


@pytest.mark.slow
@pytest.mark.parametrize("to_group", [False, True])
def test_ctrl_c_of_a_user_who_trains(to_group: bool) -> None:
    """As from a terminal, which tells all of its processes, or from `kill`, which tells one."""
    with script("train()") as process:
        assert len(workers(process)) == 2
        assert process.stdout is not None
        assert process.stdout.readline() == "step\n"
        time.sleep(0.3)  # the next step, which takes longer, is under way
        send = os.killpg if to_group else os.kill
        send(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert output.splitlines()[-3:] == ["interrupted", "kept", "works"]
    assert errors.startswith("mithril: Ctrl-C waits for 2 workers (rank 0 is in ")
    assert errors.count("\n") == 1


@contextmanager
def script(work: str) -> Iterator[subprocess.Popen[str]]:
    """Run the script in a terminal's process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", source_of(work)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "starting\n"
        try:
            yield process
        finally:
            process.kill()


def workers(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    return [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.slow
@pytest.mark.parametrize("work", ["time.sleep(30)", 'pool.run("short", [], 0); time.sleep(30)'])
def test_ctrl_c_of_a_terminal_leaves_idle_workers(work: str) -> None:
    with script(work) as process:
        pids = workers(process)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=20)
        assert (output, errors) == ("interrupted\nworks\n", "")
    assert all(map(is_gone, pids))


@pytest.mark.slow
def test_ctrl_c_of_a_terminal_while_workers_start() -> None:
    with script("pass") as process:
        assert until(lambda: len(children_of(process.pid)) == 2, 20)
        pids = [int(pid) for pid in children_of(process.pid)]
        time.sleep(0.2)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert "KeyboardInterrupt" in errors
        assert errors.count("Traceback") == 2  # of the script alone: there is no pool yet
    assert all(map(is_gone, pids))


@pytest.mark.slow
@REPETITIONS
@pytest.mark.parametrize(
    ("work", "is_stopped", "number"),
    [
        ("time.sleep(30)", False, signal.SIGKILL),
        ('pool.run("loop", [], 0)', False, signal.SIGKILL),
        ('pool.run("loop", [], 0)', True, signal.SIGKILL),
        ('pool.run("loop", [], 0)', False, signal.SIGTERM),
    ],
)
def test_the_controller_is_killed(work: str, is_stopped: bool, number: int, chance: int) -> None:
    luck = dice(chance)
    with script(work) as process:
        pids = workers(process)
        time.sleep(luck.uniform(0, 0.3))
        if is_stopped:
            os.kill(luck.choice(pids), signal.SIGSTOP)
        os.kill(process.pid, number)
        process.wait(5)
        assert until(lambda: all(map(is_gone, pids)), crowding())


def test_the_controller_is_killed_while_workers_start() -> None:
    with script("pass") as process:
        assert until(lambda: len(children_of(process.pid)) == 2, 20)
        pids = [int(pid) for pid in children_of(process.pid)]
        process.kill()
        process.wait(5)
        # One that has not come to its first line yet finds that its parent is another.
        assert until(lambda: all(map(is_gone, pids)), 5)


@pytest.mark.slow
def test_an_exception_ends_the_script_and_the_workers() -> None:
    with script("raise ValueError('of the user')") as process:
        pids = workers(process)
        _, errors = process.communicate(timeout=20)
        assert errors.rstrip().endswith("ValueError: of the user")
    assert all(map(is_gone, pids))


@pytest.mark.slow
def test_workers_end_without_the_help_of_the_kernel() -> None:
    """The thread that sees the socket close: what a system without parent-death signals has."""
    source = "import ctypes\nctypes.CDLL(None).prctl(1, 0)\ndef run(inputs): return []"
    work = f"pool.load('spoil', {source!r}, None); pool.run('loop', [], 0)"
    with script(work) as process:
        pids = workers(process)
        time.sleep(0.5)
        process.kill()
        process.wait(5)
        assert until(lambda: all(map(is_gone, pids)), crowding())
