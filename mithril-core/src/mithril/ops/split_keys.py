"""Attention whose keys are split over devices: each meets its own, and results are merged.

Where queries are fewer than keys, as where one token meets a cache, far less is sent so than by
gathering keys and values. Each device computes an ordinary attention of its own keys; outputs are
weighted by the logarithms of their sums of exponentials (Dao et al., "FlashAttention", 2022) and
summed over the devices. The backward op has the statistic of all keys already: a device computes
what its own keys contribute, and the gradient of the queries is a partial sum.

What a query may not see gets `FLOOR` added to its score, so that a device of whose keys a query
sees none has a statistic that is finite, and so low that the others outweigh it.
"""

from __future__ import annotations

from typing import Any

from mithril.ir.op import Group, Op, Shard, Tensors
from mithril.ir.operand import apply
from mithril.ops.choice import greater_equal, less, logical_and
from mithril.ops.elementwise import cast
from mithril.ops.functions import exp, log
from mithril.ops.index import iota
from mithril.ops.reduce import accumulator
from mithril.ops.sequence_pieces import LINES, add_to_scores, hide_unseen
from mithril.ops.shape import concatenate, reshape, transpose

MERGED = "merged over all keys"


def attend_split_keys(op: Op, inputs: Tensors, shard: Shard, group: Group, causal: bool) -> Tensors:
    """Return output and statistic of queries over the keys of all devices.

    Args:
        op: the attention of a device's own keys, which hides nothing by itself.
        inputs: q, the device's part of k, v, and of a mask if there is one.
        shard: where that part lies.
        group: the devices that share the keys.
        causal: whether a query sees no later key, the ends of both sequences aligned.
    """
    q, k, v, *masks = inputs
    out, lines = apply(op, q, k, v, *hide_keys(inputs, 3, shard, causal))
    lines = transpose(lines, LINES)
    top = group.reduce(lines, "max", MERGED, (), (1,))
    weight = exp(lines - top)
    column = reshape(weight, (*weight.shape, 1))
    packed = concatenate([cast(out, lines.dtype) * column, column], 3)
    packed = group.reduce(packed, "sum", MERGED, (), (0, 1))
    size = out.shape[3]
    out, total = packed[..., :size] / packed[..., size:], packed[..., size]
    lines = top + log(total)
    if masks:  # without one, every row sees a key
        out, lines = hide_unseen(out, lines)
    return [cast(out, q.dtype), transpose(lines, LINES)]


def hide_keys(inputs: Tensors, first: int, shard: Shard, causal: bool) -> list[Any]:
    """Return what is added to the scores of a device's own keys, as a list of one, or of none.

    Args:
        inputs: q, the device's part of k, and further ones.
        first: where a mask is in them, if there is one.
        shard: where that part lies.
        causal: whether a query sees no later key, the ends of both sequences aligned.
    """
    q, k, *_ = inputs
    mask = inputs[first] if len(inputs) > first else None
    return add_to_scores(mask, _see(q, k, shard, causal), accumulator(q.dtype))


def _see(q: Any, k: Any, shard: Shard, causal: bool) -> Any:
    """Return where a query sees one of the device's own keys, [1, 1, s or 1, t]; None everywhere.

    Behind the device's keys there may be padding.
    """
    rows, length = q.shape[1], k.shape[1]
    at = iota(q, (1, 1, 1, length), 3)
    count = shard.count("t")
    seen = None if count is None else less(at, count)
    if causal:
        behind = iota(q, (1, 1, rows, 1), 2) + (shard.whole("t") - rows)
        earlier = greater_equal(behind, at + shard.offset("t"))
        seen = earlier if seen is None else logical_and(seen, earlier)
    return seen


__all__: list[str] = []
