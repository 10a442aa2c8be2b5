"""Elementwise kernels that run block by block give what they give in one piece."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels import blocks, position
from mithril.engine.kernels.blocks import BLOCK
from mithril.testing.cases import CASES, Case, is_first_of_its_op
from mithril.testing.evaluate import apply, assert_close
from mithril.types import DType

from tests.ops.oracles import ORACLES
from tests.profiles import quick

BY_ROWS = {
    "cross_entropy", "cross_entropy_gradient", "layer_norm", "layer_norm_gradient", "log_softmax",
    "rms_norm", "rms_norm_gradient", "rope", "softmax", "softmax_gradient",
}  # fmt: skip


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("size", [2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK, 4 * BLOCK - 1])
def test_blocks_change_nothing(size: int, approximate: bool) -> None:
    x = np.linspace(-6, 6, size, dtype=np.float32)
    g = np.cos(x)
    for op, arrays in ((ops.Gelu(approximate), [x]), (ops.GeluGradient(approximate), [x, g])):
        (whole,) = apply(op, *arrays)
        for start in range(0, size, BLOCK):
            part = slice(start, start + BLOCK)
            np.testing.assert_array_equal(apply(op, *(a[part] for a in arrays))[0], whole[part])


def test_blocks_take_operands_in_any_layout() -> None:
    x = np.linspace(-6, 6, 3 * BLOCK, dtype=np.float32).reshape(3, -1)
    (straight,) = apply(ops.Gelu(False), x)
    (turned,) = apply(ops.Gelu(False), x.T)
    np.testing.assert_array_equal(turned.T, straight)


@quick(lambda case, block: block == 12 or is_first_of_its_op(case))
@pytest.mark.parametrize("block", [1, 12, 30])
@pytest.mark.parametrize("case", [c for c in CASES if c.op.name in BY_ROWS], ids=str)
def test_some_rows_at_a_time_give_what_all_give(case: Case, block: int, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "ROWS_BLOCK", block)
    monkeypatch.setattr(position, "ROWS_BLOCK", block)
    expected = ORACLES[case.op.name](case.op, *case.arrays)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found, wanted in zip(apply(case.op, *case.arrays), expected, strict=True):
        assert_close(found, wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_over_blocks_of_rows_are_kept_in_float32(dtype: str, monkeypatch) -> None:
    monkeypatch.setattr(blocks, "ROWS_BLOCK", 4)
    g = np.ones((5000, 2)).astype(DType(dtype).numpy)
    rows, gain = np.zeros(5000, np.float32), g[0]
    _, _, dbias = apply(ops.LayerNormGradient(), g, gain, rows, rows, g)
    assert_close(dbias.astype(np.float64), np.full(2, 5000.0), DType(dtype))


def test_no_rows_have_no_results() -> None:
    x, gain = np.zeros((0, 3, 4)), np.ones(4)
    for y in apply(ops.LayerNorm(1e-5), x, gain, gain):
        assert y.shape[:2] == (0, 3)
    _, dgain = apply(ops.RmsNormGradient(), x, gain, np.zeros((0, 3)), x)
    assert_close(dgain, np.zeros(4))
