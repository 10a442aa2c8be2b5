"""Measuring the best few strategies: in a process of its own, warm, turn by turn.

A plan that runs out of memory, kills the process, or takes too long costs its strategy and nothing
else. Plans go to the process as JSON, so that it needs no model, and no script is run again. On
CPUs it holds all of them and runs them in turn, so that what else slows the machine down meets all
alike; an accelerator's memory is for one at a time. What is clearly slower than the best is run no
more (successive elimination; Even-Dar, Mannor and Mansour, 2006).
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from mithril.errors import BackendError, PlanError, UnknownNameError, warn
from mithril.plan.serialize import plan_to_json
from mithril.runtime.backend import Backend
from mithril.runtime.strategy import Strategy
from mithril.tuning.model import TunedModel
from mithril.tuning.price import make_plan
from mithril.tuning.progress import Progress
from mithril.tuning.record import Measurement, Record, make_key
from mithril.units import format_seconds

MOST = 16
"""How many strategies are measured."""
TURNS = 12
"""So often those are run that are about as fast as the best."""
RUN_SECONDS, MOST_TIMES = 0.2, 50
"""A turn runs a plan for about that long, and at most so often."""
ALIKE = 0.05
"""What differs by no more than that part is alike to a clock; the prediction decides then."""
ON_HOST = ("cpu", "simulated")
"""The platforms of devices whose memory is the machine's, which has room for all plans at once."""
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
    """Return the strategy that ran fastest; of those that are alike the best predicted one.

    Args:
        backend: where it runs.
        tuned: the model.
        strategies: those to measure, the best predicted one first.
        budget: seconds.
        record: file of measurements; None to keep none.
        bar: shows how far it is.
        has_to: whether it is an error if none could be run; else the best predicted one is taken,
            with a warning.

    Raises:
        PlanError: none of them could be run.
    """
    kept = Record(None if record is None else Path(record))
    known, end = kept.load(), time.monotonic() + budget
    contenders: list[Contender] = []
    for strategy in strategies:
        if contenders and time.monotonic() >= end:  # making plans takes time, too
            break
        contenders.append(_contend(tuned, backend, strategy))
    for contender in contenders:
        if (before := known.get(contender.key)) is not None:
            contender.seconds = list(before.seconds)
    # What could not be run may have had no memory beside something else, so it is tried again.
    new = [c for c in contenders if not c.seconds]
    for group in [new] if backend.engine.platform in ON_HOST else [[c] for c in new]:
        _Runner(backend, end, bar).run(group)
    for contender in new:
        if contender.seconds or contender.error:
            kept.add(contender.key, str(contender.strategy.mesh), contender.measurement)
    ran = [c for c in contenders if c.seconds]
    if not ran:  # the budget was over before, or none can be run
        if contenders and all(c.error for c in contenders):
            _say_none_runs(contenders, has_to=has_to)
        return strategies[0]
    limit = (1 + ALIKE) * min(c.measurement.median for c in ran)
    alike = [c for c in ran if c.measurement.median <= limit]
    best = min(alike, key=lambda c: c.strategy.findings.seconds)
    findings = replace(best.strategy.findings, measured=best.measurement.median)
    return replace(best.strategy, findings=findings)


def _say_none_runs(contenders: Sequence[Contender], *, has_to: bool) -> None:
    """Warn that nothing was measured, or raise if something has to be.

    Raises:
        PlanError: something has to be.
    """
    error, remedy = contenders[0].error, "tune with less memory"
    fact = (
        f"auto_tune measures {len(contenders)} strategies and none runs; the first says '{error}'"
    )
    if error.startswith(UnknownNameError.__name__):
        remedy = "bring them by a plugin"
        fact += (
            "; they run in a process of their own, which has the ops and kernels of plugins and "
            "none of a script"
        )
    if has_to:
        raise PlanError(f"{fact}; choose with measure=False, or {remedy}")
    warn(f"{fact}; the best by prediction is returned, as with measure=False")


def _contend(tuned: TunedModel, backend: Backend, strategy: Strategy) -> Contender:
    text = plan_to_json(make_plan(tuned, strategy, backend))
    options = json.dumps(backend.own_options, sort_keys=True, default=repr)
    return Contender(
        strategy, text, make_key(text, backend.name, backend.engine.device_kind, options)
    )


class _Runner:
    """Measures contenders in turn, in one process, which is started anew where one of them ends it.

    Args:
        backend: what it opens.
        end: when the budget is over, by the monotonic clock.
        bar: shows how far it is.
    """

    def __init__(self, backend: Backend, end: float, bar: Progress) -> None:
        self._backend, self._end, self._bar = backend, end, bar
        self._worker: Worker | None = None
        self._prepared: list[Contender] = []

    def run(self, contenders: Sequence[Contender]) -> None:
        """Measure some strategies in turn, the plans of all of them in memory at once."""
        steps = len(contenders) * (TURNS + 1)
        try:
            for number, contender in enumerate(contenders):
                self._bar.show_measured(steps, number)
                if self._count_left() > MIN_SECONDS:
                    self._prepare(contender)
            # Who cannot be run after all leaves `_prepared` on the way.
            times = {one.key: self._find_times(one) for one in tuple(self._prepared)}
            for turn in range(1, TURNS + 1):
                self._bar.show_measured(steps, len(contenders) * turn)
                for contender in self._list_near(turn):
                    if contender.seconds and self._count_left() <= 0:
                        return
                    contender.seconds += self._run(contender, times[contender.key])
        finally:
            self._end_worker()

    def _list_near(self, turn: int) -> list[Contender]:
        """Return what may still be the fastest: the more was seen, the nearer it has to be."""
        best = min((c.measurement.median for c in self._prepared), default=math.inf)
        limit = math.inf if turn == 1 else (1 + 1 / (turn - 1)) * best
        return [c for c in self._prepared if not c.seconds or c.measurement.median <= limit]

    def _prepare(self, contender: Contender) -> None:
        """Have a plan compiled and run once."""
        if self._compile(self._find_worker(), contender):
            self._prepared.append(contender)

    def _find_times(self, contender: Contender) -> int:
        """Return how often a contender is run in each turn."""
        took = self._run(contender, 1)
        return max(1, min(MOST_TIMES, round(RUN_SECONDS / max(*took, 1e-6)))) if took else 1

    def _run(self, contender: Contender, times: int) -> list[float]:
        """Return the seconds of some runs; nothing if it cannot be run."""
        worker = self._find_worker()
        if contender not in self._prepared:
            return []
        answer = self._ask(worker, contender, {"key": contender.key, "runs": times})
        found: list[float] = answer.get("seconds", [])
        if not found:
            self._prepared.remove(contender)
        return found

    def _find_worker(self) -> Worker:
        """Return the process, or a new one in which what was prepared is prepared again."""
        while self._worker is None:
            self._worker = worker = Worker(self._backend)
            for other in tuple(self._prepared):
                if not self._compile(worker, other) or worker.has_ended:
                    self._prepared.remove(other)
                if worker.has_ended:
                    break
        return self._worker

    def _compile(self, worker: Worker, contender: Contender) -> bool:
        """Have a plan compiled and run once; return whether it can be."""
        asked = {"plan": contender.plan, "key": contender.key}
        return "ready" in self._ask(worker, contender, asked)

    def _ask(self, worker: Worker, contender: Contender, what: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to what is asked about a contender, and keep why there is none."""
        answer = worker.ask(what, self._limit())
        if "error" in answer:
            contender.error = "" if "late" in answer else answer["error"]
        if worker.has_ended:
            self._end_worker()
        return answer

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
        self._worker = None

    def _count_left(self) -> float:
        return self._end - time.monotonic()

    def _limit(self) -> float:
        return min(LONGEST, max(self._count_left(), MIN_SECONDS))


class Worker:
    """A process that measures plans; it ends with this one.

    Args:
        backend: what it opens.
    """

    def __init__(self, backend: Backend) -> None:
        mesh = backend.mesh
        self._where = {
            "backend": backend.name,
            "options": dict(backend.own_options),
            "mesh": mesh.sizes,
            "order": mesh.order,
        }
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
            what: a plan and its key, to be compiled and run once; or a key and how often to run.
            limit: seconds.
        """
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended
            self._process.stdin.write(json.dumps({**self._where, **what}) + "\n")
            self._process.stdin.flush()
        try:
            line = self._answers.get(timeout=limit)
        except queue.Empty:
            self.end()
            return {"error": f"takes longer than {format_seconds(limit)}", "late": True}
        if not line:
            self._answers.put("")  # whoever asks next is not to wait, either
            code = self._process.wait()
            return {"error": f"the process ended with code {code}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def has_ended(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._process.poll() is not None

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
