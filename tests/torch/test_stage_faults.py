"""Ranks of a pipeline that die or fail in the middle of a step: all end, and the right one is named."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mithril as ml
import pytest
from mithril.errors import BackendError
from mithril_torch.executors.workers import WorkersExecutable
from mithril_torch.program.source_map import ProgramSourceMap

from tests.torch.pool.programs import until

WIDTH, SOON = 384, 3.0


class Victim:
    """A pipeline of two stages on a pool of its own, which takes a while for a step."""

    def __init__(self, timeout: float) -> None:
        self.backend = ml.TorchBackend(ml.Mesh(pipeline=2), device="cpu", timeout=timeout)
        model = ml.Model()
        stages = [_stage(), _stage()]
        model |= ml.Pipeline(stages, microbatch_size=32)(input="input", output="output")
        self.compiled = ml.compile(model, self.backend, shapes={"input": (256, WIDTH)})
        self.params = self.compiled.randomize_params()
        self.inputs = {"input": self.backend.ones(256, WIDTH)}
        self.gradient = self.backend.ones(256, WIDTH)
        self.step()

    def step(self) -> None:
        self.compiled.evaluate(self.params, self.inputs, {"output": self.gradient})

    @property
    def executable(self) -> WorkersExecutable:
        bound: Any = self.compiled._evaluator.latest
        found: WorkersExecutable = bound.executable
        return found

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Have the workers run another text instead."""
        run = self.executable
        written = replace(run.generated, text=change(run.generated.text))
        run._pool.unload(run._name)
        run._pool.load(run._name, written.text, ProgramSourceMap(written))


def _stage() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(WIDTH)(input="x", output="h")
    model |= ml.Relu()(input="h", output="y")
    return model


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_in_the_middle_of_a_step(rank: int) -> None:
    victim = Victim(timeout=61.0 + rank)
    pool = victim.executable._pool
    look, steps = pool._connection.workers.progress.read, victim.executable.generated.steps
    told: list[float] = []

    def strike() -> None:
        assert until(lambda: re.match("[01]F[0-3],", steps[look(rank)[0]]) is not None)
        told.append(time.monotonic())
        os.kill(pool.pids[rank], signal.SIGKILL)

    thread = threading.Thread(target=strike)
    thread.start()
    where = rf"in step \d+ \(.*\d[FB]\d.*\) \(pid {pool.pids[rank]}\)"
    text = f"^Rank {rank} of 2 was killed by SIGKILL {where}; the other worker was stopped"
    with pytest.raises(BackendError, match=text):
        for _ in range(1000):
            victim.step()
    assert time.monotonic() - told[0] < SOON
    thread.join()
    with pytest.raises(BackendError, match="has ended, and its arrays with it"):
        victim.step()


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_while_others_wait_for_it(rank: int) -> None:
    victim = Victim(timeout=71.0 + rank)
    action = f"        # {rank}F3, stage {rank} forward\n"
    fault = "        raise ValueError('no such thing')\n"
    victim.rewrite(lambda text: text.replace(action, fault + action, 1))
    start = time.monotonic()
    text = f"^Rank {rank} of 2 raised ValueError: no such thing in .*; the other worker was stopped"
    with pytest.raises(BackendError, match=text):
        victim.step()
    assert time.monotonic() - start < SOON


@pytest.mark.slow
def test_all_go_on_after_an_error_that_left_no_message_behind() -> None:
    victim = Victim(timeout=81.0)
    before = victim.executable.generated.text
    head = "    def run(inputs):\n"
    victim.rewrite(lambda text: text.replace(head, f"{head}        no_such_name\n"))
    with pytest.raises(BackendError, match=r"NameError: .*; all workers go on"):
        victim.step()
    victim.rewrite(lambda text: before)
    victim.step()


@pytest.mark.slow
def test_none_goes_on_after_a_message_that_nobody_took() -> None:
    """It would be taken for one of the next run."""
    victim = Victim(timeout=91.0)
    head = "    def run(inputs):\n"
    left = "        if rank == 0: send(sends, torch.ones(1), 1, 999)\n        no_such_name\n"
    victim.rewrite(lambda text: text.replace(head, head + left))
    with pytest.raises(BackendError, match=r"NameError: .*; no worker is left"):
        victim.step()
