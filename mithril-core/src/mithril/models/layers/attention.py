"""Attention between the positions of a sequence, or of two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mithril.errors import GraphError, OptionError, ShapeError, listing
from mithril.ir import Tensor
from mithril.models.definition import POSITIVE, POSITIVE_NUMBER, POSITIVE_OR_NONE, Check
from mithril.models.initializers import Constant
from mithril.models.layer import layer
from mithril.models.layers.linear import affine
from mithril.models.shapes import require_features, require_rank
from mithril.models.trace_context import layer_path, parameter, section
from mithril.ops import attention, layer_norm, rms_norm
from mithril.ops import rope as rotate
from mithril.ops.context import CONTEXTS
from mithril.ops.rope_scaling import read_scaling

PARTS = ("q", "k", "v", "o")
"""The projections: of queries, keys and values, and of what comes out."""
_NORMS = {"rms": ("weight",), "layer": ("weight", "bias")}
_CONTEXT = Check(
    f"{listing(filter(None, CONTEXTS))} or None",
    lambda value: value is None or (isinstance(value, str) and value in CONTEXTS),
)
_ROPE = Check(
    "True, False or a positive number",
    lambda value: isinstance(value, bool) or POSITIVE_NUMBER.holds(value),
)
_BIAS = Check(
    f"True, False, or a tuple of {listing(PARTS)}",
    lambda value: (
        isinstance(value, bool)
        or (isinstance(value, tuple | list) and all(part in PARTS for part in value))
    ),
)
_NORM = Check("'rms', 'layer' or None", lambda value: value in (None, *_NORMS))
_NUMBER_OR_NONE = Check(
    "a positive number or None", lambda value: value is None or POSITIVE_NUMBER.holds(value)
)


def _scaling_is_read(value: Any) -> bool:
    read_scaling(value)  # says itself what is wrong
    return True


_SCALING = Check("a mapping or None", _scaling_is_read)


def _parameters(bias: bool | tuple[str, ...], qk_norm: str | None) -> list[str]:
    names = [
        f"{part}.{kind}"
        for part in PARTS
        for kind in (("weight", "bias") if _has_bias(bias, part) else ("weight",))
    ]
    kinds = _NORMS[qk_norm] if qk_norm else ()
    return names + [f"{part}_norm.{kind}" for part in ("q", "k") for kind in kinds]


@layer(
    parameters=_parameters,
    weights=(("q.weight", "k.weight", "v.weight"), ("o.weight",)),
    checks={
        "num_heads": POSITIVE, "num_kv_heads": POSITIVE_OR_NONE, "head_dim": POSITIVE_OR_NONE,
        "value_dim": POSITIVE_OR_NONE, "rope": _ROPE, "rope_scaling": _SCALING, "bias": _BIAS,
        "context_parallel": _CONTEXT, "qk_norm": _NORM, "scale": _NUMBER_OR_NONE,
        "soft_cap": _NUMBER_OR_NONE, "sliding_window": POSITIVE_OR_NONE,
    },
)  # fmt: skip
def MultiHeadAttention(  # noqa: N802
    input: Tensor,
    mask: Tensor | None = None,
    key: Tensor | None = None,
    value: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    attention_bias: Tensor | None = None,
    positions: Tensor | None = None,
    key_positions: Tensor | None = None,
    *,
    num_heads: int,
    head_dim: int | None = None,
    causal: bool = False,
    num_kv_heads: int | None = None,
    rope: bool | float = False,
    bias: bool | tuple[str, ...] = True,
    context_parallel: str | None = None,
    value_dim: int | None = None,
    scale: float | None = None,
    qk_norm: str | None = None,
    rope_scaling: Mapping[str, Any] | None = None,
    soft_cap: float | None = None,
    sliding_window: int | None = None,
) -> Tensor:
    """Let every position gather from the others, in several heads (Vaswani et al., 2017).

    Parameters are `q.weight` (num_heads * head_dim, features), `k.weight` (num_kv_heads * head_dim,
    features of the keys), `v.weight` (num_kv_heads * value_dim, features of the values), `o.weight`
    (features, num_heads * value_dim) and a bias beside each; with `qk_norm` `q_norm.weight` and
    `k_norm.weight` (head_dim,), starting at 1, and biases of "layer", starting at 0. A
    `weight_shard_spec` list gives the spec of q, k and v, then that of `o.weight`.

    All inputs but the first need not be connected.

    Args:
        input: [batch, sequence, features], floats: what the queries are made of.
        mask: what a position (third dimension) sees of the others (fourth): a shape that broadcasts
            to [batch, heads, sequence, other], bools where true is seen, or floats added to the
            scores. Padding is hidden by `key_padding_mask`.
        key: [batch, other, key features], what keys are made of (cross-attention); the input by
            default.
        value: [batch, other, value features], what values are made of; `key` by default.
        key_padding_mask: [batch, other], bools, true where a key is padding, as in PyTorch.
        attention_bias: floats added to the scores besides a mask, broadcast likewise.
        positions: [sequence] or [batch, sequence], integers by which `rope` turns queries, and keys
            of the same sequence; 0, 1, … by default. What is causal goes by places, not by these.
        key_positions: [other] or [batch, other], likewise for keys of another sequence.
        num_heads: number of heads.
        head_dim: features of a query or key in a head; features / num_heads by default.
        causal: whether a position sees only itself and those before it.
        num_kv_heads: number of key and value heads, each shared by a group of query heads
            (Ainslie et al., "GQA", 2023); num_heads by default.
        rope: whether queries and keys are rotated by their positions (Su et al., "RoFormer", 2021);
            a number is the base of the wavelengths, 10000 by default.
        bias: whether to add biases, or to which of the projections: ("q", "k", "v").
        context_parallel: what happens where the input comes split along its sequence. None: keys,
            values and queries are gathered. `"ring"`: each device keeps its queries, and keys and
            values go round (Liu et al., "Ring Attention", 2023), with causal work balanced by the
            zig-zag order (Brandon et al., "Striped Attention", 2023). `"ulysses"`: an all-to-all
            trades the sequence for heads, and one trades them back (Jacobs et al., "DeepSpeed
            Ulysses", 2023). `"all_gather"`: keys and values are gathered, each device keeps its
            queries, balanced as in a ring (Llama team, "The Llama 3 Herd of Models", 2024). The
            result is the same, also for lengths that do not divide.
        value_dim: features of a value in a head; head_dim by default.
        scale: factor on the scores; 1 / sqrt(head_dim) by default.
        qk_norm: "rms" or "layer": each query and key is brought to a common scale, as by RMSNorm or
            LayerNorm, before it is rotated (Dehghani et al., "ViT-22B", 2023).
        rope_scaling: how `rope` reaches longer sequences, as in the configurations of transformers:
            {"rope_type": "linear", "factor": 4.0}, or "llama3" or "yarn" with their numbers (see
            `mithril.ops.rope`).
        soft_cap: bends scores to stay below it, soft_cap * tanh(score / soft_cap) (Gemma 2, 2024).
        sliding_window: a position sees only those less than this many positions away, itself
            included.

    Returns:
        [batch, sequence, features].

    Raises:
        GraphError: `value` is connected without `key`, or positions that nothing uses are.
        OptionError: an option has no effect without another one, or rope_scaling is wrong.
        ShapeError: an input has another rank or dtype, head_dim is not given and the features do
            not divide among the heads, the heads do not divide among the key and value heads, a
            mask does not broadcast or is of integers, or it could be one of padding: [batch, other]
            where batch and sequence are equal.
        ShardingError: when planned: `"ulysses"` with heads that cannot be split as the sequence is.

    >>> MultiHeadAttention(num_heads=4, causal=True)
    MultiHeadAttention(num_heads=4, causal=True)
    """
    _check_sources(input, key, value)
    _check_rope(rope, rope_scaling, positions, key, key_positions)
    batch, sequence, features = input.shape
    size = _head_dim(features, num_heads) if head_dim is None else head_dim
    groups = num_heads if num_kv_heads is None else num_kv_heads
    if num_heads % groups:
        raise ShapeError(
            f"layer '{layer_path()}' cannot share {groups} key and value heads among {num_heads} "
            f"heads; choose num_kv_heads that divides {num_heads}"
        )
    keys = input if key is None else key
    values = keys if value is None else value
    wide = size if value_dim is None else value_dim
    turn = _rotation(rope, rope_scaling)
    heads = []
    for part, source, count, width, at in (
        ("q", input, num_heads, size, positions),
        ("k", keys, groups, size, positions if key is None else key_positions),
        ("v", values, groups, wide, None),
    ):
        with section(part):
            projected = affine(source, count * width, bias=_has_bias(bias, part))
            head = projected.reshape(*source.shape[:2], count, width)
        if qk_norm and part != "v":
            head = _normalize(head, qk_norm, part)
        with section(part):
            heads.append(turn(head, at) if turn and part != "v" else head)
    mixed: Tensor = attention(
        *heads,
        mask=mask,
        bias=attention_bias,
        key_padding_mask=key_padding_mask,
        causal=causal,
        sliding_window=sliding_window,
        scale=scale,
        soft_cap=soft_cap,
        context_parallel=context_parallel,
    )
    with section("o"):
        mixed = mixed.reshape(batch, sequence, num_heads * wide)
        return affine(mixed, features, bias=_has_bias(bias, "o"))


def _has_bias(bias: bool | tuple[str, ...], part: str) -> bool:
    return bias if isinstance(bias, bool) else part in bias


def _rotation(
    rope: bool | float, scaling: Mapping[str, Any] | None
) -> Callable[[Tensor, Tensor | None], Tensor] | None:
    """Return what rotates queries or keys by positions; None without rope."""
    base = 10000.0 if rope is True else float(rope)
    return partial(rotate, base=base, scaling=scaling) if rope else None


def _normalize(head: Tensor, kind: str, part: str) -> Tensor:
    """Return the queries or keys of each head at a common scale."""
    size = head.shape[-1:]
    with section(f"{part}_norm"):
        gain = parameter("weight", size, Constant(1.0))
        if kind == "rms":
            scaled: Tensor = rms_norm(head, gain)
        else:
            scaled = layer_norm(head, gain, parameter("bias", size, Constant(0.0)))
    return scaled


def _check_sources(input: Tensor, key: Tensor | None, value: Tensor | None) -> None:
    for source, name in ((input, "sequence"), (key, "other"), (value, "other")):
        if source is not None:
            require_rank(source, ("batch", name, "features"))
            require_features(source)
    if key is None:
        if value is not None:
            raise GraphError(
                f"layer '{layer_path()}' has value connected and not key, so that values would "
                f"belong to no keys; connect key"
            )
        return
    for source, name in ((key, "key"), (key if value is None else value, "value")):
        if source.shape[:2] != (input.shape[0], key.shape[1]):
            raise ShapeError(
                f"layer '{layer_path()}' has input {input.type}, key {key.type} and {name} "
                f"{source.type}; batches must be equal, and keys as many as values"
            )


def _check_rope(
    rope: bool | float,
    scaling: Mapping[str, Any] | None,
    positions: Tensor | None,
    key: Tensor | None,
    key_positions: Tensor | None,
) -> None:
    if scaling is not None and not rope:
        raise OptionError(
            f"layer '{layer_path()}' has rope_scaling and no rope that it could be for; give "
            f"rope=True, or remove it"
        )
    if not rope and (positions is not None or key_positions is not None):
        raise GraphError(
            f"layer '{layer_path()}' has positions connected, which only rope looks at; give "
            f"rope=True, or disconnect them"
        )
    if key is None and key_positions is not None:
        raise GraphError(
            f"layer '{layer_path()}' has key_positions connected and not key; positions are those "
            f"of the keys, too, where both are of one sequence"
        )


def _head_dim(features: int, num_heads: int) -> int:
    if features % num_heads:
        raise ShapeError(
            f"layer '{layer_path()}' cannot divide {features} features among {num_heads} heads; "
            f"choose num_heads that divides {features}, or give head_dim"
        )
    return features // num_heads


__all__ = ["MultiHeadAttention"]
