"""Profiles on MLX: segments are computed before the next begins, also in a job."""

from __future__ import annotations

import re
from pathlib import Path

import mithril as ml
import numpy as np
import pytest

from tests.conformance.engines import opened
from tests.mlx.jobs import launch
from tests.runtime.profiled import compiled_on
from tests.runtime.scripts import script

JOB = """
from tests.runtime.profiled import check_figures, compiled_on
backend = ml.MLXBackend(ml.Mesh(data=2))
prof = check_figures(backend)
print("map", prof.device_utilization_map().tolist())
print("memory", [use.devices for use in prof._known[0].memory])
apart = ml.MLXBackend(ml.Mesh(pipeline=2))
compiled, inputs = compiled_on(apart)
params = compiled.randomize_params()
with ml.profile(apart) as prof:
    compiled.evaluate(params, inputs, {"loss": 1.0})
print("sends", prof.communication_by_dimension()["send"] == compiled.plan.bytes_by_axis()["send"])
print("layers", sorted(prof.layers()))
"""


@pytest.mark.slow
def test_in_a_job_every_rank_knows_all_devices_and_its_own_layers(tmp_path: Path) -> None:
    done = launch(2, script(tmp_path, JOB))
    assert done.returncode == 0, done.stderr
    lines = sorted(re.sub(r"^\[\d\] ", "", line) for line in done.stdout.splitlines())
    told = {
        word: [line for line in lines if line.startswith(word)]
        for word in ("map", "memory", "sends", "layers")
    }
    assert told["map"][0] == told["map"][1]
    assert told["memory"] == ["memory [(0,)]", "memory [(1,)]"]
    assert told["sends"] == ["sends True"] * 2
    assert told["layers"] == ["layers ['act', 'up']", "layers ['down', 'end']"]


def test_what_is_compiled_otherwise_is_measured_segment_by_segment() -> None:
    backend = ml.MLXBackend(jit=True)
    compiled, inputs = compiled_on(backend)
    params = compiled.randomize_params()
    expected = compiled.evaluate(params, inputs)["loss"]
    with ml.profile(backend) as prof:
        found = compiled.evaluate(params, inputs)["loss"]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert {"up", "down", "end"} <= set(prof.layers())


def test_memory_is_that_of_the_process() -> None:
    backend = opened("mlx", data=2)
    x = backend.ones(1 << 18, sharding=ml.P("data"))
    with ml.profile(backend) as prof:
        x * 2.0
    (use,) = prof._known[0].memory
    assert use.devices == (0, 1)
    assert use.peak >= 2 * 4 * (1 << 18)
    assert "memory of 2 devices together" in prof.device_summary()
