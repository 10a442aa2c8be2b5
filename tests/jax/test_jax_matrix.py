"""The sides of the matrix of benchmarks on JAX, tiny."""

from __future__ import annotations

import pytest

from benchmarks.matrix import sides_jax
from benchmarks.matrix.cases import DATA, DATA_TENSOR, FAMILIES, FSDP, TENSOR
from tests.matrix_rows import tiny


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["forward", "step"])
@pytest.mark.parametrize("model", FAMILIES)
def test_all_sides_agree(model: str, kind: str):
    sides = sides_jax.contest(tiny(model, "jax", kind=kind))
    assert next(iter(sides)) == "mithril"
    assert len(sides) == (3 if model in ("moe", "unet", "lstm") else 2)
    assert all(side.peak() > 0 for side in sides.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "parallelism", "sides"),
    [
        ("mlp", DATA, 3), ("llama", FSDP, 3), ("gpt", TENSOR, 2), ("mlp", DATA_TENSOR, 2),
        ("moe", DATA, 3), ("resnet", FSDP, 2),
    ],
)  # fmt: skip
def test_sides_agree_on_several_devices(model: str, parallelism: str, sides: int):
    assert len(sides_jax.contest(tiny(model, "jax", parallelism))) == sides
