"""Ctrl-C, and the death of the controller: the pool can be used, or no process of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from mithril.errors import BackendError

from tests.profiles import quick
from tests.runtime.jobs import crowding
from tests.torch.pool.programs import LOOP, children_of, is_gone, load, until
from tests.torch.pool.victims import REPETITIONS, dice, victim, works

SCRIPT = """
import time
from mithril_torch.executors.pool.controller import Pool

try:
    print("starting", flush=True)
    pool = Pool.of(2, timeout=30)
    pool.load("loop", LOOP30, None)
    pool.load("short", LOOP0, None)
    print(*pool.pids, flush=True)
    WORK
except KeyboardInterrupt:
    print("interrupted", flush=True)
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


@REPETITIONS
def test_ctrl_c_in_a_program_that_soon_ends(chance: int) -> None:
    target = victim()
    program = load(target.pool, LOOP.format(seconds=0.2 + dice(chance).uniform(0, 0.15)))
    thread = target.at(lambda: target.step(1) > 1, interrupt)
    with pytest.raises(KeyboardInterrupt):
        target.pool.run(program, [], 0)
    thread.join()
    assert target.pool.is_alive
    assert works(target.pool)


@pytest.mark.slow
@REPETITIONS
def test_ctrl_c_in_a_program_that_takes_long(chance: int) -> None:
    target = victim()
    program = load(target.pool, LOOP.format(seconds=20))

    def strike() -> None:
        time.sleep(dice(chance).uniform(0, 0.2))
        interrupt()

    thread = target.at(lambda: target.step(1) > 1, strike)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        target.pool.run(program, [], 0)
    assert time.monotonic() - started < 2 * crowding()
    thread.join()
    text = "and its arrays with it; it was interrupted in the middle of a program; open the backend"
    with pytest.raises(BackendError, match=text):
        target.pool.run(program, [], 0)
    target.is_clean()
    assert works(victim().pool)


@REPETITIONS
@pytest.mark.slow
def test_ctrl_c_at_any_moment(chance: int) -> None:
    """Also between two instructions of the controller."""
    target = victim()
    program = load(target.pool, "def run(inputs): return []")

    def strike() -> None:
        time.sleep(dice(chance).uniform(0, 0.05))
        interrupt()

    thread = target.at(lambda: True, strike)
    with pytest.raises(KeyboardInterrupt):
        while True:
            target.pool.run(program, [], 0)
    thread.join()
    if not target.pool.is_alive:
        target.is_clean()
    assert works(victim().pool)


@pytest.mark.slow
def test_ctrl_c_twice() -> None:
    target = victim()
    program = load(target.pool, LOOP.format(seconds=20))

    def strike() -> None:
        interrupt()
        time.sleep(0.1)
        interrupt()

    thread = target.at(lambda: target.step(1) > 1, strike)
    with pytest.raises(KeyboardInterrupt):
        target.pool.run(program, [], 0)
    thread.join()
    target.is_clean()


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


@quick(lambda work: "short" in work)
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


@quick(lambda work, number: "sleep" in work or number == signal.SIGTERM)
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


def test_an_exception_ends_the_script_and_the_workers() -> None:
    with script("raise ValueError('of the user')") as process:
        pids = workers(process)
        _, errors = process.communicate(timeout=20)
        assert errors.rstrip().endswith("ValueError: of the user")
    assert all(map(is_gone, pids))


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
