"""Events as JSON that Perfetto and `chrome://tracing` show.

The format is the Trace Event Format of Chromium: complete events (`X`) with microseconds, a process
for each row of devices, a thread for each stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from mithril.cost.events import COMMUNICATION, COMPUTE, COPIES, RECEIVED, SENT, Event

THREADS = {COMPUTE: 0, COMMUNICATION: 1, SENT: 2, RECEIVED: 3, COPIES: 4}


def write_trace(
    path: str | PathLike[str],
    rows: Sequence[tuple[tuple[int, ...], Sequence[Event]]],
    profile: str,
) -> None:
    """Write events as JSON.

    Args:
        path: of the file.
        rows: devices that do the same, with what one of them does.
        profile: name of the hardware profile that the times are predicted with.
    """
    document = {
        "displayTimeUnit": "ms",
        "otherData": {"profile": profile},
        "traceEvents": [
            event
            for number, (devices, events) in enumerate(rows)
            for event in (*_name(number, devices), *(_describe(number, e) for e in events))
        ],
    }
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def describe_devices(devices: Sequence[int]) -> str:
    """Return devices in words.

    >>> describe_devices((0, 1, 2, 7))
    'devices 0-2, 7'
    """
    runs: list[list[int]] = []
    for device in devices:
        if runs and runs[-1][-1] == device - 1:
            runs[-1] = [runs[-1][0], device]
        else:
            runs.append([device])
    texts = (f"{run[0]}-{run[1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"device{'s' * (len(devices) > 1)} {', '.join(texts)}"


def _name(number: int, devices: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    name = {"name": describe_devices(devices)}
    yield {"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": name}
    for stream, thread in THREADS.items():
        args = {"name": stream}
        yield {"ph": "M", "name": "thread_name", "pid": number, "tid": thread, "args": args}


def _describe(number: int, event: Event) -> dict[str, Any]:
    details: dict[str, Any] = {
        "layer": event.scope, "phase": str(event.phase), "kind": event.kind, "bytes": event.bytes,
    }  # fmt: skip
    if event.axes:
        details["axes"] = "+".join(event.axes)
    if event.microbatch is not None:
        details["microbatch"] = event.microbatch
    return {
        "ph": "X", "name": event.name, "cat": event.stream, "pid": number,
        "tid": THREADS[event.stream], "ts": event.start * 1e6,
        "dur": (event.end - event.start) * 1e6, "args": details,
    }  # fmt: skip
