"""The character model of LSTM layers learns and writes the same on every backend and mesh."""

from __future__ import annotations

import importlib.util

import pytest

from tests.examples.test_placement import PACKAGES, numbers, ran
from tests.profiles import quick

MESHES = {
    "numpy": "data=2,tensor=2",
    "jax": "data=2,tensor=2",
    "torch": "data=2",
    "mlx": "tensor=2",
}


@quick(lambda backend: backend == "numpy")
@pytest.mark.parametrize("backend", PACKAGES)
def test_a_character_model(backend: str) -> None:
    if importlib.util.find_spec(PACKAGES[backend]) is None:
        pytest.skip(f"{PACKAGES[backend]} is not installed")
    expected = ran("lstm_text.py")
    found = ran("lstm_text.py", "--backend", backend, "--mesh", MESHES[backend])
    losses = numbers(expected)
    assert losses[-1] < 0.5 < losses[0]
    assert numbers(found) == pytest.approx(losses, abs=1e-3)
    assert found[-1] == expected[-1]
    assert "the rat sat on the" in expected[-1]
