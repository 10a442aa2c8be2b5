"""Kernels of attention: batched matrix products over [batch, groups].

The query heads of a group stand below each other as rows, so that they share a product with their
one key head. MLX is lazy: a statistic that nobody asks for is not computed, so on the GPU the
result comes from the fused kernel and the statistic, where a gradient needs it, from the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
from mithril.spi import KernelRun, TensorType, Types
from mithril.spi.ops import UNSEEN, Attention, AttentionGradient

from mithril_mlx.kernels.empty import zero_without_elements
from mithril_mlx.kernels.exponential import Change, exponential
from mithril_mlx.kernels.precision import in_float32, on_gpu
from mithril_mlx.kernels.table import kernel
from mithril_mlx.tensors import mlx_dtype

HEADS_FIRST = (0, 2, 1, 3)
LONG, ROWS = 2**21, 64
"""With more scores, so many positions are computed together: all are never held at once."""


@kernel(Attention)
@zero_without_elements
def attention(op: Attention, types: Types) -> KernelRun:
    """The fused kernel on the GPU where every row sees something; else products and sums."""
    explicit = in_float32(_attend)(op, types)
    if not on_gpu() or len(types) > 3:
        return explicit
    how, scale = "causal" if op.causal else None, op.scale

    def run(q: mx.array, k: mx.array, v: mx.array) -> tuple[mx.array, mx.array]:
        _, total = explicit(q, k, v)
        q, k, v = (x.transpose(HEADS_FIRST) for x in (q, k, v))
        out = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=how)
        return out.transpose(HEADS_FIRST), total

    return run


def _attend(op: Attention, types: Types) -> KernelRun:
    """All positions at once, or those of a long sequence block by block."""
    blocks = _cut(op.causal, types, 3)
    if len(blocks) == 1:
        return _attention(op, types)
    kernels = [_attention(op, block.types) for block in blocks]

    def run(q: mx.array, k: mx.array, v: mx.array, *masks: mx.array) -> tuple[mx.array, mx.array]:
        made: list[tuple[mx.array, mx.array]] = []
        for block, compute in zip(blocks, kernels, strict=True):
            (rows,) = _after(list(made[-1]) if made else [], block.rows(q))
            made.append(compute(rows, block.keys(k), block.keys(v), *map(block.both, masks)))
        out, total = (list(some) for some in zip(*made, strict=True))
        return mx.concatenate(out, 1), mx.concatenate(total, 2)

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
    """All positions at once, or those of a long sequence block by block."""
    blocks = _cut(op.causal, types, 6)
    if len(blocks) == 1:
        return _gradient(op, types)
    kernels = [_gradient(op, block.types) for block in blocks]

    def run(
        q: mx.array, k: mx.array, v: mx.array, out: mx.array, total: mx.array, g: mx.array,
        *masks: mx.array,
    ) -> tuple[mx.array, mx.array, mx.array]:  # fmt: skip
        slopes: list[mx.array] = []
        dk, dv = mx.zeros_like(k), mx.zeros_like(v)
        for block, compute in zip(blocks, kernels, strict=True):
            before = [slopes[-1], dk, dv] if slopes else []
            rows, slope = _after(before, block.rows(q), block.rows(g))
            statistic = total[:, :, block.start : block.end]
            dq, more_k, more_v = compute(
                rows, block.keys(k), block.keys(v), block.rows(out), statistic, slope,
                *map(block.both, masks),
            )  # fmt: skip
            slopes.append(dq)
            dk, dv = (x.at[:, : block.seen].add(y) for x, y in ((dk, more_k), (dv, more_v)))
        return mx.concatenate(slopes, 1), dk, dv

    return run


def _gradient(op: AttentionGradient, types: Types) -> KernelRun:
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


@dataclass(frozen=True, slots=True)
class _Block:
    """Positions that attention computes together, and what they see.

    Args:
        start: the first one.
        end: the one behind the last.
        seen: so many keys.
        types: of the operands of the attention of these positions alone.
    """

    start: int
    end: int
    seen: int
    types: Types

    def rows(self, x: mx.array) -> mx.array:
        """Return what is [batch, sequence, …] at these positions."""
        return x[:, self.start : self.end]

    def keys(self, x: mx.array) -> mx.array:
        """Return what is [batch, keys, …] as far as it is seen."""
        return x[:, : self.seen]

    def both(self, mask: mx.array) -> mx.array:
        """Return the part of a mask, of which one row or one column may stand for all."""
        rows = slice(None) if mask.shape[2] == 1 else slice(self.start, self.end)
        return mask[:, :, rows, : self.seen]


def _cut(causal: bool, types: Types, first: int) -> list[_Block]:
    """Return the blocks of a sequence: one, if it is short.

    Args:
        causal: whether the last position sees all keys, and each one before it one less.
        types: of the operands.
        first: number of the mask among them.
    """
    (b, s, h, _), t = types[0].shape, types[1].shape[1]
    is_long = b * h * s * t > LONG and not (causal and s > t)
    count = ROWS if is_long else max(s, 1)
    blocks = []
    for start in range(0, max(s, 1), count):
        end = min(start + count, s)
        seen = end + t - s if causal else t
        q, k = (
            type.with_shape((type.shape[0], size, *type.shape[2:]))
            for type, size in zip(types, (end - start, seen), strict=False)
        )
        masks = [_of_mask(mask, end - start, seen) for mask in types[first:]]
        blocks.append(_Block(start, end, seen, [q, k, *types[2:first], *masks]))
    return blocks


def _of_mask(mask: TensorType, rows: int, keys: int) -> TensorType:
    b, h, s, t = mask.shape
    return mask.with_shape((b, h, 1 if s == 1 else rows, 1 if t == 1 else keys))


def _after(others: list[mx.array], *arrays: mx.array) -> list[mx.array]:
    """Return arrays that are not there before others: a block waits until memory is free."""
    given = list(arrays)
    return mx.depends(given, others) if others else given


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
