"""Attention as a function of tensors; an option says how it goes about a sequence that is split."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mithril.errors import OptionError, nearest
from mithril.ir.operand import Operand, apply
from mithril.ops.attention import Attention
from mithril.ops.ring import RingAttention
from mithril.ops.shape import reshape
from mithril.ops.ulysses import UlyssesAttention

CONTEXTS: Mapping[str | None, type[Attention]] = {
    None: Attention, "ring": RingAttention, "ulysses": UlyssesAttention,
}  # fmt: skip
"""The op for each value of `context_parallel`."""


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    mask: Any = None,
    causal: bool = False,
    scale: float | None = None,
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
        causal: position i sees positions up to i only, the ends of both sequences aligned.
        scale: factor on the scores, 1 / sqrt(head_dim) by default.
        context_parallel: what happens where the sequence is split over the mesh. None: it is
            gathered. `"ring"`: keys and values go round the devices (Liu et al., "Ring Attention",
            2023), balanced where causal (the zig-zag order; Brandon et al., "Striped Attention",
            2023). `"ulysses"`: the devices exchange the sequence for heads and back (Jacobs et
            al., "DeepSpeed Ulysses", 2023). All three compute the same.

    Returns:
        [batch, sequence, heads, value_dim], of the dtype of q.

    Raises:
        ShapeError: the shapes do not fit.
        OptionError: there is no such `context_parallel`.
        ShardingError: when planned: the heads cannot be exchanged for the sequence ("ulysses").

    >>> q, v = backend.ones((1, 2, 1, 4)), backend.array([2.0, 4.0]).reshape(1, 2, 1, 1)
    >>> attention(q, q, v, causal=True).numpy().ravel().tolist()
    [2.0, 3.0]
    """
    factor = 1.0 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    if context_parallel not in tuple(CONTEXTS):
        raise OptionError(
            f"attention has context_parallel={context_parallel!r}"
            f"{nearest(str(context_parallel), filter(None, CONTEXTS))}; choose 'ring', "
            f"'ulysses' or None"
        )
    op = CONTEXTS[context_parallel](bool(causal), factor)
    if mask is None:
        return apply(op, q, k, v)[0]
    if isinstance(mask, Operand) and mask.ndim < 4:
        mask = reshape(mask, (1,) * (4 - mask.ndim) + mask.shape)
    return apply(op, q, k, v, mask)[0]


__all__ = ["attention"]
