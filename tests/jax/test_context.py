"""What XLA's own partitioner gets of attention over split sequences: the plain attention."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest

from tests.runtime.test_context import HOW, SEQUENCE, agree, block, step


@pytest.mark.slow
@pytest.mark.parametrize("how", HOW)
def test_gspmd_runs_plain_attention(how: str) -> None:
    _, expected = step(block(None, causal=True), ml.NumpyBackend())
    backend = ml.JaxBackend(ml.Mesh(seq=2), pjit_lowering_strategy="gspmd")
    _, found = step(block(how, causal=True), backend, SEQUENCE, length=11)
    agree(found, expected)
    assert np.isfinite(found["y"]).all()
