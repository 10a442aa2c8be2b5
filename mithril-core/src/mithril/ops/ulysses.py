"""Ulysses attention: where the sequence is split, heads are split in its place.

An all_to_all before gives each device all positions of some heads, one behind its part of the
sequence again (Jacobs et al., "DeepSpeed Ulysses", 2023). Nothing is communicated by the op: its
rule proposes the heads, and what arrives otherwise is moved there like any other value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from mithril.ir.op import Op, Types, register
from mithril.ir.rule import Rule
from mithril.ops.attention import Attention, AttentionGradient


class _SplitHeads(Op):
    """Heads are split, groups of them first, where values come split along a sequence."""

    has_kernel: ClassVar[bool] = False
    merges_keys: ClassVar[bool] = False

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        rule = super().rule(inputs, outputs)
        heads = tuple(factor for factor in ("h", "g", "r") if factor in rule.factors)
        return replace(rule, proposes={"s": heads, "t": heads})

    def refusal(self, inputs: Types, axis: str, count: int) -> str:
        heads, groups = inputs[0].shape[2], inputs[1].shape[2]
        shared = f" with {groups} of keys and values" if groups < heads else ""
        return (
            f"ulysses attention has {heads} heads{shared}, which cannot be split over '{axis}' "
            f"({count} devices) in place of the sequence; choose a number of heads that {count} "
            f"divides, or context_parallel='ring'"
        )


@register
@dataclass(frozen=True)
class UlyssesAttention(_SplitHeads, Attention):
    """Attention that trades a split of the sequence for one of the heads; see `Attention`."""

    name: ClassVar[str] = "ulysses_attention"

    def backward(self) -> Op:
        return UlyssesAttentionGradient(self.causal, self.scale)


@register
@dataclass(frozen=True)
class UlyssesAttentionGradient(_SplitHeads, AttentionGradient):
    """The cotangents of q, k, v of `UlyssesAttention`; see `AttentionGradient`."""

    name: ClassVar[str] = "ulysses_attention_gradient"


__all__ = ["UlyssesAttention", "UlyssesAttentionGradient"]
