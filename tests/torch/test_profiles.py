"""Profiles on PyTorch: marks in the text, memory by allocations, and jobs of several processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
import torch
from mithril.engine import Recorder
from mithril.engine.recording import Segment
from mithril.plan import Issued
from mithril_torch.executors.pool.allocations import count_allocations
from mithril_torch.executors.timing import record
from mithril_torch.program.module_scope import TextSegment

from tests.conformance.engines import opened
from tests.runtime.profiled import compiled_on
from tests.torch.jobs import script, torchrun


def test_marks_stand_around_layers_and_collectives() -> None:
    backend = opened("torch", data=2)
    compiled, inputs = compiled_on(backend)
    params = compiled.randomize_params()
    with ml.profile(backend):
        compiled.evaluate(params, inputs, {"loss": 1.0})
    bound = compiled._evaluator.latest
    text, segments = bound.measured.generated.text, bound.measured.generated.segments
    assert "mark(" not in bound.executable.generated.text
    (start,) = re.findall(r"mark\((\d+)\)\n *step\[0\] = \d+\n *(?:work\w+) = all_reduce", text)[:1]
    assert segments[int(start)].segment.issued.kind == "all_reduce"
    (end,) = re.findall(r"mark\((\d+)\)\n *step\[0\] = \d+\n *(?:work\w+)\.wait\(\)", text)[:1]
    assert segments[int(end)].is_wait
    assert text.replace("mark", "").count("\n") - bound.executable.generated.text.count("\n") == (
        text.count("mark(")
    )


def test_an_exchange_lasts_from_its_start_to_the_end_of_its_wait() -> None:
    issued = Issued("all_reduce", ("data",), 8)
    texts = [
        TextSegment(Segment("up"), (0, 1)),
        TextSegment(Segment("all_reduce", issued=issued), (0, 1)),
        TextSegment(Segment("all_reduce", issued=issued), (0, 1), is_wait=True),
        TextSegment(Segment(""), (0, 1)),
    ]
    noted = [0, 1.0, 1, 2.0, 0, 2.5, 2, 4.0, 3, 5.0, 0, 6.0]
    recorder = Recorder()
    record(recorder, texts, [(0, noted), (1, noted)], list)
    recorder.finish()
    mine = [
        (s.segment.name, s.start, s.end, s.exposed) for s in recorder.spans if s.devices == (0,)
    ]
    assert mine == [("up", 1.0, 2.0, 1.0), ("all_reduce", 2.0, 5.0, 1.5), ("up", 2.5, 4.0, 1.5)]
    assert [(told.row, told.seconds) for told in recorder.issued] == [(issued.row, 3.0)], (
        "told once"
    )


def test_compiled_programs_are_timed_as_a_whole() -> None:
    backend = ml.TorchBackend(device="cpu", jit=True)
    engine = backend.engine.measuring()
    assert not engine.codegen.timed
    recorder = Recorder()
    record(recorder, [], [(0, [0, 1.0])], lambda: [Issued("all_reduce", ("a",), 4)])
    recorder.finish()
    assert recorder.spans == []
    assert [told.row for told in recorder.issued] == [("all_reduce", ("a",), 4)]


def test_allocations_are_counted_while_they_live() -> None:
    x = torch.ones(1000)
    with count_allocations("cpu", [x, None, x]) as peak:
        y = x + 1
        z = y * 2
        del y
        view = z[:10]
        del z
        w = view.sum()
    del view, w
    assert 4000 + 8000 <= peak[0] <= 4000 + 8000 + 64


def test_memory_is_not_counted_under_another_profile() -> None:
    backend = opened("torch")
    double = ml.jit(lambda x: x * 2.0, backend=backend)
    x = backend.ones(4)
    torch.rand(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with (
            pytest.raises(ml.BackendError, match=r"cannot be counted while torch\.profiler runs"),
            ml.profile(backend),
        ):
            double(x)
        with ml.profile(backend, profile_memory=False) as prof:
            double(x)
    assert prof.layers()["lambda"]["seconds"] > 0


def test_memory_of_workers_is_told_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    backend = opened("torch", data=2)
    compiled, inputs = compiled_on(backend)
    with ml.profile(backend) as prof:
        compiled.evaluate(compiled.randomize_params(), inputs)
    assert [use.devices for use in prof._known[0].memory] == [(0,), (1,)]
    assert capfd.readouterr().err == ""


JOB = """
from tests.runtime.profiled import check_figures
backend = ml.TorchBackend(ml.Mesh(data=2), device="cpu", timeout=60)
prof = check_figures(backend)
found = prof.device_utilization_map()
(rank,) = backend.engine.local_devices
print("map", found.shape, bool(np.isfinite(found).all()), found.tobytes().hex())
print("memory", [use.devices for use in prof._known[0].memory] == [(rank,)])
folder = prof.to_tensorboard(FOLDER)
"""


@pytest.mark.slow
def test_in_a_job_every_rank_knows_all_devices(tmp_path: Path) -> None:
    code = JOB.replace("FOLDER", repr(str(tmp_path / "logs")))
    done = torchrun(2, script(tmp_path, code))
    assert done.returncode == 0, done.stderr
    maps = {line for line in done.stdout.splitlines() if line.startswith("map")}
    assert len(maps) == 1
    assert maps.pop().startswith("map (2,) True")
    assert done.stdout.count("memory True") == 2
    files = sorted(path.name.rpartition("-")[2] for path in (tmp_path / "logs").glob("events*"))
    assert files == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["workers", "lockstep"])
def test_a_pipeline_tells_what_stages_send(executor: str) -> None:
    from tests.pipeline.models import classifier, samples

    backend = ml.TorchBackend(ml.Mesh(data=2, pipeline=2), device="cpu", executor=executor)
    compiled = ml.compile(classifier(2, microbatch_size=2), backend)
    params = compiled.randomize_params()
    inputs: dict[str, Any] = {
        name: backend.array(x, sharding=ml.P("data")) for name, x in samples(8).items()
    }
    expected = compiled.evaluate(params, inputs, {"loss": 1.0})
    with ml.profile(backend) as prof:
        found = compiled.evaluate(params, inputs, {"loss": 1.0})
    np.testing.assert_allclose(found[0]["loss"], expected[0]["loss"], rtol=1e-5)
    plan = compiled.plan
    told = sorted(issued.row for issued in prof._known[0].runs[0].issued)
    assert told == sorted(plan.list_issued())
    assert prof.communication_by_dimension()["send"] == plan.bytes_by_axis()["send"]
