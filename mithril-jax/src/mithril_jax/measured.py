"""Programs measured by JAX's profiler: what XLA ran, op by op, held against the layers of a plan.

While a profile is open, `jax.profiler` records what each device runs. Its events name ops of the
compiled program; the text of that program says for which layers an op stands, by the scopes that
`lower` traces it in. The time of a fusion is shared out among the layers of what is fused in it, by
the elements that each makes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from time import perf_counter
from typing import Any

import jax
from mithril.spi import (
    BackendError,
    EngineProfiler,
    Issued,
    MemoryUse,
    Observer,
    Phase,
    Program,
    Recorder,
    Segment,
    Span,
    issue_node,
    segment_of,
)

from mithril_jax import hlo
from mithril_jax.devices import Devices
from mithril_jax.executable import JaxExecutable

CLOCK = "mithril clock"
"""The name of the event that tells JAX's clock by that of Python."""
ANALYSIS = "memory_analysis of XLA"
STATISTICS = "memory_stats of the device"
_numbers = itertools.count()
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\(")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")
_DEVICE = re.compile(r"/device:\w+:(\d+)")
Share = tuple[Segment, float]


class MeasuredExecutable(JaxExecutable):
    """A program that JAX's profiler finds under a name of its own."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.name = f"mithril_{next(_numbers)}"
        self._compiled: jax.stages.Compiled | None = None
        self._shares: Mapping[str, Sequence[Share]] = {}
        self._collectives: list[Issued] = []

    def __call__(
        self, inputs: Sequence[jax.Array], observe: Observer | None = None
    ) -> list[jax.Array]:
        """Start a run, and tell the recorder what it is; times are known once the profile ends."""
        assert isinstance(observe, Recorder), "who runs a measured program records it"
        with observe.pause():
            compiled = self._prepare(inputs)
        results = self.run_compiled(compiled, inputs)
        observe.issued += self._collectives
        observe.deferred.append(Pending(self.name, self._shares, self.devices))
        if observe.counts_memory:
            observe.later.append(lambda: observe.memory.extend(self._find_memory(compiled)))
        return results

    def _prepare(self, inputs: Sequence[jax.Array]) -> jax.stages.Compiled:
        """Compile the program under its name, once, and read which op stands for which layers."""
        if self._compiled is None:
            self._compiled = compiled = self.compile_as(self.name, inputs)
            text = compiled.as_text() or ""
            self._collectives = hlo.collectives(text, self.program.mesh, self.program.graph)
            self._shares = read_shares(text, self.program)
        return self._compiled

    def _find_memory(self, compiled: jax.stages.Compiled) -> Iterator[MemoryUse]:
        """Yield the most that each device needs for the program, by itself or by XLA's plan."""
        planned: Any = compiled.memory_analysis()
        needed = 0
        if planned is not None:
            needed = (
                planned.argument_size_in_bytes
                + planned.output_size_in_bytes
                + planned.temp_size_in_bytes
                - planned.alias_size_in_bytes
            )
        for index, device in zip(self.program.mesh.flat, self.devices.flat, strict=True):
            if device.process_index == jax.process_index():
                found = device.memory_stats() or {}
                if "peak_bytes_in_use" in found:
                    yield MemoryUse((index,), found["peak_bytes_in_use"], STATISTICS)
                elif planned is not None:
                    yield MemoryUse((index,), needed, ANALYSIS)


def read_shares(text: str, program: Program) -> dict[str, list[Share]]:
    """Return for each op of a compiled program the segments that it stands for, and how much of it.

    Args:
        text: the optimised HLO.
        program: what was compiled.
    """
    find_node = hlo.make_node_finder(program.graph)
    inside: dict[str, Counter[tuple[str, str]]] = defaultdict(Counter)
    lines: list[tuple[str, str, str]] = []
    computation = ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            computation = head.group(1)
        elif instruction := _INSTRUCTION.match(line):
            name, result, opcode = instruction.groups()
            lines.append((name, opcode, line))
            scope = hlo.read_scope(hlo.read_op_name(line))
            if scope != ("", ""):
                inside[computation][scope] += _count_elements(result)
    found = {}
    for name, opcode, line in lines:
        kind = hlo.KINDS.get(opcode.removesuffix("-start").removesuffix("-done"))
        own = hlo.read_scope(hlo.read_op_name(line))
        if kind is not None:
            found[name] = list(_share_collective(kind, line, find_node, program))
            continue
        called = _CALLS.search(line)
        scopes = inside.get(called.group(1), Counter()) if called else Counter[tuple[str, str]]()
        if not scopes:
            scopes = Counter({own: 1})
        total = sum(scopes.values())
        found[name] = [
            (Segment(scope or opcode, scope, _phase(phase)), count / total)
            for (phase, scope), count in scopes.items()
        ]
    return found


def _share_collective(
    kind: str, line: str, find_node: hlo.FindNode, program: Program
) -> Iterator[Share]:
    """Yield what a collective of XLA stands for; it may be several of the plan, merged."""
    nodes = [find_node(kind, name) for name in hlo.split_op_name(hlo.read_op_name(line))]
    known = {node: issue_node(node, program.mesh) for node in nodes if node is not None}
    if not known:
        yield Segment(kind, issued=Issued(kind, (), 0)), 1.0
        return
    total = sum(issued.bytes for issued in known.values()) or 1
    for node, issued in known.items():
        yield segment_of(node, issued), issued.bytes / total


def _count_elements(result: str) -> int:
    shapes = (prod(int(n) for n in sizes.split(",") if n) for sizes in _SHAPE.findall(result))
    return max(1, sum(shapes))


def _phase(name: str) -> Phase | None:
    return Phase(name) if name else None


@dataclass(frozen=True, slots=True)
class Pending:
    """A program that ran in a run, whose times are in JAX's profile.

    Args:
        name: of the program.
        shares: the segments that each of its ops stands for.
        devices: where it ran.
    """

    name: str
    shares: Mapping[str, Sequence[Share]]
    devices: Devices


@dataclass
class JaxProfiler(EngineProfiler):
    """JAX's profiler, from the first run of a profile to its end."""

    _folder: str = ""
    _origin: float = 0.0
    _is_open: bool = field(default=False)

    def open(self) -> None:
        """Begin to record.

        Raises:
            BackendError: JAX is recording already: it has one profiler in a process.
        """
        self._folder = tempfile.mkdtemp(prefix="mithril-profile-")
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(self._folder, profiler_options=options)
        except RuntimeError as error:
            shutil.rmtree(self._folder)
            raise BackendError(
                f"JAX's profiler is in use: {error}; end that profile first, JAX has one in a "
                f"process"
            ) from error
        with jax.profiler.TraceAnnotation(CLOCK):
            self._origin = perf_counter()

    def measure_mark(self) -> float:
        """Return NaN: what JAX's profiler costs is not known."""
        return math.nan

    def close(self, recorders: Sequence[Recorder]) -> None:
        """End, and tell each run's recorder what its devices did."""
        try:
            jax.profiler.stop_trace()
            events = _read_events(self._folder)
        finally:
            shutil.rmtree(self._folder)
        clock = min(event["ts"] for event in events if event.get("name") == CLOCK)
        _fill(recorders, events, lambda ts: self._origin + (ts - clock) * 1e-6)


def _read_events(folder: str) -> list[dict[str, Any]]:
    """Return the events that JAX's profiler wrote, each with the number of its device."""
    found: list[dict[str, Any]] = []
    for path in sorted(Path(folder).rglob("*.trace.json.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        devices = {}
        for event in events:
            if event.get("ph") == "M" and event.get("name") == "process_name":
                device = _DEVICE.search(event["args"]["name"])
                if device:
                    devices[event["pid"]] = int(device.group(1))
        for event in events:
            if event.get("ph") == "X":
                arguments = event.get("args", {})
                event["device"] = int(
                    arguments.get("device_ordinal", devices.get(event["pid"], -1))
                )
                found.append(event)
    return found


def _fill(
    recorders: Sequence[Recorder],
    events: Sequence[Mapping[str, Any]],
    to_seconds: Callable[[float], float],
) -> None:
    """Tell recorders of the events of their programs: those that lie in the time of a run."""
    by_module: dict[str, list[tuple[float, float, int, str]]] = defaultdict(list)
    for event, inner in _own_times(events):
        module = event["args"]["hlo_module"].removeprefix("jit_")
        start = to_seconds(event["ts"])
        by_module[module].append((start, inner * 1e-6, event["device"], event["args"]["hlo_op"]))
    for recorder in recorders:
        seconds: defaultdict[int, list[float]] = defaultdict(list)
        for program in {item.name: item for item in recorder.deferred}.values():
            places = {
                (device.local_hardware_id or device.id): index
                for index, device in zip(
                    program.devices.mesh.flat, program.devices.flat, strict=True
                )
            }
            for start, length, number, op in by_module[program.name]:
                if not recorder.start <= start <= recorder.end or number not in places:
                    continue
                for segment, share in program.shares.get(op, ((Segment(op), 1.0),)):
                    span = Span(segment, (places[number],), start, start + length * share)
                    recorder.spans.append(span)
                    start += length * share
                    if segment.issued is not None and segment.issued.origin is not None:
                        seconds[id(segment.issued.origin)].append(span.seconds)
        recorder.set_seconds(seconds)


def _own_times(
    events: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Yield the events of ops with the microseconds that are not those of ops inside them."""
    rows: dict[tuple[int, int], list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if {"hlo_op", "hlo_module"} <= event.get("args", {}).keys():
            rows[event["pid"], event["tid"]].append(event)
    for row in rows.values():
        row.sort(key=lambda event: (event["ts"], -event["dur"]))
        inner = [0.0] * len(row)
        around: list[int] = []
        for number, event in enumerate(row):
            while around and _end(row[around[-1]]) <= event["ts"]:
                around.pop()
            if around:
                inner[around[-1]] += event["dur"]
            around.append(number)
        for event, less in zip(row, inner, strict=True):
            yield event, max(0.0, event["dur"] - less)


def _end(event: Mapping[str, Any]) -> float:
    end: float = event["ts"] + event["dur"]
    return end
