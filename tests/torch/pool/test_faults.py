"""Workers that die, hang or complain: the error is soon, names the right one, and nothing is left."""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

import numpy as np
import pytest
import torch
from mithril.errors import BackendError
from mithril_torch.executors.pool import memory
from mithril_torch.executors.pool.controller import Pool

from tests.runtime.jobs import crowding
from tests.torch.pool.programs import FAULT, LOOP, SUM, WAIT, SourceMap, load, system, until
from tests.torch.pool.victims import REPETITIONS, SIZE, dice, victim, works

IN_STEP = r"in step \d+ \(all_reduce of weight \d+\)"
KILLED = r"was killed by SIGKILL {place} \(pid {pid}\)"
STOPPED = "2 other workers were stopped"


@REPETITIONS
def test_killed_in_a_collective(chance: int) -> None:
    target, luck = victim(), dice(chance)
    rank, delay = luck.randrange(SIZE), luck.uniform(0, 0.2)
    program = load(target.pool, LOOP.format(seconds=20))

    def strike() -> None:
        time.sleep(delay)
        target.kill(rank)

    thread = target.at(lambda: target.step(rank) > 1, strike)
    how = KILLED.format(place=IN_STEP, pid=target.pool.pids[rank])
    text = f"^Rank {rank} of 3 {how}; {STOPPED}; SIGKILL is also how the system ends a process when"
    with target.ends(text):
        target.pool.run(program, [], 0)
    thread.join()


@pytest.mark.slow
@REPETITIONS
def test_killed_while_idle(chance: int) -> None:
    target = victim()
    rank = dice(chance).randrange(SIZE)
    program = load(target.pool, SUM)
    handle = target.pool.put([np.ones(3)] * 3)
    how = KILLED.format(place="while idle", pid=target.pool.pids[rank])
    with target.ends(f"^Rank {rank} of 3 {how}; {STOPPED};"):
        target.kill(rank)
        target.pool.run(program, [handle], 1)


@pytest.mark.slow
@REPETITIONS
def test_killed_while_it_takes_in_arrays(chance: int) -> None:
    target, luck = victim(), dice(chance)
    rank, delay = luck.randrange(SIZE), luck.uniform(0, 0.01)
    part = np.ones(9_000_000)

    def strike() -> None:
        time.sleep(delay)
        target.kill(rank)

    thread = target.at(lambda: target.activity(rank) == memory.TAKING, strike)
    how = KILLED.format(place="while taking in arrays", pid=target.pool.pids[rank])
    with target.ends(f"^Rank {rank} of 3 {how}; {STOPPED};"):
        target.pool.put([part] * 3)
    thread.join()


@pytest.mark.slow
@REPETITIONS
def test_stopped_in_a_collective(chance: int) -> None:
    target, luck = victim(), dice(chance)
    rank, delay = luck.randrange(SIZE), luck.uniform(0, 0.2)
    program = load(target.pool, LOOP.format(seconds=20))

    def strike() -> None:
        time.sleep(delay)
        target.kill(rank, signal.SIGSTOP)

    thread = target.at(lambda: target.step(rank) > 1, strike)
    how = rf"was stopped by SIGSTOP {IN_STEP} and not continued within timeout=3 s \(pid \d+\)"
    with target.ends(f"^Rank {rank} of 3 {how}; {STOPPED}; let it run, or raise", within=WAIT):
        target.pool.run(program, [], 0)
    thread.join()


@pytest.mark.slow
@REPETITIONS
def test_stopped_while_idle(chance: int) -> None:
    target = victim()
    rank = dice(chance).randrange(SIZE)
    program = load(target.pool, SUM)
    handle = target.pool.put([np.ones(3)] * 3)
    how = "was stopped by SIGSTOP while idle and not continued within timeout=3 s"
    with target.ends(f"^Rank {rank} of 3 {how}", within=WAIT):
        target.kill(rank, signal.SIGSTOP)
        target.pool.run(program, [handle], 1)


def test_stopped_and_continued() -> None:
    target = victim()
    target.kill(1, signal.SIGSTOP)

    def go_on() -> None:
        time.sleep(0.5)
        target.kill(1, signal.SIGCONT)

    thread = target.at(lambda: True, go_on)
    assert works(target.pool)
    thread.join()


@pytest.mark.slow
@REPETITIONS
def test_an_exception_while_others_are_in_a_collective(chance: int) -> None:
    target, luck = victim(), dice(chance)
    rank, delay = luck.randrange(SIZE), luck.uniform(0, 0.2)
    fault = f"if rank == {rank}: time.sleep({delay}); raise ValueError('no such thing')"
    program = load(target.pool, FAULT.format(fault=fault))
    how = r"raised ValueError: no such thing in line 9 \(layer 9\)"
    with target.ends(rf"^Rank {rank} of 3 {how}; {STOPPED}(\n|$)", within=delay + 1):
        target.pool.run(program, [], 0)


@pytest.mark.slow
@REPETITIONS
def test_out_of_memory_in_one_rank(chance: int) -> None:
    target = victim()
    rank = dice(chance).randrange(SIZE)
    fault = f"if rank == {rank}: torch.empty(1 << 45)"
    program = load(target.pool, FAULT.format(fault=fault))
    how = r"raised RuntimeError: .*can't allocate memory.* in line 9 \(layer 9\)"
    remedy = "split the arrays over more devices, or use smaller ones"
    with target.ends(rf"^Rank {rank} of 3 {how}; {STOPPED}; {remedy}\n"):
        target.pool.run(program, [], 0)


@pytest.mark.slow
@REPETITIONS
def test_two_killed_at_once(chance: int) -> None:
    target, luck = victim(), dice(chance)
    first, second = luck.sample(range(SIZE), 2)
    delay = luck.uniform(0, 0.2)
    program = load(target.pool, LOOP.format(seconds=20))

    def strike() -> None:
        time.sleep(delay)
        target.kill(first)
        target.kill(second)

    thread = target.at(lambda: target.step(first) > 1, strike)
    low, high = sorted((first, second))
    text = f"^Rank {low} of 3 was killed.*; rank {high} of 3 was killed.*; the other worker was stopped;"
    with target.ends(text):
        target.pool.run(program, [], 0)
    thread.join()


@REPETITIONS
@pytest.mark.slow
def test_one_stopped_and_one_killed(chance: int) -> None:
    target, luck = victim(), dice(chance)
    first, second = luck.sample(range(SIZE), 2)
    program = load(target.pool, LOOP.format(seconds=20))

    def strike() -> None:
        target.kill(first, signal.SIGSTOP)
        time.sleep(luck.uniform(0, 0.1))
        target.kill(second)

    thread = target.at(lambda: target.step(first) > 1, strike)
    text = f"^Rank {second} of 3 was killed by SIGKILL.*; rank {first} of 3 was stopped by SIGSTOP"
    with target.ends(text):
        target.pool.run(program, [], 0)
    thread.join()


@pytest.mark.slow
@REPETITIONS
def test_one_killed_and_one_exception(chance: int) -> None:
    target = victim()
    first, second, _ = dice(chance).sample(range(SIZE), 3)
    fault = (
        f"if rank == {first}: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"    if rank == {second}: raise KeyError('x')"
    )
    program = load(target.pool, FAULT.format(fault=fault))
    text = f"^Rank {first} of 3 was killed.*; rank {second} of 3 raised KeyError: 'x' in line 10"
    with target.ends(text):
        target.pool.run(program, [], 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (
            "os._exit(3)",
            r"ended with exit code 3 in step 2 \(all_.*\) \(pid \d+\); .*; see what it",
        ),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV in step 2 "),
    ],
)
def test_other_ends(fault: str, text: str) -> None:
    target = victim()
    program = load(target.pool, FAULT.format(fault=f"if rank == 2: {fault}"))
    with target.ends(f"^Rank 2 of 3 {text}"):
        target.pool.run(program, [], 0)


@pytest.mark.slow
def test_a_worker_that_keeps_silent() -> None:
    target = victim()
    program = load(target.pool, FAULT.format(fault="if rank == 0: time.sleep(60)"))
    how = r"gave no answer in step 2 \(all_reduce of weight 2\) \(pid \d+\), and rank 1 raised "
    with target.ends(rf"^Rank 0 of 3 {how}.*Timed out waiting 3000ms", within=WAIT + 1):
        target.pool.run(program, [], 0)


@pytest.mark.slow
def test_a_worker_that_closes_its_socket() -> None:
    target = victim()
    program = load(target.pool, FAULT.format(fault="if rank == 0: os.closerange(3, 4000)"))
    how = r"closed its connection in step 2 \(all_reduce of weight 2\) \(pid \d+\)"
    with target.ends(f"^Rank 0 of 3 {how}|killed by SIG", within=3):
        target.pool.run(program, [], 0)


def test_the_traceback_is_a_note() -> None:
    target = victim()
    program = load(target.pool, "def run(inputs):\n    return [1 / 0]")
    with pytest.raises(BackendError) as caught:
        target.pool.run(program, [], 1)
    assert "    return [1 / 0]\n" in "".join(caught.value.__notes__)


class TestThePoolGoesOn:
    """Where no collective is pending, all workers answer, and nothing need be started anew."""

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            (
                "def run(inputs): raise ValueError('a')",
                r"Ranks 0, 1, 2 of 3 each raised ValueError: a",
            ),
            (
                "def run(inputs): return [1 / rank, [[], []][rank]][1]",
                r"^Rank 0 of 3 raised ZeroDivisionError: .*; rank 2 of 3 raised IndexError: .*; all",
            ),
            (
                "def run(inputs):\n    if rank == 1:\n        raise MemoryError\n    return []",
                r"Rank 1 of 3 raised MemoryError in line 3 \(layer 3\); all workers go on; split the",
            ),
            (
                "def run(inputs): return [torch.ones(1), torch.ones(1)]",
                "raised ValueError: the program returned 2 tensors; 0 were expected before the first",
            ),
        ],
    )
    def test_after_an_exception(self, source: str, text: str) -> None:
        pool = victim().pool
        program = load(pool, source)
        pids = pool.pids
        started = time.monotonic()
        with pytest.raises(BackendError, match=text) as caught:
            pool.run(program, [], 0)
        assert time.monotonic() - started < crowding()
        assert "; all workers go on" in str(caught.value)
        assert works(pool)
        assert pool.pids == pids

    def test_after_a_program_that_cannot_be_loaded(self) -> None:
        pool = victim().pool
        with pytest.raises(BackendError, match=r"each raised SyntaxError: .*; all workers go on"):
            pool.load("p", "def run(", SourceMap())
        with pytest.raises(
            BackendError, match="each raised KeyError: 'run' while loading a program"
        ):
            pool.load("p", "x = 1", None)
        pool.load("p", SUM, SourceMap())
        pool.unload("p")

    def test_without_the_array_that_one_worker_could_not_take(self) -> None:
        pool = victim().pool
        with_no_type = pool.put([np.ones(3)] * 3, dtype="no_such_type")
        fine = pool.put([np.ones(3)] * 3)
        with pytest.raises(
            BackendError, match=r"raised AttributeError: .*no_such_type.* while taking"
        ):
            pool.fetch(fine, 0)
        with pytest.raises(BackendError, match="cannot be used; its transfer failed; make it anew"):
            pool.fetch(with_no_type, 0)
        assert works(pool)

    @pytest.mark.slow
    def test_unless_the_ranks_are_not_in_step(self) -> None:
        """One rank has skipped a collective that no other had to wait for."""
        target = victim()
        source = (
            "import torch.distributed as dist\n"
            "def run(inputs):\n"
            "    if rank == 2: raise ValueError('a')\n"
            "    dist.all_reduce(torch.ones(3), async_op=True)\n"
            "    return []"
        )
        program = load(target.pool, source)
        with target.ends(
            "^Rank 2 of 3 raised ValueError: a in line 3 .*; 2 other workers were stop"
        ):
            target.pool.run(program, [], 0)

    @pytest.mark.slow
    def test_unless_a_group_is_broken(self) -> None:
        target = victim()
        source = (
            "import torch.distributed as dist\n"
            "from datetime import timedelta\n"
            "group = dist.new_group(timeout=timedelta(seconds=0.3))\n"
            "def run(inputs):\n"
            "    if rank != 2:\n"
            "        dist.all_reduce(torch.ones(3), group=group)\n"
            "    raise ValueError('a')"
        )
        program = load(target.pool, source)
        with target.ends("^Rank 2 of 3 raised ValueError: a", within=2):
            target.pool.run(program, [], 0)


class TestStarting:
    @pytest.mark.slow
    def test_a_device_that_is_not_there(self) -> None:
        before = system()
        count = torch.cuda.device_count()
        text = (
            f"raised ValueError: there is no cuda:{count}, PyTorch sees {count} CUDA devices while"
        )
        with pytest.raises(BackendError, match=text) as raised:
            Pool.of(count + 1, device="cuda", backend="nccl")
        assert "all workers go on" not in str(raised.value)
        assert until(lambda: system() == before)

    def test_a_worker_that_ends_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = system()
        monkeypatch.setattr("sys.executable", "/bin/false")
        with pytest.raises(BackendError, match="ended with exit code 1 while starting"):
            Pool.of(2, timeout=11)
        assert until(lambda: system() == before)

    def test_no_program_to_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = system()
        monkeypatch.setattr("sys.executable", "/no/such/python")
        text = "^Worker pool of 2 cannot start its processes; /no/such/python: No such file or dir"
        with pytest.raises(BackendError, match=text):
            Pool.of(2, timeout=11)
        assert until(lambda: system() == before)

    def test_what_is_no_text_among_the_paths(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.path", [pathlib.Path("/no/such/folder"), *sys.path])
        pool = Pool.of(1, timeout=12)
        assert works(pool)
        pool.close()

    def test_an_error_while_they_are_started_is_raised(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = system()
        monkeypatch.setattr("sys.path", ["a\0b"])
        with pytest.raises(ValueError, match="null byte"):
            Pool.of(2, timeout=11)
        assert until(lambda: system() == before)

    @pytest.mark.slow
    def test_a_worker_that_is_slow(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
    ) -> None:
        """One comes later than the others would wait in a collective."""
        (tmp_path / "sitecustomize.py").write_text(
            "import pathlib, time\n"
            "try:\n"
            f"    pathlib.Path({str(tmp_path / 'first')!r}).touch(exist_ok=False)\n"
            "    time.sleep(4)\n"
            "except FileExistsError:\n"
            "    pass\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        pool = Pool.of(2, timeout=2)
        assert (tmp_path / "first").exists()
        pool.close()

    @pytest.mark.slow
    def test_where_memory_has_no_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = system()
        monkeypatch.delattr(os, "memfd_create")
        pool = Pool.of(2, timeout=11)
        assert len(system().files - before.files) == 1
        assert works(pool)
        pool.close()
        assert until(lambda: system() == before)


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, if it runs here, too
def test_a_pool_is_not_for_forked_processes() -> None:
    target = victim()
    handle = target.pool.put([np.ones(3)])
    pid = os.fork()
    if pid == 0:
        try:
            target.pool.fetch(handle, 0)
        except BackendError as error:
            text = (
                rf"Worker pool of 3 belongs to process {os.getppid()}, and this is {os.getpid()}, f"
            )
            os._exit(0 if str(error).startswith(text) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert works(target.pool)


def test_a_pool_that_is_closed_while_another_thread_waits() -> None:
    target = victim()
    program = load(target.pool, LOOP.format(seconds=20))
    thread = target.at(lambda: target.step(0) > 1, target.pool.close)
    text = (
        "^Worker pool of 3 has ended, and its arrays with it; it was closed; open the backend again"
    )
    with pytest.raises(BackendError, match=text):
        target.pool.run(program, [], 0)
    thread.join()
    target.is_clean()
