"""Files of a profile: events for Chrome and Perfetto, and what TensorBoard reads.

TensorBoard reads scalars from records of protocol buffers with a checksum. They are few and simple,
so they are written here: no package of TensorFlow's is needed. The format is that of TFRecord, the
messages `Event` and `Summary` of TensorFlow, the checksum CRC-32C (RFC 3720, appendix B.4).
"""

from __future__ import annotations

import gzip
import json
import math
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mithril.engine.recording import Span
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
    events = [_encode_event(stamp, version="brain.Event:2")]
    for step, one in enumerate(figures.runs):
        events.append(_encode_event(stamp, step, {"mithril/seconds_of_run": one.seconds}))
    events.append(_encode_event(stamp, len(figures.runs), _list_scalars(figures, devices)))
    path.write_bytes(b"".join(map(_encode_record, events)))


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


def _encode_event(
    wall: float, step: int = 0, scalars: Mapping[str, float] | None = None, version: str = ""
) -> bytes:
    """Return an `Event`: wall_time = 1, step = 2, file_version = 3, summary = 5."""
    data = b"\x09" + struct.pack("<d", wall)
    if step:
        data += b"\x10" + _encode_varint(step)
    if version:
        data += _encode_bytes(3, version.encode())
    if scalars:
        values = (
            _encode_bytes(1, _encode_bytes(1, tag.encode()) + b"\x15" + struct.pack("<f", value))
            for tag, value in scalars.items()
        )
        data += _encode_bytes(5, b"".join(values))
    return data


def _encode_bytes(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _encode_varint(len(data)) + data


def _encode_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _encode_record(data: bytes) -> bytes:
    """Return a record: its length and its bytes, each with a checksum."""
    length = struct.pack("<Q", len(data))
    return length + _mask(length) + data + _mask(data)


def _mask(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _make_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_TABLE = _make_table()


def crc32c(data: bytes) -> int:
    """Return the checksum CRC-32C.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


__all__ = ["crc32c", "list_events", "write_chrome_trace", "write_tensorboard"]
