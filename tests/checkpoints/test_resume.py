"""Train, save, load in another process on another mesh and backend, train: as if nothing happened."""

from __future__ import annotations

import json
import os
import sys
from functools import cache
from pathlib import Path

import mithril as ml
import pytest

from tests.checkpoints.resume import CASES, STEPS, compiled_case, mesh_of, start, train
from tests.conformance.engines import opened
from tests.profiles import quick
from tests.runtime.scripts import ROOT, ran
from tests.tolerances import TOLERANCE

STOP = 3
WAYS = {
    "mlp": [
        ("jax", "data=2,tensor=2", "torch", "tensor=2"),
        ("torch", "tensor=2", "mlx", "data=4"),
        ("mlx", "data=2,tensor=2", "jax", "data=2,tensor=4"),
        ("numpy", "data=4", "numpy", "data=1"),
    ],
    "llama": [
        ("numpy", "data=4", "jax", "data=2,tensor=2"),
        ("jax", "data=2,tensor=2", "torch", "data=2"),
    ],
    "moe": [
        ("torch", "tensor=2", "mlx", "data=2,tensor=2"),
        ("numpy", "tensor=4", "jax", "data=2,tensor=2"),
    ],
    "pipeline": [
        ("numpy", "data=2,pipeline=2", "torch", "pipeline=2"),
        ("jax", "pipeline=2", "mlx", "data=2"),
    ],
}
CHOSEN = [(name, *way) for name, ways in WAYS.items() for way in ways]


@cache
def losses_alone(name: str) -> list[float]:
    """Return the losses of one NumPy device that trains without a stop."""
    compiled, inputs = compiled_case(CASES[name], ml.NumpyBackend())
    return train(compiled, inputs, start(compiled), STEPS)[1]


@quick(lambda name, source: (name, source) == ("mlp", "jax"))
@pytest.mark.parametrize(("name", "source", "here", "target", "there"), CHOSEN)
def test_a_training_goes_on_elsewhere(
    name: str, source: str, here: str, target: str, there: str, tmp_path: Path
) -> None:
    for backend in (source, target):
        if backend != "numpy":
            pytest.importorskip(f"mithril_{backend}")
    expected = losses_alone(name)
    assert expected[-1] < expected[0]
    compiled, inputs = compiled_case(CASES[name], opened(source, **mesh_of(here).sizes))
    state, before = train(compiled, inputs, start(compiled), STOP)
    ml.save(tmp_path, state)
    way = "compiled" if name == "mlp" else "like"
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.checkpoints.resume"]
    done = ran([*command, name, target, there, str(tmp_path), way], PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.rpartition("result ")[2])
    rtol, atol = TOLERANCE["float32"]
    assert before + result["losses"] == pytest.approx(expected, rel=rtol, abs=atol)
    assert result["lying"] == result["wanted"] == result["after"]
    if "tensor" in there:
        assert any("tensor" in spec for spec in result["lying"].values())
    assert result["read"] <= 1.05 * result["parts"]
