"""Attention of long sequences on MLX, block by block: what it computes, and what it holds."""

from __future__ import annotations

import mithril as ml
import mlx.core as mx
import numpy as np
import pytest
from mithril import ops
from mithril.ops.attention import Attention, AttentionGradient
from mithril.testing.cases import CASES, Case
from mithril.testing.evaluate import apply, type_of
from mithril_mlx.kernels import attention

from tests.mlx.test_kernels import check

OF_ATTENTION = [case for case in CASES if type(case.op) in (Attention, AttentionGradient)]


@pytest.fixture(params=[1, 3])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LONG", 0)
    monkeypatch.setattr(attention, "ROWS", request.param)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("case", OF_ATTENTION, ids=str)
def test_blocks_compute_the_same(case: Case) -> None:
    arrays = [x.astype(np.float32) if x.dtype == np.float64 else x for x in case.arrays]
    check(case.op, *arrays)


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_mask_of_rows_and_keys(groups: int, rows: int) -> None:
    """With causal attention of more keys than positions, and gradients."""
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((2, length, heads, 4)).astype(np.float32)
        for length, heads in ((7, 4), (9, groups), (9, groups))
    )
    mask = rng.standard_normal((2, 1, rows, 9)).astype(np.float32)
    op = Attention(True, 0.5)
    check(op, q, k, v, mask)
    out, total = apply(op, q, k, v, mask)
    g = rng.standard_normal(out.shape).astype(np.float32)
    check(AttentionGradient(True, 0.5), q, k, v, out, total, g, mask)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_no_square_of_the_sequence_is_held(causal: bool) -> None:
    shape, backend = (1, 1024, 4, 16), ml.MLXBackend(device="cpu")
    x = backend.array(np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    square = shape[1] ** 2 * shape[2] * 4

    def loss(q: ml.Array, k: ml.Array, v: ml.Array) -> ml.Array:
        return ops.sum(ops.attention(q, k, v, causal=causal) ** 2)

    run = ml.jit(ml.grad(loss, argnums=(0, 1, 2)), backend=backend)
    for _ in range(2):
        mx.eval([y.shards for y in run(x, x, x)])
        before = mx.get_active_memory()
        mx.reset_peak_memory()
    mx.eval([y.shards for y in run(x, x, x)])
    assert 0 < mx.get_peak_memory() - before < square
    assert type_of(x.numpy()).size == x.size
