"""Measuring the best few strategies: each plan in a process of its own, warm, turn by turn.

A process that runs out of memory, dies, or takes too long costs its strategy and nothing else.
Plans go to these processes as JSON, so that they need no model, and no script is run again. On CPUs
all of them live at once and run in turn, so that what else slows the machine down meets all alike;
an accelerator's memory is for one at a time.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from mithril.errors import BackendError, PlanError
from mithril.plan.serialize import plan_to_json
from mithril.runtime.backend import Backend
from mithril.runtime.strategy import Strategy
from mithril.tuning.model import TunedModel
from mithril.tuning.price import make_plan
from mithril.tuning.progress import Progress
from mithril.tuning.record import Measurement, Record, make_key
from mithril.units import format_seconds

MOST = 3
"""How many strategies are measured, the best predicted ones."""
ROUNDS = 5
RUN_SECONDS = 0.2
"""A round runs a plan for about that long."""
LONGEST = 600.0
"""Seconds that a process may take to compile a plan and to run it once."""
MIN_SECONDS = 1.0


@dataclass
class Contender:
    """A strategy that is measured.

    Args:
        strategy: what it is.
        plan: of it, as JSON.
        key: by which a record knows it.
        seconds: of its runs.
        error: why it cannot be run.
    """

    strategy: Strategy
    plan: str
    key: str
    seconds: list[float] = field(default_factory=list)
    error: str = ""

    @property
    def measurement(self) -> Measurement:
        """What is known of it."""
        return Measurement(tuple(self.seconds), self.error)


def measure_best(
    backend: Backend,
    tuned: TunedModel,
    strategies: Sequence[Strategy],
    budget: float,
    record: str | Path | None,
    bar: Progress,
    *,
    has_to: bool,
) -> Strategy:
    """Return the strategy that ran fastest.

    Args:
        backend: where it runs.
        tuned: the model.
        strategies: that fit, the best predicted one first.
        budget: seconds.
        record: file of measurements; None to keep none.
        bar: shows how far it is.
        has_to: whether it is an error if none could be run; else the best predicted one is taken.

    Raises:
        PlanError: none of them could be run.
    """
    kept = Record(None if record is None else Path(record))
    known, end = kept.load(), time.monotonic() + budget
    contenders = [_contend(tuned, backend, strategy) for strategy in strategies[:MOST]]
    for contender in contenders:
        if (before := known.get(contender.key)) is not None:
            contender.seconds, contender.error = list(before.seconds), before.error
    new = [c for c in contenders if not c.seconds and not c.error]
    runner = _Runner(backend, end, bar)
    for group in [new] if backend.engine.platform == "cpu" or not new else [[c] for c in new]:
        runner.run(group)
    for contender in new:
        if contender.seconds or contender.error:
            kept.add(contender.key, str(contender.strategy.mesh), contender.measurement)
    ran = [c for c in contenders if c.seconds]
    if has_to and not ran and contenders and all(c.error for c in contenders):
        raise PlanError(
            f"auto_tune measures {len(contenders)} strategies and none runs; the first says "
            f"'{contenders[0].error}'; choose with measure=False, or tune with less memory"
        )
    if not ran:  # the budget was over before, or devices have no room beside this process
        return strategies[0]
    best = min(ran, key=lambda c: c.measurement.median)
    findings = replace(best.strategy.findings, measured=best.measurement.median)
    return replace(best.strategy, findings=findings)


def _contend(tuned: TunedModel, backend: Backend, strategy: Strategy) -> Contender:
    text = plan_to_json(make_plan(tuned, strategy, backend))
    options = json.dumps(backend.own_options, sort_keys=True, default=repr)
    return Contender(
        strategy, text, make_key(text, backend.name, backend.engine.device_kind, options)
    )


class _Runner:
    def __init__(self, backend: Backend, end: float, bar: Progress) -> None:
        self._backend, self._end, self._bar = backend, end, bar

    def run(self, contenders: Sequence[Contender]) -> None:
        """Measure some strategies in turn, all of them alive at once."""
        workers = list(self._start(contenders))
        try:
            self._prepare(workers)
            self._measure(workers)
        finally:
            for _, worker in workers:
                worker.end()

    def _start(self, contenders: Sequence[Contender]) -> Iterator[tuple[Contender, Worker]]:
        for contender in contenders:
            if self._count_left() > MIN_SECONDS:
                yield contender, Worker(self._backend)

    def _prepare(self, workers: Sequence[tuple[Contender, Worker]]) -> None:
        """Have each compile its plan and run it once, one after another."""
        for number, (contender, worker) in enumerate(workers):
            self._bar.show_measured(len(workers) * (ROUNDS + 1), number)
            answer = worker.ask({"plan": contender.plan, **worker.where}, self._limit())
            contender.error = "" if "late" in answer else answer.get("error", "")
            worker.is_ready = "ready" in answer

    def _measure(self, workers: Sequence[tuple[Contender, Worker]]) -> None:
        runs: dict[int, int] = {}
        for turn in range(ROUNDS):
            for number, (contender, worker) in enumerate(workers):
                if not worker.is_ready or (turn and self._count_left() <= 0):
                    continue
                self._bar.show_measured(len(workers) * (ROUNDS + 1), (turn + 1) * len(workers))
                answer = worker.ask({"runs": runs.get(number, 1)}, self._limit())
                seconds = answer.get("seconds")
                if seconds is None:
                    contender.error = "" if "late" in answer else answer.get("error", "")
                    worker.is_ready = False
                    continue
                if number in runs or turn == ROUNDS - 1:  # the first round tells how long one is
                    contender.seconds += seconds
                elif not contender.seconds:
                    contender.seconds = list(seconds)
                one = max(min(seconds), 1e-6)
                runs[number] = max(1, min(50, round(RUN_SECONDS / one)))

    def _count_left(self) -> float:
        return self._end - time.monotonic()

    def _limit(self) -> float:
        return min(LONGEST, max(self._count_left(), MIN_SECONDS))


class Worker:
    """A process that measures one plan; it ends with this one.

    Args:
        backend: what it opens.
    """

    def __init__(self, backend: Backend) -> None:
        self.where: Mapping[str, Any] = {
            "backend": backend.name, "options": dict(backend.own_options),
        }  # fmt: skip
        self.is_ready = False
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mithril.tuning.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        assert self._process.stdout is not None
        reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line)
        self._answers.put("")

    def ask(self, what: Mapping[str, Any], limit: float) -> dict[str, Any]:
        """Return the answer, or an error where the process dies or takes too long.

        Args:
            what: is asked.
            limit: seconds.
        """
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self.end()
            return {"error": f"takes longer than {format_seconds(limit)}", "late": True}
        if not line:
            code = self._process.wait()
            return {"error": f"the process ended with code {code}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if stream is not None:
                    stream.close()


def check_measurable(backend: Backend) -> None:
    """Raise unless processes of their own can open a backend as it was opened.

    Args:
        backend: any.

    Raises:
        BackendError: its options are no plain data, or a job of several processes has it.
    """
    if backend.engine.process_count > 1:
        raise BackendError(
            f"measure=True starts processes of its own, and the backend is that of a job of "
            f"{backend.engine.process_count}; tune in one process and load the strategy in the job"
        )
    try:
        json.dumps(dict(backend.own_options))
    except TypeError as error:
        raise BackendError(
            f"measure=True opens backend '{backend.name}' again elsewhere, and its options are no "
            f"plain data ({error}); leave measure out"
        ) from None


def can_measure(backend: Backend) -> bool:
    """Return whether processes of their own can open a backend as it was opened."""
    with suppress(BackendError):
        check_measurable(backend)
        return True
    return False


__all__ = ["Contender", "Worker", "can_measure", "check_measurable", "measure_best"]
