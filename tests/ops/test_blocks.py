"""Elementwise kernels that run block by block give what they give in one piece."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels.blocks import BLOCK

from tests.ops.evaluate import apply


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
