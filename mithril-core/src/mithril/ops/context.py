"""Attention as a function of tensors; an option says how it goes about a sequence that is split.

The op takes one mask. What hides and what is added come from several places; here they become one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from typing import Any

from mithril.errors import OptionError, ShapeError, listing, nearest
from mithril.ir.operand import apply
from mithril.ops.all_gather_attention import AllGatherAttention
from mithril.ops.attention import Attention, attend, check_mask
from mithril.ops.choice import less, logical_and, logical_not, where
from mithril.ops.collective import AllGather
from mithril.ops.elementwise import cast
from mithril.ops.index import iota
from mithril.ops.reduce import accumulator
from mithril.ops.ring import RingAttention
from mithril.ops.shape import reshape
from mithril.ops.ulysses import UlyssesAttention
from mithril.types import DType

CONTEXTS: Mapping[str | None, type[Attention]] = {
    None: Attention, "ring": RingAttention, "ulysses": UlyssesAttention,
    AllGather.name: AllGatherAttention,
}  # fmt: skip
"""The op for each value of `context_parallel`."""


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    bias: Any = None,
    key_padding_mask: Any = None,
    causal: bool = False,
    sliding_window: int | None = None,
    scale: float | None = None,
    soft_cap: float | None = None,
    context_parallel: str | None = None,
) -> Any:
    """Return scaled dot-product attention per head.

    Vaswani et al., "Attention Is All You Need", 2017; with fewer heads in k and v than in q,
    Ainslie et al., "GQA", 2023: each of them serves `heads / groups` neighbouring heads of q.
    16-bit floats are computed in float32.

    Args:
        q: [batch, sequence, heads, head_dim], of a float dtype.
        k: [batch, other sequence, groups, head_dim]; groups divides heads.
        v: [batch, other sequence, groups, value_dim].
        mask: broadcast to [batch, heads, sequence, other sequence]: booleans, true where a position
            may be seen, or floats, which are added to the scaled scores. A row that sees nothing
            gives zeros; so does one whose scores are all below -1e28.
        bias: floats that are added to the scores besides a mask, broadcast likewise.
        key_padding_mask: booleans [batch, other sequence], true where a key is padding, which
            nobody sees, as in PyTorch.
        causal: position i sees positions up to i only, the ends of both sequences aligned.
        sliding_window: a position sees only those less than this many positions away, itself
            included (Beltagy et al., "Longformer", 2020), the ends of both sequences aligned.
        scale: factor on the scores, 1 / sqrt(head_dim) by default.
        soft_cap: scores are bent to stay below it, soft_cap * tanh(score / soft_cap), before what
            is added and hidden (Gemma team, "Gemma 2", 2024).
        context_parallel: what happens where the sequence is split over the mesh. None: it is
            gathered. `"ring"`: keys and values go round the devices (Liu et al., "Ring Attention",
            2023), balanced where causal (the zig-zag order; Brandon et al., "Striped Attention",
            2023). `"ulysses"`: the devices exchange the sequence for heads and back (Jacobs et
            al., "DeepSpeed Ulysses", 2023). `"all_gather"`: keys and values are gathered, queries
            stay split, balanced where causal as in a ring (Llama team, "The Llama 3 Herd of
            Models", 2024). All four compute the same.

    Returns:
        [batch, sequence, heads, value_dim], of the dtype of q.

    Raises:
        ShapeError: the shapes do not fit, or a mask of two dimensions could be one of padding.
        OptionError: there is no such `context_parallel`, or it cannot go with a `soft_cap`.
        ShardingError: when planned: the heads cannot be exchanged for the sequence ("ulysses").

    >>> q, v = backend.ones((1, 2, 1, 4)), backend.array([2.0, 4.0]).reshape(1, 2, 1, 1)
    >>> attention(q, q, v, causal=True).numpy().ravel().tolist()
    [2.0, 3.0]
    """
    if context_parallel not in tuple(CONTEXTS):
        raise OptionError(
            f"attention has context_parallel={context_parallel!r}"
            f"{nearest(str(context_parallel), filter(None, CONTEXTS))}; choose "
            f"{listing(filter(None, CONTEXTS))} or None"
        )
    op = CONTEXTS[context_parallel](bool(causal), 1.0 if scale is None else float(scale))
    if soft_cap is not None and context_parallel is not None:
        raise OptionError(
            f"attention has soft_cap={soft_cap} and context_parallel='{context_parallel}', whose "
            f"blocks are computed by kernels without one; remove one of them"
        )
    op.infer([x.type for x in (q, k, v)])  # what follows can count on the shapes
    if scale is None:
        op = replace(op, scale=1.0 / math.sqrt(q.shape[3]))
    operands = [q, k, v]
    seen = _collect_seen(q, k, mask, key_padding_mask, sliding_window, causal)
    operands += _merge(q, seen, _collect_added(q, k, mask, bias))
    if soft_cap is not None:
        out, _ = attend(operands, causal=op.causal, scale=op.scale, soft_cap=float(soft_cap))
        return cast(out, q.dtype)
    return apply(op, *operands)[0]


def _collect_seen(
    q: Any, k: Any, mask: Any, padding: Any, window: int | None, causal: bool
) -> list[Any]:
    """Return the booleans of four dimensions that say what is seen."""
    found = []
    if mask is not None and mask.dtype == DType.bool_:
        found.append(_four_dimensions(q, k, mask))
    if padding is not None:
        batch_and_keys = (q.shape[0], k.shape[1])
        if padding.shape != batch_and_keys or padding.dtype != DType.bool_:
            raise ShapeError(
                f"attention has key_padding_mask {padding.type}; give booleans "
                f"{list(batch_and_keys)}, [batch, keys], true where a key is padding"
            )
        found.append(reshape(logical_not(padding), (batch_and_keys[0], 1, 1, batch_and_keys[1])))
    if window is not None:
        found += _see_near(q, k, window, causal)
    return found


def _see_near(q: Any, k: Any, window: int, causal: bool) -> list[Any]:
    """Return where a key is less than `window` positions away; nothing where all are."""
    s, t = q.shape[1], k.shape[1]
    if window < 1:
        raise OptionError(
            f"attention has sliding_window={window}; give at least 1, which is the position itself"
        )
    if window >= (t if causal else max(s, t)):
        return []
    behind = iota(q, (1, 1, s, t), 2) + (t - s) - iota(q, (1, 1, s, t), 3)
    near = less(behind, window)
    return [near if causal else logical_and(near, less(-behind, window))]


def _collect_added(q: Any, k: Any, mask: Any, bias: Any) -> list[Any]:
    """Return the floats of four dimensions that are added to scores."""
    found = [] if mask is None or mask.dtype == DType.bool_ else [_four_dimensions(q, k, mask)]
    if bias is None:
        return found
    if not bias.dtype.is_float:
        raise ShapeError(
            f"attention has a bias {bias.type}; give floats, which are added to the scores, and "
            f"booleans as a mask"
        )
    return [*found, _fit(q, k, bias)]


def _four_dimensions(q: Any, k: Any, mask: Any) -> Any:
    """Return a mask as four dimensions; one that may be of padding is refused."""
    (b, s, h, _), t = q.shape, k.shape[1]
    if mask.shape == (b, t) and b > 1 and b == s:
        raise ShapeError(
            f"attention cannot tell whether mask {mask.type} is [batch, keys] or [queries, keys]; "
            f"give padding as key_padding_mask, true where a key is padding, and a mask of queries "
            f"and keys as [1, {s}, {t}]"
        )
    if mask.shape == (b, t) and b not in (1, s):
        raise ShapeError(
            f"attention has scores {[b, h, s, t]} and a mask {mask.type}, which is [batch, keys]; "
            f"give padding as key_padding_mask, true where a key is padding"
        )
    return _fit(q, k, mask)


def _fit(q: Any, k: Any, mask: Any) -> Any:
    """Return what hides or is added as four dimensions, which are those of the scores or 1."""
    if mask.ndim < 4:
        mask = reshape(mask, (1,) * (4 - mask.ndim) + mask.shape)
    (b, s, h, _), t = q.shape, k.shape[1]
    check_mask(mask.type, (b, h, s, t))
    return mask


def _merge(q: Any, seen: list[Any], added: list[Any]) -> list[Any]:
    """Return the one mask that hides and adds all of it, in a list; nothing of nothing."""
    if len(added) > 1:
        added = [cast(x, accumulator(q.dtype)) for x in added]
        added = [reduce(lambda x, y: x + y, added)]
    shown = [reduce(logical_and, seen)] if seen else []
    if shown and added:
        return [where(shown[0], added[0], -math.inf)]
    return shown or added


__all__ = ["attention"]
