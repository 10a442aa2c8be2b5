"""Attention between the positions of a sequence."""

from __future__ import annotations

from mithril.errors import ShapeError, listing
from mithril.ir import Tensor
from mithril.models.definition import POSITIVE, POSITIVE_NUMBER, POSITIVE_OR_NONE, Check
from mithril.models.layer import layer
from mithril.models.layers.linear import affine
from mithril.models.shapes import require_features, require_rank
from mithril.models.trace_context import layer_path, section
from mithril.ops import attention
from mithril.ops import rope as rotate
from mithril.ops.context import CONTEXTS

_CONTEXT = Check(
    f"{listing(filter(None, CONTEXTS))} or None",
    lambda value: value is None or (isinstance(value, str) and value in CONTEXTS),
)
_ROPE = Check(
    "True, False or a positive number",
    lambda value: isinstance(value, bool) or POSITIVE_NUMBER.holds(value),
)


@layer(
    parameters=lambda bias: tuple(
        f"{part}.{kind}"
        for part in ("q", "k", "v", "o")
        for kind in (("weight", "bias") if bias else ("weight",))
    ),
    weights=(("q.weight", "k.weight", "v.weight"), ("o.weight",)),
    checks={
        "num_heads": POSITIVE, "num_kv_heads": POSITIVE_OR_NONE, "head_dim": POSITIVE_OR_NONE,
        "rope": _ROPE, "context_parallel": _CONTEXT,
    },
)  # fmt: skip
def MultiHeadAttention(  # noqa: N802
    input: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    head_dim: int | None = None,
    causal: bool = False,
    num_kv_heads: int | None = None,
    rope: bool | float = False,
    bias: bool = True,
    context_parallel: str | None = None,
) -> Tensor:
    """Let every position gather from the others, in several heads (Vaswani et al., 2017).

    Parameters are `q.weight` (num_heads * head_dim, features), `k.weight` and `v.weight`
    (num_kv_heads * head_dim, features), `o.weight` (features, num_heads * head_dim) and a bias
    beside each. A `weight_shard_spec` list gives the spec of q, k and v, then that of `o.weight`.

    Args:
        input: [batch, sequence, features], floats.
        mask: what a position (third dimension) sees of the others (fourth): a shape that broadcasts
            to [batch, heads, sequence, sequence], bools where true is seen, or floats added to the
            scores; need not be connected. Padding is hidden by bools [batch, 1, 1, sequence].
        num_heads: number of heads.
        head_dim: features of a head; features / num_heads by default.
        causal: whether a position sees only itself and those before it.
        num_kv_heads: number of key and value heads, each shared by a group of query heads
            (Ainslie et al., "GQA", 2023); num_heads by default.
        rope: whether queries and keys are rotated by their positions (Su et al., "RoFormer", 2021);
            a number is the base of the wavelengths, 10000 by default.
        bias: whether to add biases.
        context_parallel: what happens where the input comes split along its sequence. None: keys,
            values and queries are gathered. `"ring"`: each device keeps its queries, and keys and
            values go round (Liu et al., "Ring Attention", 2023), with causal work balanced by the
            zig-zag order (Brandon et al., "Striped Attention", 2023). `"ulysses"`: an all-to-all
            trades the sequence for heads, and one trades them back (Jacobs et al., "DeepSpeed
            Ulysses", 2023). The result is the same, also for lengths that do not divide.

    Returns:
        [batch, sequence, features].

    Raises:
        ShapeError: the input has another rank or dtype, head_dim is not given and the features do
            not divide among the heads, the heads do not divide among the key and value heads, or
            the mask does not broadcast or is of integers.
        ShardingError: when planned: `"ulysses"` with heads that cannot be split as the sequence is.

    >>> MultiHeadAttention(num_heads=4, causal=True)
    MultiHeadAttention(num_heads=4, causal=True)
    """
    require_rank(input, ("batch", "sequence", "features"))
    require_features(input)
    batch, sequence, features = input.shape
    size = _head_dim(features, num_heads) if head_dim is None else head_dim
    groups = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % groups:
        raise ShapeError(
            f"layer '{layer_path()}' cannot share {groups} key and value heads among {num_heads} "
            f"heads; choose num_kv_heads that divides {num_heads}"
        )
    base = 10000.0 if rope is True else float(rope)
    heads = []
    for part, count in (("q", num_heads), ("k", groups), ("v", groups)):
        with section(part):
            projected = affine(input, count * size, bias=bias)
            head = projected.reshape(batch, sequence, count, size)
            heads.append(rotate(head, base=base) if rope and part != "v" else head)
    if mask is not None and mask.ndim < 4:
        mask = mask.reshape(*(1,) * (4 - mask.ndim), *mask.shape)
    mixed: Tensor = attention(*heads, mask=mask, causal=causal, context_parallel=context_parallel)
    with section("o"):
        return affine(mixed.reshape(batch, sequence, num_heads * size), features, bias=bias)


def _head_dim(features: int, num_heads: int) -> int:
    if features % num_heads:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {features} features among {num_heads} heads; "
            f"choose num_heads that divides {features}, or give head_dim"
        )
    return features // num_heads


__all__ = ["MultiHeadAttention"]
