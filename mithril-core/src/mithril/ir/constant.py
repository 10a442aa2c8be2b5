"""The one op the builder itself needs: a scalar constant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mithril.ir.op import Cotangents, Op, Tensors, Types, register
from mithril.ir.rule import Rule
from mithril.types import DType, Scalar, TensorType, check_number


@register
@dataclass(frozen=True)
class Constant(Op):
    """A scalar known when the graph is built."""

    name: ClassVar[str] = "constant"
    value: Scalar
    dtype: DType

    def infer(self, inputs: Types) -> Types:
        check_number(self.value, self.dtype)
        return [TensorType((), self.dtype)]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return []

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return Rule({}, (), ((),))
