"""Kernels that go row by row: blocks of rows give what all rows at once give, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import blocks
from mithril.engine.kernels.blocks import in_row_blocks
from mithril.engine.kernels.loss import cross_entropy_gradient
from mithril.engine.kernels.normalization import layer_norm, rms_norm
from mithril.types import DType, TensorType

from tests.tolerances import TOLERANCE


def test_a_step_writes_where_its_rows_belong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "ROWS_BLOCK", 8)
    told: list[Any] = []

    def step(x: Any, out: Any = None) -> Any:
        told.append(out)
        return np.multiply(x, 2, out=out), x.sum(1), x.sum(0)

    x = np.arange(20.0).reshape(5, 4)
    run = in_row_blocks(step, (5,), 4, ("r", "rr+"), np, writes=True)
    double, along, total = run(x)
    assert [out.shape for out in told] == [(2, 4), (2, 4), (1, 4)]
    assert all(np.shares_memory(out, double) for out in told)
    np.testing.assert_array_equal(double, 2 * x)
    np.testing.assert_array_equal(along, x.sum(1))
    np.testing.assert_array_equal(total, x.sum(0))
    assert run(np.asfortranarray(x))[0].flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_blocks_are_what_all_rows_are(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x, gain, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((7, 6), (6,), (6,)))
    wide = np.float64 if dtype == "float64" else np.float32
    ids, slope = rng.integers(0, 6, 7), rng.standard_normal(7).astype(dtype)
    total = np.log(np.exp(x.astype(wide)).sum(1))
    rows, row = (TensorType(y.shape, DType(dtype)) for y in (x, gain))

    def make() -> list[Any]:
        kernels = [
            (layer_norm(ops.LayerNorm(1e-5), [rows, row, row], np), (x, gain, bias)),
            (rms_norm(ops.RmsNorm(1e-5), [rows, row], np), (x, gain)),
            (
                cross_entropy_gradient(ops.CrossEntropyGradient(), [rows], np),
                (x, ids, total, slope),
            ),
        ]
        return [as_tuple(run(*given)) for run, given in kernels]

    whole = make()
    monkeypatch.setattr(blocks, "ROWS_BLOCK", 12)
    for made, expected in zip(make(), whole, strict=True):
        for found, other in zip(made, expected, strict=True):
            assert found.dtype == other.dtype
            np.testing.assert_allclose(found, other, *TOLERANCE[dtype])


def as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)
