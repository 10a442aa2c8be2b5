"""Kernels of attention: batched matrix products over [batch, groups].

The query heads of a group stand below each other as rows, so that they share a product with their
one key head. MLX is lazy: a statistic that nobody asks for is not computed, so on the GPU the
result comes from the fused kernel and the statistic, where a gradient needs it, from the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx
from mithril.spi import KernelRun, TensorType, Types
from mithril.spi.ops import UNSEEN, Attention, AttentionGradient

from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.exponential import Change, exponential
from mithril_mlx.kernels.precision import in_float32, on_gpu
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype

HEADS_FIRST = (0, 2, 1, 3)


@kernel(Attention)
@zero_without_elements
def attention(op: Attention, types: Types) -> KernelRun:
    """The fused kernel on the GPU where every row sees something; else products and sums."""
    explicit = in_float32(_attention)(op, types)
    if not on_gpu() or len(types) > 3:
        return explicit
    how, scale = "causal" if op.causal else None, op.scale

    def run(q: mx.array, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        _, total = explicit(q, k, v)
        q, k, v = (x.transpose(HEADS_FIRST) for x in (q, k, v))
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=how)
        return out.transpose(HEADS_FIRST), total

    return run


def _attention(op: Attention, types: Types) -> KernelRun:
    (b, s, h, _), scale = types[0].shape, op.scale
    rows, back = _to_rows(types), _from_rows(types)
    hide = _make_mask(op.causal, types, types[3:])
    is_masked, exp = len(types) > 3, exponential(types[0])

    def run(q: mx.array, k: mx.array, v: mx.array, *masks: mx.array) -> tuple[mx.array, mx.array]:
        k, v = k.transpose(0, 2, 3, 1), v.transpose(HEADS_FIRST)
        scores = hide(rows(q * scale) @ k, *masks)
        top = mx.max(scores, axis=-1, keepdims=True)
        if is_masked:
            top = mx.where(top < UNSEEN, 0.0, top)
        weights = exp(scores - top)
        total = mx.sum(weights, axis=-1, keepdims=True)
        if is_masked:
            total = mx.where(total == 0.0, 1.0, total)
        return back((weights @ v) / total), (mx.log(total) + top).reshape(b, h, s)

    return run


@kernel(AttentionGradient)
@zero_without_elements
@in_float32
def attention_gradient(op: AttentionGradient, types: Types) -> KernelRun:
    """Probabilities are recomputed from log_sum_exp; five batched products."""
    (_, s, h, _), (b, _, groups, _), scale = types[0].shape, types[1].shape, op.scale
    rows, back = _to_rows(types), _from_rows(types)
    hide, lines = _make_mask(op.causal, types, types[6:]), (b, groups, h // groups * s, 1)
    exp = exponential(types[0])

    def run(
        q: mx.array, k: mx.array, v: mx.array, out: mx.array, total: mx.array, g: mx.array,
        *masks: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array]:  # fmt: skip
        along = rows(mx.sum(g * out, axis=-1, keepdims=True))
        q, g, k, v = rows(q * scale), rows(g), k.transpose(HEADS_FIRST), v.transpose(HEADS_FIRST)
        weights = exp(hide(q @ k.swapaxes(2, 3), *masks) - total.reshape(lines))
        slope = (g @ v.swapaxes(2, 3) - along) * weights
        dk, dv = slope.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ g
        return back((slope @ k) * scale), dk.transpose(HEADS_FIRST), dv.transpose(HEADS_FIRST)

    return run


def _to_rows(types: Types) -> Change:
    """Return the change from [b, s, h, d] to [b, groups, rows, d], rows being heads by sequence."""
    (b, s, h, _), groups = types[0].shape, types[1].shape[2]
    if h == groups:
        return lambda x: x.transpose(HEADS_FIRST)
    apart, together = (b, s, groups, h // groups, -1), (b, groups, h // groups * s, -1)
    return lambda x: x.reshape(apart).transpose(0, 2, 3, 1, 4).reshape(together)


def _from_rows(types: Types) -> Change:
    (b, s, h, _), groups = types[0].shape, types[1].shape[2]
    if h == groups:
        return lambda x: x.transpose(HEADS_FIRST)
    apart, together = (b, groups, h // groups, s, -1), (b, s, h, -1)
    return lambda x: x.reshape(apart).transpose(0, 3, 1, 2, 4).reshape(together)


def _make_mask(causal: bool, types: Types, masks: Types) -> Callable[..., mx.array]:
    """Return the function that masks scores [b, groups, rows, t]."""
    (b, s, h, _), (_, t, groups, _) = types[0].shape, types[1].shape
    shape, apart = (b, groups, h // groups * s, t), (b, groups, h // groups, s, t)
    future = _mask_future(s, t, types[0]) if causal else None
    if not masks and (future is None or h == groups):
        return (lambda scores: scores) if future is None else (lambda scores: scores + future)
    fit, is_bool = _fit(masks, apart), bool(masks) and not masks[0].dtype.is_float
    zero = mx.array(0, dtype=mlx_dtype(types[0].dtype))

    def hide(scores: mx.array, mask: mx.array | None = None) -> mx.array:
        scores = scores.reshape(apart)
        if mask is not None:
            mask = mask.reshape(fit)
            scores = scores + (mx.where(mask, zero, -math.inf) if is_bool else mask)
        return (scores if future is None else scores + future).reshape(shape)

    return hide


def _mask_future(s: int, t: int, like: TensorType) -> mx.array:
    """Return what is added to scores [s, t]: minus infinity right of the diagonal."""
    return mx.triu(mx.full((s, t), -math.inf, mlx_dtype(like.dtype)), t - s + 1)


def _fit(masks: Types, apart: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a mask [b, h, s, t], some sizes 1, beside scores [b, g, r, s, t]."""
    if not masks:
        return ()
    b, h, s, t = masks[0].shape
    return (b, *(apart[1:3] if h > 1 else (1, 1)), s, t)
