"""Diagnoses a failed round trip: which rank failed, where and how, as the text of an error.

A failure causes secondary ones: other ranks find their connections closed. So a worker that ended
or was stopped is reported before one that raised, and one that does not answer before those that
waited for it.
"""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mithril_torch.executors.pool import memory
from mithril_torch.executors.pool.processes import WorkerProcesses
from mithril_torch.executors.pool.round_trip import RoundTrip

EXIT = 1.0
"""Seconds for a process whose socket has closed to be gone for good."""
_SECONDARY = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|Timed out waiting|timeout caused pair closure"
    r"|remote process exited|Connection was likely closed|NCCL.*timeout"
)
_SHORTAGE = re.compile(r"^MemoryError|OutOfMemoryError|can't allocate memory|[Oo]ut of memory")
_ACTIVITIES = {
    memory.IDLE: "while idle",
    memory.STARTING: "while starting",
    memory.LOADING: "while loading a program",
    memory.TAKING: "while taking in arrays",
    memory.RUNNING: "before the first step of the program",
    memory.ANSWERING: "while sending results",
    memory.EARLIER: "in an operation that was asked for before",
}


def is_secondary_failure(text: str) -> bool:
    """Return whether an error tells that another process is gone, and not what went wrong."""
    return _SECONDARY.search(text) is not None


class SourceMap(Protocol):
    """Says in the user's names where a program is.

    Args of both: a number of a step as in `step[0]`, or of a line of the source from 1 on.
    """

    def step(self, number: int) -> str:
        """Return what a step is: `step 17 (all_reduce of linear_1.weight, model.py:12)`."""
        ...

    def line(self, number: int) -> str:
        """Return what a line does, in the same form."""
        ...


@dataclass(frozen=True, slots=True)
class Fault:
    """What happened to one rank: `how` follows its name, `remedy` may be empty."""

    rank: int
    how: str
    remedy: str
    details: str = ""


def find(round_trip: RoundTrip, source_map: SourceMap | None, timeout: float) -> list[Fault]:
    """Return the faults behind the trouble of an exchange, secondary ones left out."""
    workers = round_trip.workers
    dead = [_describe_death(workers, rank, source_map) for rank in sorted(round_trip.ended)]
    stopped = [rank for rank in round_trip.silent if workers.is_stopped(rank)]
    held = [_describe_stop(workers, rank, source_map, timeout) for rank in stopped]
    errors = [
        _describe_error(rank, _report(round_trip, rank), source_map) for rank in round_trip.failed
    ]
    own = [fault for fault in errors if not is_secondary_failure(fault.how)]
    if dead or held or own:
        return dead + held + own
    return [
        _describe_silence(workers, rank, source_map, errors[0]) for rank in round_trip.silent
    ] or errors


def describe(faults: Sequence[Fault], size: int, outcome: str) -> str:
    """Return the text of the error: who and how; what became of the others; what to do."""
    first, *others = _group_by_cause(faults, size)
    who = "; ".join([first[0].upper() + first[1:], *others])
    remedies = dict.fromkeys(fault.remedy for fault in faults if fault.remedy)
    return "; ".join([who, outcome, *remedies])


def _group_by_cause(faults: Sequence[Fault], size: int) -> list[str]:
    """Return a phrase for each way to fail, with all ranks that it happened to."""
    ranks: dict[str, list[int]] = {}
    for fault in faults:
        ranks.setdefault(fault.how, []).append(fault.rank)
    return [f"{_subject(found, size)} {how}" for how, found in ranks.items()]


def _subject(ranks: Sequence[int], size: int) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} of {size}"
    return f"ranks {', '.join(map(str, ranks))} of {size} each"


def _describe_death(workers: WorkerProcesses, rank: int, source_map: SourceMap | None) -> Fault:
    process = workers.processes[rank]
    place = locate(*workers.progress.read(rank), source_map)
    try:
        code = process.wait(EXIT)
    except subprocess.TimeoutExpired:
        return Fault(rank, f"closed its connection {place} (pid {process.pid})", "")
    if code >= 0:
        how = f"ended with exit code {code} {place} (pid {process.pid})"
        return Fault(rank, how, "see what it printed")
    name = _signal_name(-code)
    remedy = "SIGKILL is also how the system ends a process when memory runs out"
    how = f"was killed by {name} {place} (pid {process.pid})"
    return Fault(rank, how, remedy if name == "SIGKILL" else "")


def _describe_stop(
    workers: WorkerProcesses, rank: int, source_map: SourceMap | None, timeout: float
) -> Fault:
    place = locate(*workers.progress.read(rank), source_map)
    how = f"was stopped by SIGSTOP {place} and not continued within timeout={timeout:g} s"
    return Fault(
        rank, f"{how} (pid {workers.processes[rank].pid})", "let it run, or raise the timeout"
    )


def _describe_silence(
    workers: WorkerProcesses, rank: int, source_map: SourceMap | None, other: Fault
) -> Fault:
    place = locate(*workers.progress.read(rank), source_map)
    pid = workers.processes[rank].pid
    how = f"gave no answer {place} (pid {pid}), and rank {other.rank} {other.how}"
    return Fault(rank, how, "raise the timeout if it is slow", other.details)


def _describe_error(rank: int, report: dict[str, Any], source_map: SourceMap | None) -> Fault:
    text, line = report["text"], report.get("line")
    if source_map is not None and line is not None:
        place = f"in {source_map.line(line)}"
    else:
        place = locate(report.get("step", -1), report.get("activity", memory.STARTING), source_map)
    remedy = "split the arrays over more devices, or use smaller ones"
    how = f"raised {text} {place}"
    return Fault(rank, how, remedy if _SHORTAGE.search(text) else "", report.get("traceback", ""))


def _report(round_trip: RoundTrip, rank: int) -> dict[str, Any]:
    answer = round_trip.answers[rank]
    assert answer is not None
    report: dict[str, Any] = answer.header["error"]
    return report


def locate(step: int, activity: int, source_map: SourceMap | None) -> str:
    """Return where in its program a worker is, or what else it is at."""
    if step < 0:
        return _ACTIVITIES[activity]
    return f"in {source_map.step(step)}" if source_map is not None else f"in step {step}"


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
