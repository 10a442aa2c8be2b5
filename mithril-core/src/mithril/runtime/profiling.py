"""Profiles: what the runs of a backend inside a block really took, by layer, collective and device.

While a profile is open, everything that its backend runs (evaluations of compiled models, functions
of `jit`, eager functions, from any thread) is run by programs that take times between their
segments, one run at a time. When none is open nothing is measured, and programs are as ever.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from threading import RLock
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from mithril.engine import Engine, Executable, Handle, Observer, Recorder
from mithril.errors import BackendError, OptionError, kind_of
from mithril.ir.source import Source, at, user_source
from mithril.keywords import checked_keywords
from mithril.mesh import P, Sharding
from mithril.option_checks import check_output
from mithril.plan import Plan
from mithril.report.device_graph import DeviceGraph
from mithril.report.profile import DeviceFigures, ProfiledRun, ProfileFigures
from mithril.report.profile_files import write_chrome_trace, write_tensorboard
from mithril.report.profile_text import Shown, write_device_summary, write_summary
from mithril.runtime.backend import Backend
from mithril.types import DType, TensorType


class Measured(Protocol):
    """A bound plan, as a profile runs it."""

    engine: Engine
    plan: Plan
    interface: Any

    @property
    def measured(self) -> Executable:
        """The plan lowered to be measured."""


@checked_keywords()
def profile(
    backend: Backend,
    *,
    profile_communication: bool = True,
    profile_memory: bool = True,
    profile_compute: bool = True,
) -> Profile:
    """Return a context that measures what a backend runs inside it.

    Figures are there when the block has ended. Of a block that raises, the runs that had ended
    count. A backend has one profile at a time; in a job every process opens its own at the same
    place, and figures of devices are those of all of them.

    Args:
        backend: whose runs are measured.
        profile_communication: whether exchanges of data are told.
        profile_memory: whether memory is counted, in the first run of each plan.
        profile_compute: whether time by layer and device is told.

    Raises:
        BackendError: `backend` is none.
        OptionError: a switch is no boolean.

    >>> import mithril as ml
    >>> backend = ml.NumpyBackend(ml.Mesh(data=2))
    >>> x = backend.ones(4, 2, sharding=ml.P("data"))
    >>> with profile(backend) as prof:
    ...     total = (x * 2).sum()
    >>> prof.communication_stats()["by_kind"]
    {'all_reduce': 4}
    """
    if not isinstance(backend, Backend):
        raise BackendError(
            f"profile() is given {kind_of(backend)}, which is no backend; write "
            f"ml.profile(backend), with one that ml.NumpyBackend() or the like has opened"
        )
    switches = {
        "profile_communication": profile_communication,
        "profile_memory": profile_memory,
        "profile_compute": profile_compute,
    }
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} is no boolean; give True or False")
    return Profile(backend, Shown(profile_communication, profile_memory, profile_compute))


class Profile:
    """What a backend ran inside a block, measured; made by `ml.profile`.

    Every print has what was predicted beside what was measured, and their ratio, where a hardware
    profile describes the devices.
    """

    def __init__(self, backend: Backend, shown: Shown) -> None:
        self._backend = backend
        self._shown = shown
        self._lock = RLock()
        self._place: Source | None = None
        self._runs: list[tuple[str, Plan, Recorder]] = []
        self._counted: set[int] = set()
        self._begun = self._beside = self._mark_seconds = 0.0
        self._engine_profiler = backend.engine.open_profiler()
        self._known: tuple[ProfileFigures, DeviceFigures] | None = None

    # ------------------------------------------------------------------ the block

    def __enter__(self) -> Self:
        """Begin to measure.

        Raises:
            BackendError: another profile of the backend is open, or this one was before, or the
                framework's own profiler is in use.
        """
        other = self._backend.family.open_profile
        if other is not None:
            raise BackendError(
                f"backend '{self._backend.name}' is being profiled already{at(other.place)}; end "
                f"that block first: a backend has one profile at a time"
            )
        if self._begun:
            raise BackendError(
                f"profile{at(self._place)} was used before; make another by ml.profile(backend)"
            )
        self._place = user_source()
        self._mark_seconds = self._engine_profiler.measure_mark()
        start = perf_counter()
        self._engine_profiler.open()
        self._begun = perf_counter()
        self._beside += self._begun - start
        self._backend.family.open_profile = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End; an exception of the block goes on."""
        end = perf_counter()
        with self._lock:
            self._backend.family.open_profile = None
            for *_, recorder in self._runs:
                recorder.finish()
            self._engine_profiler.close([recorder for *_, recorder in self._runs])
        self._beside += perf_counter() - end
        figures = self._collect(end - self._begun)
        devices = figures.devices
        if self._backend.engine.process_count > 1 and error is None:
            devices = _gather(self._backend, figures)
        self._known = figures, devices

    @property
    def place(self) -> Source | None:
        """The user's line that opened it."""
        return self._place

    def run(
        self, bound: Measured, given: Sequence[Handle], observe: Observer | None
    ) -> list[Handle]:
        """Run a plan and measure it; a run that fails does not count.

        Args:
            bound: the plan.
            given: its inputs.
            observe: told of every collective, as without a profile.
        """
        with self._lock:
            before = perf_counter()
            is_first = id(bound.plan) not in self._counted
            recorder = Recorder(counts_memory=self._shown.memory and is_first)
            execute = bound.measured
            recorder.start = perf_counter()
            made = execute(given, recorder)
            bound.engine.wait_for(made)
            recorder.end = perf_counter()
            self._counted.add(id(bound.plan))
            self._runs.append((bound.interface.caller, bound.plan, recorder))
            self._beside += recorder.start - before + recorder.paused
        if observe is not None:
            recorder.finish()
            for issued in recorder.issued:
                observe(issued)
        return made

    def _collect(self, took: float) -> ProfileFigures:
        """Return the figures of the runs."""
        engine, shown = self._backend.engine, self._shown
        runs = []
        for caller, plan, recorder in self._runs:
            kept = {"compute": shown.compute, "communication": shown.communication}
            spans = [span for span in recorder.spans if kept[span.segment.stream]]
            issued = recorder.issued if shown.communication else []
            runs.append(
                ProfiledRun(
                    caller, plan, recorder.start, recorder.end,
                    recorder.end - recorder.start - recorder.paused,
                    tuple(issued), tuple(spans), tuple(recorder.memory),
                )
            )  # fmt: skip
        marks = sum(recorder.marks for *_, recorder in self._runs)
        return ProfileFigures(
            self._backend.name, self._backend.mesh, engine.local_devices, engine.execution.in_turn,
            tuple(runs), (self._beside, marks * self._mark_seconds), took,
        )  # fmt: skip

    # ------------------------------------------------------------------ what it tells

    def summary(self) -> str:
        """Return a table of all: times, memory, collectives and layers of each plan that ran.

        Raises:
            BackendError: the block has not ended.
        """
        return write_summary(self._figures("summary"), self._shown)

    def device_summary(self) -> str:
        """Return a table of the devices: how long each computed and waited, and its memory.

        Raises:
            BackendError: the block has not ended.
        """
        figures = self._figures("device_summary")
        return write_device_summary(figures, self._devices, self._shown)

    def communication_stats(self) -> dict[str, Any]:
        """Return what was exchanged: bytes that each device moved, as plans count them.

        Returns:
            `total_bytes`; `count` of collectives and messages; `seconds`; `by_kind`, `by_layer`
            (bytes by name); `seconds_by_kind`. In a job it is what this process took part in.

        Raises:
            BackendError: the block has not ended.
            OptionError: communication was not profiled.
        """
        return self._figures("communication_stats", "communication").count_communication()

    def communication_by_dimension(self) -> dict[str, int]:
        """Return the bytes that each device moved by mesh axis, as `Plan.bytes_by_axis` does.

        Returns:
            Bytes by axis name and as `<axis>_parallel`; what runs over several axes at once is
            under their names joined by `+`, what goes between stages under `send`.
            `model_parallel` is also another name of the axis `tensor`.

        Raises:
            BackendError: the block has not ended.
            OptionError: communication was not profiled.
        """
        return self._figures("communication_by_dimension", "communication").count_by_dimension()

    def communication_graph(self) -> DeviceGraph:
        """Return the bytes that went from device to device.

        Raises:
            BackendError: the block has not ended.
            OptionError: communication was not profiled.
        """
        return self._figures("communication_graph", "communication").build_graph()

    def device_utilization_map(self) -> np.ndarray:
        """Return the part of the time of all runs in which each device computed.

        Returns:
            float64, of the mesh's shape, between 0 and 1; NaN where programs are timed as a whole.
            Devices that a processor simulates in turn have it of the time that the busiest one of
            them took.

        Raises:
            BackendError: the block has not ended.
            OptionError: computing was not profiled.
        """
        figures = self._figures("device_utilization_map", "compute")
        return self._devices.utilization.reshape(figures.mesh.shape)

    def layers(self) -> dict[str, dict[str, float]]:
        """Return the time of computing by layer path, the longest first.

        Returns:
            For each layer `seconds` of all runs, on average over the devices that have it, or of
            all together where they work in turn; their `share` of the whole; `forward` and
            `backward` seconds. What belongs to no layer is under ''.

        Raises:
            BackendError: the block has not ended.
            OptionError: computing was not profiled.
        """
        return self._figures("layers", "compute").layers

    def to_chrome_trace(self, path: str | os.PathLike[str]) -> Path:
        """Write what was measured as events for Chrome's `about:tracing` and Perfetto.

        Args:
            path: of the file; compressed if it ends in `.gz`.

        Returns:
            The path.

        Raises:
            BackendError: the block has not ended.
            OptionError: no file can be written there.
        """
        figures, where = self._figures("to_chrome_trace"), check_output("path", path)
        write_chrome_trace(figures, where)
        return where

    def to_tensorboard(self, directory: str | os.PathLike[str]) -> Path:
        """Write what TensorBoard shows: figures as scalars, events for its profile plugin.

        Args:
            directory: a log directory; it is made if it does not exist.

        Returns:
            The directory.

        Raises:
            BackendError: the block has not ended.
            OptionError: nothing can be written there.
        """
        figures, folder = self._figures("to_tensorboard"), Path(directory)
        index = self._backend.engine.process_index
        try:
            write_tensorboard(figures, self._devices, folder, index)
        except OSError as error:
            raise OptionError(
                f"directory '{folder}' cannot be written; {error}; give another one"
            ) from error
        return folder

    def _figures(self, method: str, needs: str = "") -> ProfileFigures:
        if self._known is None:
            raise BackendError(
                f"profile has no figures before its block has ended; call {method}() after it"
            )
        if needs and not getattr(self._shown, needs):
            raise OptionError(
                f"{method}() needs what profile_{needs}=False left out; leave that option out"
            )
        return self._known[0]

    @property
    def _devices(self) -> DeviceFigures:
        assert self._known is not None, "it is asked for after the figures"
        return self._known[1]

    def __str__(self) -> str:
        return self.summary()


def _gather(backend: Backend, figures: ProfileFigures) -> DeviceFigures:
    """Return the figures of the devices of all processes, which come here together."""
    own = figures.devices
    rows = np.stack([own.compute, own.communication, own.step, own.peak], axis=1)
    split = Sharding.of(backend.mesh, P(backend.mesh.names), 2)
    type = TensorType(rows.shape, DType.float32)
    spread = backend.place(type, split, lambda box: rows[box].astype(np.float32))
    whole = backend.lay_out(spread, Sharding.replicated(backend.mesh, 2)).numpy()
    return DeviceFigures(*whole.astype(np.float64).T)


__all__ = ["Profile", "profile"]
