"""How many queries attention takes at a time: the same to kernels and to what predicts memory."""

from __future__ import annotations

from mithril.types import TensorType

FEWEST_ROWS = 32
"""Of fewer queries at a time a product is no faster than of so many."""


def count_rows_at_once(q: TensorType, k: TensorType, scores: int) -> int:
    """Return how many queries attention takes at a time, which computes few scores at a time.

    Args:
        q: [batch, queries, heads, size].
        k: [batch, keys, heads, size].
        scores: how many are computed at a time, about; 0 for all.

    Returns:
        A power of two, or all queries where there are not twice as many.

    >>> from mithril.types import DType, TensorType
    >>> q = TensorType((2, 2048, 8, 64), DType.float32)
    >>> count_rows_at_once(q, q, 3 << 19), count_rows_at_once(q, q, 1 << 28)
    (32, 2048)
    """
    (batch, queries, heads, _), keys = q.shape, k.shape[1]
    each = batch * heads * keys
    if not scores or not each:
        return queries
    rows = max(FEWEST_ROWS, 1 << max(0, (scores // each).bit_length() - 1))
    return queries if queries < 2 * rows else rows


__all__ = ["count_rows_at_once"]
