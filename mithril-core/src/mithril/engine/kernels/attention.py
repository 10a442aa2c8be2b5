"""Kernels of attention: batched matrix products over [batch, groups], a part at a time.

All scores together may take far more room than the processor's cache; those of some heads, or of
some rows of a head, fit, and the passes over them (mask, exponential, sum) do not wait for memory.
A causal part of the rows needs only the keys up to its last row. The query heads of a group stand
below each other as rows, so that they share a product with their one key head.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mithril.engine.kernels.precision import accumulator
from mithril.engine.kernels.registry import Run, Types, kernel
from mithril.engine.kernels.rows import row_sum
from mithril.ops.attention import UNSEEN, Attention, AttentionGradient

BLOCK = 1 << 17
"""How many scores are worked on at a time, about."""
FEWEST_ROWS = 32
HEADS_FIRST, KEYS_LAST, SWAPPED = (0, 2, 1, 3), (0, 2, 3, 1), (0, 1, 3, 2)


class Part(NamedTuple):
    """Rows of some heads, `[batch, groups, :, rows]` of queries, and the keys they may see."""

    batch: slice
    groups: slice
    rows: slice
    keys: slice

    @property
    def queries(self) -> tuple[slice, ...]:
        """Index of [b, g, r, s, …]."""
        return (self.batch, self.groups, slice(None), self.rows)

    @property
    def heads(self) -> tuple[slice, ...]:
        """Index of [b, g, t, …]."""
        return (self.batch, self.groups, self.keys)


@kernel(Attention)
def attention(op: Attention, types: Types, xp: ModuleType) -> Run:
    """Scores, masked and exponentiated in place, then the weighted values."""
    (b, s, h, _), (_, _, groups, e) = types[0].shape, types[2].shape
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
    parts, hide = _parts(op.causal, types), _hide(op.causal, types, types[3:], xp)
    factor = wide.type(op.scale)
    add = row_sum(xp)

    def run(q: Any, k: Any, v: Any, *masks: Any) -> Any:
        q, k, v = (xp.asarray(x, dtype=wide) for x in (q, k, v))
        q, k, v = _rows(q, groups), k.transpose(HEADS_FIRST), v.transpose(HEADS_FIRST)
        out, statistic = xp.empty((b, s, h, e), dtype=dtype), xp.empty((b, h, s), dtype=wide)
        rows, lines = _rows(out, groups), statistic.reshape(b, groups, h // groups, s, 1)
        for part in parts:
            weights = _flat(q[part.queries] * factor) @ k[part.heads].transpose(SWAPPED)
            hide(weights, part, *masks)
            top = xp.max(weights, axis=-1, keepdims=True)
            if masks:
                top[top < UNSEEN] = 0
            weights -= top
            xp.exp(weights, out=weights)
            total = add(weights)
            if masks:
                total[total == 0] = 1
            seen = weights @ v[part.heads]
            seen /= total
            _put(seen, rows, part)
            _put(xp.log(total) + top, lines, part)
        return out, statistic

    return run


@kernel(AttentionGradient)
def attention_gradient(op: AttentionGradient, types: Types, xp: ModuleType) -> Run:
    """Probabilities are recomputed from log_sum_exp; five batched products."""
    (b, s, h, _), groups = types[0].shape, types[1].shape[2]
    wide, dtype = accumulator(types[0].dtype), types[0].dtype.numpy
    parts, hide = _parts(op.causal, types), _hide(op.causal, types, types[6:], xp)
    factor = wide.type(op.scale)
    add = row_sum(xp)

    def run(q: Any, k: Any, v: Any, out: Any, total: Any, g: Any, *masks: Any) -> Any:
        q, k, v, g = (xp.asarray(x, dtype=wide) for x in (q, k, v, g))
        along = _rows(add(g * out), groups)
        lines = total.reshape(b, groups, h // groups, s, 1)
        found = (xp.empty(q.shape, dtype=dtype), *(xp.zeros(x.shape, dtype=wide) for x in (k, v)))
        dq, (dk, dv) = _rows(found[0], groups), (x.transpose(HEADS_FIRST) for x in found[1:])
        q, g = _rows(q, groups), _rows(g, groups)
        k, v = k.transpose(HEADS_FIRST), v.transpose(HEADS_FIRST)
        for part in parts:
            query, given = _flat(q[part.queries] * factor), _flat(g[part.queries])
            weights = query @ k[part.heads].transpose(SWAPPED)
            hide(weights, part, *masks)
            weights -= _flat(lines[part.queries])
            xp.exp(weights, out=weights)
            dv[part.heads] += weights.transpose(SWAPPED) @ given
            slope = given @ v[part.heads].transpose(SWAPPED)
            slope -= _flat(along[part.queries])
            slope *= weights
            dk[part.heads] += slope.transpose(SWAPPED) @ query
            step = slope @ k[part.heads]
            step *= factor
            _put(step, dq, part)
        return tuple(xp.asarray(x, dtype=dtype) for x in found)

    return run


def _parts(causal: bool, types: Types) -> list[Part]:
    """Return the parts that are worked on one after another: whole heads, if one fits."""
    (b, s, h, _), (_, t, groups, _) = types[0].shape, types[1].shape
    repeats = h // groups
    at_once = max(1, BLOCK // max(1, repeats * s * t))
    some, batches = min(at_once, groups), max(1, at_once // groups)
    step = s if at_once > 1 else max(FEWEST_ROWS, BLOCK // max(1, repeats * t))
    return [
        Part(
            slice(i, i + batches),
            slice(j, j + some),
            slice(row, row + step),
            slice(min(row + step, s) + t - s if causal else t),
        )
        for i in range(0, b, batches)
        for j in range(0, groups, some)
        for row in range(0, s, max(1, step))
    ]


def _rows(x: Any, groups: int) -> Any:
    """Return [b, s, h, d] seen as [b, g, r, s, d]."""
    b, s, h, d = x.shape
    return x.reshape(b, s, groups, h // groups, d).transpose(0, 2, 3, 1, 4)


def _flat(x: Any) -> Any:
    """Return [b, g, r, s, d] as [b, g, r s, d]."""
    b, g, r, s, d = x.shape
    return x.reshape(b, g, r * s, d)


def _put(flat: Any, rows: Any, part: Part) -> None:
    """Write [b, g, r s, d] into its part of [b, g, r, s, d]."""
    target = rows[part.queries]
    target[...] = flat.reshape(target.shape)


def _hide(causal: bool, types: Types, masks: Types, xp: ModuleType) -> Callable[..., None]:
    """Return what masks the scores of a part, in place."""
    (_, s, h, _), (_, t, groups, _) = types[0].shape, types[1].shape
    repeats = h // groups
    unseen = ~np.tri(s, t, t - s, dtype=bool) if causal else None
    is_bool = bool(masks) and not masks[0].dtype.is_float

    def hide(scores: Any, part: Part, mask: Any = None) -> None:
        scores = scores.reshape(*scores.shape[:2], repeats, -1, scores.shape[-1])
        if mask is not None:
            here = _mask_of(mask, part, groups)
            if is_bool:
                np.copyto(scores, -np.inf, where=~here)
            else:
                scores += xp.asarray(here, dtype=scores.dtype)
        if unseen is not None:
            np.copyto(scores, -np.inf, where=unseen[part.rows, part.keys])

    return hide


def _mask_of(mask: Any, part: Part, groups: int) -> Any:
    """Return the part of a mask [b, h, s, t] (some sizes 1) as [b, g, r, s, t]."""
    b, h, s, t = mask.shape
    count = groups if h > 1 else 1
    mask = mask.reshape(b, count, h // count, s, t)
    wanted = (part.batch, part.groups, slice(None), part.rows, part.keys)
    return mask[tuple(x if n > 1 else slice(None) for x, n in zip(wanted, mask.shape, strict=True))]
