"""Attention between the positions of a sequence."""

from __future__ import annotations

from mithril.errors import ShapeError
from mithril.ir import Tensor
from mithril.models.definition import POSITIVE, POSITIVE_OR_NONE
from mithril.models.layer import layer
from mithril.models.layers.linear import affine
from mithril.models.shapes import require_features, require_rank
from mithril.models.tracing import layer_path, section
from mithril.ops import attention


@layer(
    parameters=tuple(
        f"{part}.{kind}" for part in ("q", "k", "v", "o") for kind in ("weight", "bias")
    ),
    weights=(("q.weight", "k.weight", "v.weight"), ("o.weight",)),
    checks={"num_heads": POSITIVE, "head_dim": POSITIVE_OR_NONE},
)
def MultiHeadAttention(  # noqa: N802
    input: Tensor, *, num_heads: int, head_dim: int | None = None, causal: bool = False
) -> Tensor:
    """Let every position gather from the others, in several heads (Vaswani et al., 2017).

    Parameters are `q.weight`, `k.weight`, `v.weight` (num_heads * head_dim, features), `o.weight`
    (features, num_heads * head_dim) and a bias beside each. A `weight_shard_spec` list gives the
    spec of q, k and v, then that of `o.weight`.

    Args:
        input: [batch, sequence, features], floats.
        num_heads: number of heads.
        head_dim: features of a head; features / num_heads by default.
        causal: whether a position sees only itself and those before it.

    Returns:
        [batch, sequence, features].

    Raises:
        ShapeError: the input has another rank or dtype, or head_dim is not given and the features
            do not divide among the heads.

    >>> MultiHeadAttention(num_heads=4, causal=True)
    MultiHeadAttention(num_heads=4, causal=True)
    """
    require_rank(input, ("batch", "sequence", "features"))
    require_features(input)
    batch, sequence, features = input.shape
    size = _head_dim(features, num_heads) if head_dim is None else head_dim
    heads = []
    for part in ("q", "k", "v"):
        with section(part):
            projected = affine(input, num_heads * size)
            heads.append(projected.reshape(batch, sequence, num_heads, size))
    mixed: Tensor = attention(*heads, causal=causal)
    with section("o"):
        return affine(mixed.reshape(batch, sequence, num_heads * size), features)


def _head_dim(features: int, num_heads: int) -> int:
    if features % num_heads:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {features} features among {num_heads} heads; "
            f"choose num_heads that divides {features}, or give head_dim"
        )
    return features // num_heads
