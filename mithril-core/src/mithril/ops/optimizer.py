"""The update of an optimiser as one op: AdamW.

As smaller ops an update is a dozen passes over each parameter. As one op it is one pass where an
engine has a kernel for it, over many parameters at once where the engine gathers them; elsewhere it
expands into its formula. Every element is updated by itself, so parameter, gradient and moments
are split alike, whichever way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mithril.errors import OptionError, ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, Operand, apply
from mithril.ir.rule import Rule, elementwise_rule
from mithril.ops.elementwise import cast, meet
from mithril.ops.expansion import gradient_by_expansion
from mithril.ops.functions import sqrt
from mithril.ops.numbers import expm1
from mithril.ops.reduce import accumulator
from mithril.types import DType, TensorType, promote

FLOPS = 16
"""Of an update of one element."""


@register
@dataclass(frozen=True)
class AdamWStep(Op):
    """One update of AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019).

    Operands (parameter, gradient, first moment, second moment, learning rate, count), the last two
    scalars; results (parameter, first moment, second moment), each of the type of its operand.

    Args:
        b1: how much of the first moment is kept.
        b2: how much of the second.
        eps: added to the root of the second moment.
        weight_decay: how much of the parameter is taken off, times the learning rate.
        in_place: operands that are given up, and that nobody reads later, so that an engine may
            write into their memory. It is set when a program is lowered; see `engine.reuse`.
    """

    name: ClassVar[str] = "adamw_step"
    overwrites: ClassVar[tuple[tuple[int, int], ...]] = ((0, 0), (2, 1), (3, 2))
    b1: float
    b2: float
    eps: float
    weight_decay: float
    in_place: tuple[int, ...] = ()

    def infer(self, inputs: Types) -> Types:
        parameter, gradient, first, second, rate, count = inputs
        tensors = [parameter, gradient, first, second]
        if any(t.shape != parameter.shape or not t.dtype.is_float for t in tensors):
            raise ShapeError(
                f"adamw_step takes parameter, gradient and moments of floats of one shape, not "
                f"{_listing(tensors)}; give each the shape of the parameter"
            )
        if rate.rank or not rate.dtype.is_float or count.rank or count.dtype is DType.bool_:
            raise ShapeError(
                f"adamw_step takes a learning rate and a count that are scalars, a float and a "
                f"number, not {_listing([rate, count])}; give one of each for all elements"
            )
        return [parameter, first, second]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return gradient_by_expansion(self, inputs, cotangents)

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return elementwise_rule(inputs, outputs[0], results=3)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(FLOPS * inputs[0].size, super().cost(inputs, outputs).bytes)

    def reuse(self, operands: Sequence[int]) -> AdamWStep:
        return replace(self, in_place=tuple(operands))

    def expand(self, inputs: Tensors) -> Tensors:
        wide = accumulator(promote(inputs[0].dtype, inputs[2].dtype))
        p, g, m, v, rate, count = (cast(x, wide) for x in inputs)
        # With c = sqrt(1 - b2^t): (m / a) / (sqrt(v) / c + eps) = m c / a / (sqrt(v) + c eps).
        root = sqrt(_sum_of_weights(self.b2, count))
        scale = rate * root / _sum_of_weights(self.b1, count)
        m = m + (1.0 - self.b1) * (g - m)
        # As no square stands for itself, no compiler puts one into memory that a norm needs, too.
        v = self.b2 * v + (1.0 - self.b2) * g * g
        p = p * (1.0 - rate * self.weight_decay) - m * scale / (sqrt(v) + root * self.eps)
        return [cast(x, inputs[i].dtype) for x, i in ((p, 0), (m, 2), (v, 3))]


def _sum_of_weights(b: float, count: Any) -> Any:
    """Return 1 - b ** count: what the weights of `count` terms of a moment add up to."""
    return -expm1(count * math.log(b)) if b else count * 0.0 + 1.0


def adamw_step(
    parameter: AnyOperand,
    gradient: AnyOperand,
    first: AnyOperand,
    second: AnyOperand,
    learning_rate: AnyOperand | float,
    count: AnyOperand | float,
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> tuple[AnyOperand, AnyOperand, AnyOperand]:
    """Return a parameter and its moments after one update of AdamW, or of Adam without decay.

    With g the gradient, m and v the moments, r the learning rate and t the count:
    m' = b1 m + (1 - b1) g, v' = b2 v + (1 - b2) g g, and the parameter loses
    r (weight_decay p + (m' / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps)).
    Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019; Kingma and Ba, "Adam",
    2015. As `torch.optim.AdamW` and `optax.adamw` compute it.

    Args:
        parameter: floats of any shape.
        gradient: of its shape, of any float dtype.
        first: the first moment, of its shape; zeros at first.
        second: the second moment, of its shape; zeros at first.
        learning_rate: a scalar, or a number.
        count: which update this is, from 1 on: a scalar, or a number.
        b1: how much of the first moment is kept, from 0 to less than 1.
        b2: how much of the second moment is kept, from 0 to less than 1.
        eps: added to the root of the second moment, at least 0.
        weight_decay: how much of the parameter is taken off, times the learning rate; 0 is Adam.

    Returns:
        The new parameter and moments, of the types of the old ones. It is computed in float32, or
        float64 if parameter or moments are of it.

    Raises:
        OptionError: a number is out of its range.
        ShapeError: shapes differ, or an operand is not of floats.

    >>> p, g = backend.array([1.0, -2.0]), backend.array([0.5, 0.1])
    >>> new, first, second = adamw_step(p, g, p * 0.0, p * 0.0, 0.1, 1)
    >>> new.numpy().round(4), first.numpy().round(4)
    (array([ 0.9, -2.1], dtype=float32), array([0.05, 0.01], dtype=float32))
    """
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise OptionError(f"adamw_step has {name}={value}; give at least 0 and less than 1")
    for name, value in (("eps", eps), ("weight_decay", weight_decay)):
        if not 0 <= value < math.inf:
            raise OptionError(f"adamw_step has {name}={value}; give a number of at least 0")
    op = AdamWStep(float(b1), float(b2), float(eps), float(weight_decay))
    wide = accumulator(promote(parameter.dtype, first.dtype))
    rate, number = (_take_scalar(x, parameter, wide) for x in (learning_rate, count))
    new, *moments = apply(op, parameter, gradient, first, second, rate, number)
    return new, moments[0], moments[1]


def _take_scalar(x: Any, like: Operand, dtype: DType) -> Any:
    """Return a number as a scalar of a dtype; a tensor as it is."""
    if isinstance(x, Operand) and not x.is_number:
        return x
    return meet(x, like._number(0.0, dtype))[0]


def _listing(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


__all__ = ["AdamWStep", "adamw_step"]
