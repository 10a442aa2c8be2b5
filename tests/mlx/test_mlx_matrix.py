"""The sides of the matrix of benchmarks on MLX, tiny."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.matrix import sides_mlx
from benchmarks.matrix.cases import list_rows
from tests.matrix_rows import tiny
from tests.profiles import quick

MODELS = sorted({row.model for row in list_rows(0) if row.backend == "mlx"})


@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles with a C++ compiler")
@quick(lambda kind, model: kind == "step" and model in ("mlp", "gpt", "resnet"))
@pytest.mark.parametrize("kind", ["forward", "step"])
@pytest.mark.parametrize("model", MODELS)
def test_all_sides_agree(model: str, kind: str):
    sides = sides_mlx.contest(tiny(model, "mlx", kind=kind))
    assert [*sides] == ["mithril", "mx.compile", "not compiled"]
    assert all(side.peak() > 0 for side in sides.values())
