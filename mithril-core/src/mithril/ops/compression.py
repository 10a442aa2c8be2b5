"""Marks the gradients whose sums over devices may be compressed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.rule import Rule, elementwise_rule


@register
@dataclass(frozen=True)
class MarkGradient(Op):
    """The operand, the gradient of a parameter, whose sum over devices stands next to it.

    It lets through what its operand is, partial sums, too, so that plans are as without it.

    Args:
        parameter: name of the parameter, by which patterns know it.
        owner: the input of the graph that it is; a stack may be cut into several.
        stacked: how many leading dimensions only stack layers.
        keeps_state: whether something of it is kept from step to step.
    """

    name: ClassVar[str] = "mark_gradient"
    has_kernel: ClassVar[bool] = False
    parameter: str
    owner: str = ""
    stacked: int = 0
    keeps_state: bool = False

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return list(cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return elementwise_rule(inputs, outputs[0], ((0,),))

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, 0)


__all__ = ["MarkGradient"]
