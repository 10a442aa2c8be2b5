"""Profiles: figures equal the plan's, what may not be is refused, and files can be read."""

from __future__ import annotations

import gzip
import json
import re
import struct
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.cost.analysis import HardwareAnalyst
from mithril.engine.numpy_engine import NumpyEngine
from mithril.ops.collective import class_of
from mithril.report.event_files import crc32c
from mithril.runtime.backend import Backend

from tests.runtime.profiled import check_bytes, check_figures, compiled_on

MESHES = [ml.Mesh(), ml.Mesh(data=4), ml.Mesh(data=2, tensor=2), ml.Mesh(data=2, pipeline=2)]
PREDICTED_SECONDS, PREDICTED_BYTES = 0.5, 1 << 20


@pytest.fixture(autouse=True)
def predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict round figures, so that ratios are known."""
    timeline = SimpleNamespace(
        seconds=PREDICTED_SECONDS, layers={"up": 0.25}, communication={"data": 0.125}, exposed={}
    )
    memory = SimpleNamespace(of=lambda device: SimpleNamespace(peak=PREDICTED_BYTES))
    monkeypatch.setattr(HardwareAnalyst, "predict_timeline", lambda *_: timeline)
    monkeypatch.setattr(HardwareAnalyst, "predict_memory", lambda *_: memory)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_figures_are_those_of_the_plan(mesh: ml.Mesh) -> None:
    prof = check_figures(ml.NumpyBackend(mesh))
    assert "predicted with profile 'simulated'" in prof.summary()
    for run in figures(prof).runs:
        for span in run.spans:
            assert run.start <= span.start <= span.end <= run.end


def figures(prof: ml.Profile) -> Any:
    """Return the data of a profile, which is nobody's business but that of a test."""
    assert prof._known is not None
    return prof._known[0]


def row_of(text: str, label: str) -> list[str]:
    """Return the columns of a line."""
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return line[44:].split("  ")


def test_measured_stands_beside_predicted_with_their_ratio() -> None:
    prof = check_figures(ml.NumpyBackend(ml.Mesh(data=2)))
    text = prof.summary()
    measured = np.mean([run.seconds for run in figures(prof).runs])
    *_, predicted, ratio = [cell for cell in row_of(text, "time") if cell]
    assert predicted.strip() == "500 ms"
    assert ratio.strip() == f"{measured / PREDICTED_SECONDS:.2f}"
    assert "250 ms" in next(line for line in text.splitlines() if "layer up" in line)
    assert "125 ms" in next(line for line in text.splitlines() if "communication, data" in line)
    assert "1 MiB" in prof.device_summary()


def test_nothing_is_predicted_where_no_profile_describes_the_devices() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled, inputs = compiled_on(backend)
    from dataclasses import replace

    with ml.profile(backend) as prof:
        compiled.evaluate(compiled.randomize_params(), inputs)
    known = figures(prof)
    runs = []
    for run in known.runs:
        pricing = replace(run.plan.pricing, unknown_platform="npu")
        runs.append(replace(run, plan=replace(run.plan, pricing=pricing)))
    prof._known = replace(known, runs=tuple(runs)), known.devices
    for text in (prof.summary(), prof.device_summary()):
        assert "nothing is predicted: no profile describes 'npu'" in text
        assert "500 ms" not in text
        assert "1 MiB" not in text


def test_memory_is_that_of_the_arrays() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    double = ml.jit(lambda x: (x * 2, x.T.reshape(-1)[:3] * 1.0), backend=backend)
    x = backend.array(np.ones((64, 64), np.float32))
    with ml.profile(backend) as prof:
        double(x)
    (run,) = figures(prof).runs
    held, made, transposed = (64 * 64 * 4,) * 3
    for use in run.memory:
        assert use.peak == held + made + transposed + 8 + 12, "two numbers are constants"
    assert [use.devices for use in run.memory] == [(0,), (1,)]


def test_functions_and_eager_ops_are_runs() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    x = backend.ones(4, 4, sharding=P("data"))
    total = ml.jit(lambda a: (a * 2).sum(), backend=backend)
    with ml.profile(backend) as prof:
        total(x)
        y = x + x
        backend.reshard(y, P())
    assert [run.caller for run in figures(prof).runs] == [
        "function 'lambda'",
        "op 'add'",
        "reshard()",
    ]
    assert prof.communication_stats()["by_kind"] == {"all_reduce": 4, "all_gather": 64}


def test_the_graph_says_who_has_bytes_for_whom() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    x = backend.ones(8, 8, sharding=P("data"))
    with ml.profile(backend) as prof:
        backend.reshard(x, P())
    graph = prof.communication_graph()
    (row,) = figures(prof).runs[0].issued
    assert (row.kind, row.axes, row.bytes) == ("all_gather", ("data",), 256)
    expected = np.zeros((4, 4), int)
    expected[[0, 2, 1, 3], [2, 0, 3, 1]] = 128
    np.testing.assert_array_equal(graph.matrix, expected)
    traffic = class_of(row.kind).traffic(row.bytes, 2).bytes
    assert (graph.matrix.sum(axis=1) == traffic).all()
    assert str(graph).splitlines()[1] == "0 -> 2: 128 bytes"


def test_what_is_not_profiled_is_neither_shown_nor_told() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled, inputs = compiled_on(backend)
    params = compiled.randomize_params()

    def profiled(**switches: bool) -> ml.Profile:
        with ml.profile(backend, **switches) as prof:
            compiled.evaluate(params, inputs, {"loss": 1.0})
        return prof

    quiet = profiled(profile_communication=False)
    assert "all_reduce" not in quiet.summary()
    for ask in (
        quiet.communication_stats,
        quiet.communication_by_dimension,
        quiet.communication_graph,
    ):
        with pytest.raises(
            ml.OptionError, match=r"needs what profile_communication=False left out"
        ):
            ask()
    untimed = profiled(profile_compute=False)
    assert "layer up" not in untimed.summary()
    assert "communication, data" in untimed.summary()
    for ask in (untimed.layers, untimed.device_utilization_map):
        with pytest.raises(ml.OptionError, match=r"needs what profile_compute=False left out"):
            ask()
    uncounted = profiled(profile_memory=False)
    assert "peak memory" not in uncounted.summary()
    assert not figures(uncounted).memory
    check_bytes(uncounted, compiled.plan, 1)


def test_a_block_in_which_nothing_ran() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    with ml.profile(backend) as prof:
        pass
    assert prof.summary().startswith("profile of 'numpy' on Mesh(data=2): 0 runs of 0 plans")
    assert prof.communication_stats()["total_bytes"] == 0
    assert prof.communication_by_dimension() == {"data": 0, "data_parallel": 0}
    np.testing.assert_array_equal(prof.device_utilization_map(), [0, 0])
    assert prof.layers() == {}
    assert prof.communication_graph().total_bytes == 0


def test_after_an_exception_runs_before_it_count() -> None:
    backend = ml.NumpyBackend()
    x = backend.ones(2)

    def fails(a: Any) -> Any:
        raise ZeroDivisionError

    broken = ml.jit(fails, backend=backend)
    with pytest.raises(ZeroDivisionError), ml.profile(backend) as prof:
        x + x
        broken(x)
    assert len(figures(prof).runs) == 1
    assert backend.family.open_profile is None
    with ml.profile(backend) as again:
        x + x
    assert len(figures(again).runs) == 1


def test_a_run_that_fails_does_not_count() -> None:
    backend = ml.NumpyBackend()
    x = backend.ones(2)
    (x + x).numpy()
    with ml.profile(backend) as prof:
        profile = backend.family.open_profile
        bound = SimpleNamespace(
            plan=None, engine=backend.engine, interface=None,
            measured=lambda given, recorder: (_ for _ in ()).throw(ml.BackendError("lost")),
        )  # fmt: skip
        with pytest.raises(ml.BackendError, match="lost"):
            profile.run(bound, [], None)
    assert figures(prof).runs == ()


def test_one_profile_at_a_time() -> None:
    backend, other = ml.NumpyBackend(), ml.NumpyBackend()
    with ml.profile(backend) as outer, ml.profile(other) as inner:
        backend.ones(2) + 1.0
        other.ones(3) * 2.0
        with (
            pytest.raises(ml.BackendError, match=r"'numpy' is being profiled already \(test_prof"),
            ml.profile(backend),
        ):
            pass
    assert len(figures(outer).runs) == len(figures(inner).runs) == 1
    with pytest.raises(ml.BackendError, match=r"was used before; make another by ml\.profile"):
        outer.__enter__()


def test_figures_are_known_after_the_block() -> None:
    with (
        ml.profile(ml.NumpyBackend()) as prof,
        pytest.raises(
            ml.BackendError,
            match=r"no figures before its block has ended; call summary\(\) after it",
        ),
    ):
        prof.summary()


BAD = {
    "no backend": (lambda: ml.profile(3), ml.BackendError, r"profile\(\) is given an int, which is no backend"),
    "a model": (lambda: ml.profile(ml.Relu()), ml.BackendError, "which is no backend; write"),
    "no boolean": (
        lambda: ml.profile(ml.NumpyBackend(), profile_memory="yes"), ml.OptionError, "profile_memory='yes' is no boolean; give True",
    ),
    "unknown": (lambda: ml.profile(ml.NumpyBackend(), profile_mem=True), ml.OptionError, "did you mean 'profile_memory'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    make, error, text = BAD[case]
    with pytest.raises(error, match=text):
        make()


def test_runs_of_several_threads_count_one_after_the_other() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled, inputs = compiled_on(backend)
    params = compiled.randomize_params()
    expected = compiled.evaluate(params, inputs)["loss"].item()
    found: list[float] = []

    def work() -> None:
        for _ in range(5):
            loss = compiled.evaluate(params, inputs)["loss"].item()
            found.append(loss)

    with ml.profile(backend) as prof:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected] * 15
    check_bytes(prof, compiled.plan, 15)
    runs = sorted(figures(prof).runs, key=lambda run: run.start)
    assert all(a.end <= b.start for a, b in pairwise(runs))


def test_observers_are_told_inside_a_profile() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled, inputs = compiled_on(backend)
    seen: list[Any] = []
    with ml.profile(backend):
        compiled.evaluate(compiled.randomize_params(), inputs, {"loss": 1.0}, observe=seen.append)
    assert [told.row for told in seen] == list(compiled.plan.list_issued())
    assert all(told.seconds > 0 and told.phase and told.cause for told in seen)


def test_without_a_profile_nothing_is_measured() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled, inputs = compiled_on(backend)
    compiled.evaluate(compiled.randomize_params(), inputs)
    bound = compiled._evaluator.latest
    assert "measured" not in vars(bound)
    assert "mark" not in bound.executable.source
    with ml.profile(backend):
        compiled.evaluate(compiled.randomize_params(), inputs)
    assert "mark" not in bound.executable.source


class PlainEngine(NumpyEngine):
    """An engine of a plugin that measures nothing."""

    def measuring(self) -> PlainEngine:
        return self


def test_a_plugin_that_measures_nothing_is_timed_as_a_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    backend = Backend(PlainEngine(ml.Mesh(data=2)))
    compiled, inputs = compiled_on(backend)
    with ml.profile(backend) as prof:
        compiled.evaluate(compiled.randomize_params(), inputs, {"loss": 1.0})
    check_bytes(prof, compiled.plan, 1)
    assert prof.layers() == {}
    assert np.isnan(prof.device_utilization_map()).all()
    assert re.search(r"^0 +- +- +- ", prof.device_summary(), re.MULTILINE)
    ml.visualize.print_device_utilization(prof.device_utilization_map())
    assert "device utilization: not known" in capsys.readouterr().out
    assert figures(prof).runs[0].seconds > 0
    assert "  time" in prof.summary()


# ------------------------------------------------------------------ files


def test_events_for_chrome(tmp_path: Path) -> None:
    prof = check_figures(ml.NumpyBackend(ml.Mesh(data=2, tensor=2)))
    path = prof.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X" and event["cat"] != "run"]
    assert {event["pid"] for event in spans} == {1, 2, 3, 4}
    assert {event["args"]["layer"] for event in spans if event["cat"] == "compute"} >= {
        "up",
        "down",
    }
    moved = sum(
        event["args"]["bytes"]
        for event in spans
        if event["cat"] == "communication" and event["pid"] == 1
    )
    assert moved == prof.communication_stats()["total_bytes"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"device 0", "device 3", "compute", "communication"} <= names
    squeezed = prof.to_chrome_trace(tmp_path / "trace.json.gz")
    assert json.loads(gzip.decompress(squeezed.read_bytes()))["traceEvents"] == events
    with pytest.raises(ml.OptionError, match=r"lies in .*, which is no directory; make it first"):
        prof.to_chrome_trace(tmp_path / "no" / "trace.json")
    with pytest.raises(
        ml.OptionError, match=r"trace.json' cannot be written; .*; give another one"
    ):
        prof.to_tensorboard(path)


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a file of TFRecords, whose checksums are right."""

    def is_right(part: bytes, sum: bytes) -> bool:
        crc = crc32c(part)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == struct.unpack("<I", sum)[0]

    while data:
        (length,) = struct.unpack("<Q", data[:8])
        assert is_right(data[:8], data[8:12])
        body, rest = data[12 : 12 + length], data[12 + length :]
        assert is_right(body, rest[:4])
        yield body
        data = rest[4:]


def test_scalars_for_tensorboard(tmp_path: Path) -> None:
    prof = check_figures(ml.NumpyBackend(ml.Mesh(data=2)))
    folder = prof.to_tensorboard(tmp_path / "logs")
    (path,) = folder.glob("events.out.tfevents.*")
    first, *steps, last = records(path.read_bytes())
    assert b"brain.Event:2" in first
    assert len(steps) == 2
    assert b"mithril/seconds_of_run" in steps[0]
    tag = b"mithril/bytes_by_axis/data"
    at = last.index(tag) + len(tag)
    assert last[at : at + 1] == b"\x15"
    (value,) = struct.unpack("<f", last[at + 1 : at + 5])
    assert value == prof.communication_by_dimension()["data"]
    (trace,) = folder.glob("plugins/profile/*/mithril-0.trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
