"""The examples of placement and 3-D parallelism give on every backend what one device gives."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
PACKAGES = {
    "numpy": "mithril", "jax": "mithril_jax", "torch": "mithril_torch", "mlx": "mithril_mlx",
}  # fmt: skip
MESHES = {"numpy": "4,2,2", "jax": "4,2,2", "torch": "2,2,2", "mlx": "2,2,2"}


@cache
def ran(script: str, *arguments: str) -> list[str]:
    """Return the lines an example prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "16", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def numbers(lines: list[str]) -> list[float]:
    """Return the last number of each line about a loss."""
    return [float(line.split()[-1]) for line in lines if "loss" in line]


@pytest.mark.slow
@pytest.mark.parametrize("backend", PACKAGES)
def test_a_transformer_over_three_dimensions(backend: str) -> None:
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")
    expected = numbers(ran("transformer_3d.py", "--backend", "numpy", "--mesh", "1,1,1"))
    found = ran("transformer_3d.py", "--backend", backend, "--mesh", MESHES[backend])
    assert len(expected) == 3
    assert numbers(found) == pytest.approx(expected, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("backend", PACKAGES)
def test_layers_on_four_devices(backend: str) -> None:
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")
    expected = ran("placed_transformer.py", "--devices", "4")
    assert ran("placed_transformer.py", "--backend", backend)[1:] == expected[1:]
    mean, others = (float(lines[0].split()[-1]) for lines in (
        ran("placed_transformer.py", "--backend", backend), expected,
    ))  # fmt: skip
    assert mean == pytest.approx(others, abs=1e-4)
