"""Files of a profile: events for Chrome and Perfetto, and what TensorBoard reads."""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mithril.engine.recording import Span
from mithril.report.event_files import VERSION, encode_event, encode_record
from mithril.report.profile import DeviceFigures, ProfileFigures

HOST = "host"
STREAMS = {"compute": 0, "communication": 1}


def list_events(figures: ProfileFigures) -> Iterator[dict[str, Any]]:
    """Yield the events of a profile in Chrome's trace format; times are in microseconds."""
    yield _name("process_name", 0, 0, HOST)
    yield _name("thread_name", 0, 0, "runs")
    for device in figures.here:
        yield _name("process_name", device + 1, 0, f"device {device}")
        for stream, number in STREAMS.items():
            yield _name("thread_name", device + 1, number, stream)
    origin = min((run.start for run in figures.runs), default=0.0)
    for run in figures.runs:
        yield {
            "ph": "X", "pid": 0, "tid": 0, "name": run.caller, "cat": "run",
            "ts": (run.start - origin) * 1e6, "dur": (run.end - run.start) * 1e6,
        }  # fmt: skip
        for span in run.spans:
            for device in span.devices:
                yield _event(span, device, origin)


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _event(span: Span, device: int, origin: float) -> dict[str, Any]:
    segment = span.segment
    arguments: dict[str, Any] = {"layer": segment.scope, "phase": segment.phase or ""}
    if segment.issued is not None:
        cause = segment.issued.cause
        moved = "" if cause is None else f"{cause.value}: {cause.produced} -> {cause.required}"
        arguments |= {
            "axes": list(segment.issued.axes), "bytes": segment.issued.bytes,
            "line": segment.issued.source, "exposed_us": span.exposed * 1e6,
            "cause": moved,
        }  # fmt: skip
    return {
        "ph": "X", "pid": device + 1, "tid": STREAMS[segment.stream], "name": segment.name,
        "cat": segment.stream, "ts": (span.start - origin) * 1e6,
        "dur": (span.end - span.start) * 1e6, "args": arguments,
    }  # fmt: skip


def write_chrome_trace(figures: ProfileFigures, path: Path) -> None:
    """Write what `Profile.to_chrome_trace` writes; compressed where the name ends in `.gz`."""
    text = json.dumps({"traceEvents": list(list_events(figures)), "displayTimeUnit": "ms"})
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def write_tensorboard(
    figures: ProfileFigures, devices: DeviceFigures, folder: Path, process: int
) -> None:
    """Write what `Profile.to_tensorboard` writes."""
    moment = time.strftime("%Y_%m_%d_%H_%M_%S")
    run = folder / "plugins" / "profile" / moment
    run.mkdir(parents=True, exist_ok=True)
    write_chrome_trace(figures, run / f"mithril-{process}.trace.json.gz")
    stamp = time.time()
    path = folder / f"events.out.tfevents.{int(stamp)}.mithril-{process}"
    events = [encode_event(stamp, version=VERSION)]
    for step, one in enumerate(figures.runs):
        events.append(encode_event(stamp, step, {"mithril/seconds_of_run": one.seconds}))
    events.append(encode_event(stamp, len(figures.runs), _list_scalars(figures, devices)))
    path.write_bytes(b"".join(map(encode_record, events)))


def _list_scalars(figures: ProfileFigures, devices: DeviceFigures) -> dict[str, float]:
    """Return the figures of a profile by the tags under which TensorBoard shows them."""
    found = {
        f"mithril/seconds_by_layer/{layer or 'outside'}": row["seconds"]
        for layer, row in figures.layers.items()
    }
    for axis, moved in figures.count_by_dimension().items():
        found[f"mithril/bytes_by_axis/{axis}"] = moved
    for device in figures.here:
        found[f"mithril/utilization/device_{device}"] = float(devices.utilization[device])
        found[f"mithril/peak_bytes/device_{device}"] = float(devices.peak[device])
    return {tag: value for tag, value in found.items() if not math.isnan(value)}


__all__ = ["list_events", "write_chrome_trace", "write_tensorboard"]
