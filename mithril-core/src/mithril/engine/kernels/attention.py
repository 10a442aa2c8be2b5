"""Kernels of attention: batched matrix products over [batch, heads] with transposed views."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.attention import MASKED, Attention, AttentionGradient
from mithril.types import TensorType

Types = Sequence[TensorType]
HEADS_FIRST = (0, 2, 1, 3)
KEYS_LAST = (0, 2, 3, 1)


@kernel(Attention)
def attention(op: Attention, types: Types, xp: ModuleType) -> Run:
    """Scores, masked and exponentiated in place, then the weighted values."""
    score = _scores(op.causal, op.scale, types, xp)
    wide, dtype = _wide(types), types[0].dtype.numpy

    def run(q: Any, k: Any, v: Any) -> Any:
        weights = score(q, k)
        top = xp.max(weights, axis=-1, keepdims=True)
        weights -= top
        xp.exp(weights, out=weights)
        total = xp.sum(weights, axis=-1, keepdims=True)
        out = weights @ xp.asarray(v, dtype=wide).transpose(HEADS_FIRST)
        out /= total
        statistic = (xp.log(total) + top)[..., 0]
        return xp.asarray(out.transpose(HEADS_FIRST), dtype=dtype), statistic

    return run


@kernel(AttentionGradient)
def attention_gradient(op: AttentionGradient, types: Types, xp: ModuleType) -> Run:
    """Probabilities are recomputed from log_sum_exp; five batched products."""
    score = _scores(op.causal, op.scale, types, xp)
    wide, dtype, scale = _wide(types), types[0].dtype.numpy, op.scale

    def run(q: Any, k: Any, v: Any, out: Any, total: Any, g: Any) -> Any:
        q, k, v, g = (xp.asarray(x, dtype=wide) for x in (q, k, v, g))
        weights = score(q, k)
        weights -= total[..., None]
        xp.exp(weights, out=weights)
        g_heads = g.transpose(HEADS_FIRST)
        dv = weights.transpose(0, 1, 3, 2) @ g_heads
        slope = g_heads @ v.transpose(KEYS_LAST)
        slope -= xp.sum(g * out, axis=-1).transpose(0, 2, 1)[..., None]
        slope *= weights
        slope *= scale
        dq = slope @ k.transpose(HEADS_FIRST)
        dk = slope.transpose(0, 1, 3, 2) @ q.transpose(HEADS_FIRST)
        return tuple(xp.asarray(x.transpose(HEADS_FIRST), dtype=dtype) for x in (dq, dk, dv))

    return run


def _wide(types: Types) -> np.dtype[Any]:
    dtype = types[0].dtype
    return np.dtype(np.float32) if dtype.itemsize == 2 else dtype.numpy


def _scores(causal: bool, scale: float, types: Types, xp: ModuleType) -> Run:
    """Return the function from q and k to masked scores [b, h, s, t], a fresh array."""
    s, t = types[0].shape[1], types[1].shape[1]
    wide = _wide(types)
    unseen = ~np.tri(s, t, t - s, dtype=bool) if causal else None
    factor = wide.type(scale)

    def score(q: Any, k: Any) -> Any:
        left = xp.asarray(q, dtype=wide).transpose(HEADS_FIRST) * factor
        scores = left @ xp.asarray(k, dtype=wide).transpose(KEYS_LAST)
        if unseen is not None:
            np.copyto(scores, wide.type(MASKED), where=unseen)
        return scores

    return score
