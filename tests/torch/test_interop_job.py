"""Tensors, DTensors and modules under torchrun; `interop_job` is what each rank runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.torch.test_module import RTOL, train_by_hand

ROOT = Path(__file__).parents[2]
LIMIT = 240
REFUSALS = {
    "the backend's Mesh(data=2, tensor=2) on 0 to 3; redistribute it over a device": 4,
    "DTensor lies on ranks [0, 1], and this process is none of them": 2,
    "gradient of input 'input' is split as P('data', None), and each rank has a part": 4,
    "input 'x' is a DTensor that requires a gradient, which the module gives to plain": 4,
}
"""What is refused, and by how many ranks."""


@pytest.mark.slow
def test_four_ranks(tmp_path: Path) -> None:
    job = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4",
            "-m", "tests.torch.interop_job", str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )  # fmt: skip
    assert job.returncode == 0, job.stderr[-8000:]
    assert job.stdout.count("is done") == 4
    assert {text: job.stdout.count(text) for text in REFUSALS} == REFUSALS
    losses = json.loads((tmp_path / "losses.json").read_text())
    np.testing.assert_allclose(losses, train_by_hand(6), rtol=RTOL)
