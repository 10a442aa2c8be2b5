"""Many cases in one program: a wrong one is named, and no other."""

from __future__ import annotations

import pytest
from mithril.engine.numpy_engine import NumpyEngine
from mithril.mesh import Mesh
from mithril.testing.checks.ops import DIFFERENTIABLE
from mithril.testing.evaluate import evaluate
from mithril.testing.merged import MergedCases


@pytest.mark.parametrize("kind", ["result", "gradient"])
def test_a_wrong_case_is_named(kind: str) -> None:
    merged = MergedCases(NumpyEngine(Mesh()))
    for case in [case for case in DIFFERENTIABLE if case.op.name == "multiply"][:2]:
        merged.add(case, has_gradient=True)
    assert not merged.run()
    _, second = {name.rpartition(".")[0]: None for name in merged.values}
    expected = evaluate(*merged.graph())
    wrong = f"{second}.y0" if kind == "result" else f"gradients.{second}.x1"
    (found,) = merged.compare({**expected, wrong: expected[wrong] + 1}, expected)
    assert found == wrong
