"""The sides of the matrix of benchmarks on PyTorch, tiny."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.matrix import __main__ as matrix
from benchmarks.matrix import sides_torch
from benchmarks.matrix.cases import (
    DATA,
    DATA_TENSOR,
    FAMILIES,
    FIXED,
    FSDP,
    PIPELINE,
    TENSOR,
)
from tests.matrix_rows import tiny


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "step"])
@pytest.mark.parametrize("model", FAMILIES)
def test_all_sides_agree(model: str, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sides_torch, "can_compile", lambda: False)  # which takes half a minute
    sides = sides_torch.contest(tiny(model, "torch", kind=kind))
    assert next(iter(sides)) == "mithril"
    assert len(sides) == (3 if model in ("moe", "unet") else 2)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # what inductor imports
@pytest.mark.slow
def test_a_compiled_side_agrees():
    sides = sides_torch.contest(tiny("mlp", "torch"))
    assert [*sides] == ["mithril", "eager", "torch.compile"]
    assert all(side.peak() > 0 for side in sides.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "parallelism"),
    [
        ("mlp", DATA), ("lstm", DATA), ("llama", FSDP), ("unet", FSDP), ("gpt", TENSOR),
        ("mlp", TENSOR), ("llama", DATA_TENSOR), ("gpt", PIPELINE),
    ],
)  # fmt: skip
def test_sides_agree_on_ranks(model: str, parallelism: str):
    row = tiny(model, "torch", parallelism)
    row = replace(row, sizes={**row.sizes, **FIXED.get(parallelism, {})})
    found = matrix.run_row(row, 0.01)
    assert isinstance(found, matrix.Found), found
