"""Elementwise ops: arithmetic, comparison, logic and functions, with NumPy broadcasting.

Most classes below differ in a line or two: the dtype rule and the gradient. Operands of different
dtypes are promoted by the functions that build the ops, so an op itself sees equal dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mithril.errors import ShapeError
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, Operand, apply_one
from mithril.ir.rule import Rule, elementwise_rule
from mithril.types import DType, Scalar, Shape, TensorType, as_dtype, promote


@dataclass(frozen=True)
class Elementwise(Op):
    """Base of ops that work element by element; `linear` lists linear groups of operands."""

    linear: ClassVar[tuple[tuple[int, ...], ...]] = ()
    flops: ClassVar[int] = 1

    def infer(self, inputs: Types) -> Types:
        shape = broadcast_shape([t.shape for t in inputs], self.name)
        return [TensorType(shape, self.result_dtype([t.dtype for t in inputs]))]

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        """Return the result dtype; by default that of the operands, which must be equal."""
        if len(set(dtypes)) > 1:
            raise ShapeError(f"op '{self.name}' meets dtypes {', '.join(dtypes)}; cast one side")
        return dtypes[0]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return elementwise_rule(inputs, outputs[0], self.linear)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        moved = sum(t.nbytes for t in (*inputs, *outputs))
        return Cost(self.flops * outputs[0].size, moved)


@dataclass(frozen=True)
class FloatOnly(Elementwise):
    """An elementwise function of floating-point numbers."""

    flops: ClassVar[int] = 8

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if not dtypes[0].is_float:
            raise ShapeError(f"op '{self.name}' needs a float dtype, not {dtypes[0]}; cast it first")
        return Elementwise.result_dtype(self, dtypes)


@dataclass(frozen=True)
class Comparison(Elementwise):
    """An elementwise relation; the result is bool and no gradient flows."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        Elementwise.result_dtype(self, dtypes)
        return DType.bool_

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None] * len(inputs)


# ------------------------------------------------------------------ arithmetic


@register
@dataclass(frozen=True)
class Add(Elementwise):
    """x + y."""

    name: ClassVar[str] = "add"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = _given(cotangents), *inputs
        return [sum_to(g, x.shape), sum_to(g, y.shape)]


@register
@dataclass(frozen=True)
class Subtract(Elementwise):
    """x - y."""

    name: ClassVar[str] = "subtract"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0, 1),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = _given(cotangents), *inputs
        return [sum_to(g, x.shape), sum_to(-g, y.shape)]


@register
@dataclass(frozen=True)
class Multiply(Elementwise):
    """x * y."""

    name: ClassVar[str] = "multiply"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,), (1,))

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = _given(cotangents), *inputs
        return [sum_to(g * y, x.shape), sum_to(g * x, y.shape)]


@register
@dataclass(frozen=True)
class Divide(FloatOnly):
    """x / y for floats."""

    name: ClassVar[str] = "divide"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    flops: ClassVar[int] = 1

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = _given(cotangents), *inputs
        return [sum_to(g / y, x.shape), sum_to(-g * outputs[0] / y, y.shape)]


@register
@dataclass(frozen=True)
class Power(FloatOnly):
    """x ** y for floats."""

    name: ClassVar[str] = "power"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, x, y = _given(cotangents), *inputs
        safe = where(x > 0.0, x, 1.0)  # d/dy is 0 where x <= 0, as in JAX and PyTorch at x = 0
        return [
            sum_to(g * y * power(x, y - 1.0), x.shape),
            sum_to(where(x > 0.0, g * outputs[0] * log(safe), 0.0), y.shape),
        ]


@register
@dataclass(frozen=True)
class Maximum(Elementwise):
    """The larger of x and y; where they are equal the gradient is halved between them."""

    name: ClassVar[str] = "maximum"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, y = inputs
        return _choice_gradient(_given(cotangents), x, y, x > y)


@register
@dataclass(frozen=True)
class Minimum(Elementwise):
    """The smaller of x and y; where they are equal the gradient is halved between them."""

    name: ClassVar[str] = "minimum"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x, y = inputs
        return _choice_gradient(_given(cotangents), x, y, x < y)


@register
@dataclass(frozen=True)
class Negate(Elementwise):
    """-x."""

    name: ClassVar[str] = "negate"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [-_given(cotangents)]


# ------------------------------------------------------------------ functions


@register
@dataclass(frozen=True)
class Exp(FloatOnly):
    """e ** x."""

    name: ClassVar[str] = "exp"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [_given(cotangents) * outputs[0]]


@register
@dataclass(frozen=True)
class Log(FloatOnly):
    """The natural logarithm of x."""

    name: ClassVar[str] = "log"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [_given(cotangents) / inputs[0]]


@register
@dataclass(frozen=True)
class Sqrt(FloatOnly):
    """The square root of x."""

    name: ClassVar[str] = "sqrt"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [_given(cotangents) * 0.5 / outputs[0]]


@register
@dataclass(frozen=True)
class Rsqrt(FloatOnly):
    """1 / sqrt(x)."""

    name: ClassVar[str] = "rsqrt"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [_given(cotangents) * -0.5 * outputs[0] / inputs[0]]


@register
@dataclass(frozen=True)
class Tanh(FloatOnly):
    """The hyperbolic tangent of x."""

    name: ClassVar[str] = "tanh"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [_given(cotangents) * (1.0 - outputs[0] * outputs[0])]


@register
@dataclass(frozen=True)
class Erf(FloatOnly):
    """The error function of x."""

    name: ClassVar[str] = "erf"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        x = inputs[0]
        return [_given(cotangents) * (2.0 / math.sqrt(math.pi)) * exp(-x * x)]


@register
@dataclass(frozen=True)
class Abs(Elementwise):
    """The magnitude of x; the gradient at 0 is 0."""

    name: ClassVar[str] = "abs"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [_given(cotangents) * sign(inputs[0])]


@register
@dataclass(frozen=True)
class Sign(Elementwise):
    """-1, 0 or 1; no gradient flows."""

    name: ClassVar[str] = "sign"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


@register
@dataclass(frozen=True)
class Relu(Elementwise):
    """max(x, 0); the gradient at 0 is 0, as in PyTorch."""

    name: ClassVar[str] = "relu"

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [where(outputs[0] > 0, _given(cotangents), 0)]


# ------------------------------------------------------------------ comparison, logic, choice


@register
@dataclass(frozen=True)
class Equal(Comparison):
    """x == y."""

    name: ClassVar[str] = "equal"


@register
@dataclass(frozen=True)
class NotEqual(Comparison):
    """x != y."""

    name: ClassVar[str] = "not_equal"


@register
@dataclass(frozen=True)
class Less(Comparison):
    """x < y."""

    name: ClassVar[str] = "less"


@register
@dataclass(frozen=True)
class LessEqual(Comparison):
    """x <= y."""

    name: ClassVar[str] = "less_equal"


@register
@dataclass(frozen=True)
class Greater(Comparison):
    """x > y."""

    name: ClassVar[str] = "greater"


@register
@dataclass(frozen=True)
class GreaterEqual(Comparison):
    """x >= y."""

    name: ClassVar[str] = "greater_equal"


@dataclass(frozen=True)
class Logical(Comparison):
    """A connective of booleans."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if set(dtypes) != {DType.bool_}:
            raise ShapeError(
                f"op '{self.name}' needs bool, not {', '.join(dtypes)}; compare or cast first"
            )
        return DType.bool_


@register
@dataclass(frozen=True)
class LogicalAnd(Logical):
    """x and y."""

    name: ClassVar[str] = "logical_and"


@register
@dataclass(frozen=True)
class LogicalOr(Logical):
    """x or y."""

    name: ClassVar[str] = "logical_or"


@register
@dataclass(frozen=True)
class LogicalNot(Logical):
    """not x."""

    name: ClassVar[str] = "logical_not"


@register
@dataclass(frozen=True)
class Where(Elementwise):
    """x where the condition holds, y elsewhere; operands (condition, x, y)."""

    name: ClassVar[str] = "where"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((1, 2),)

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if dtypes[0] != DType.bool_:
            raise ShapeError(f"op 'where' needs a bool condition, not {dtypes[0]}; compare first")
        return Elementwise.result_dtype(self, dtypes[1:])

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        g, (condition, x, y) = _given(cotangents), inputs
        return [
            None,
            sum_to(where(condition, g, 0), x.shape),
            sum_to(where(condition, 0, g), y.shape),
        ]


@register
@dataclass(frozen=True)
class Cast(Elementwise):
    """x in another dtype."""

    name: ClassVar[str] = "cast"
    dtype: DType

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        return self.dtype

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        keeps_sums = inputs[0].dtype.is_float and self.dtype.is_float
        return elementwise_rule(inputs, outputs[0], ((0,),) if keeps_sums else ())

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        source = inputs[0].dtype
        flows = source.is_float and self.dtype.is_float
        return [cast(_given(cotangents), source) if flows else None]


@register
@dataclass(frozen=True)
class StopGradient(Elementwise):
    """x, through which no gradient flows."""

    name: ClassVar[str] = "stop_gradient"
    linear: ClassVar[tuple[tuple[int, ...], ...]] = ((0,),)
    flops: ClassVar[int] = 0

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None]


# ------------------------------------------------------------------ functions over operands


def add(x: Any, y: Any) -> Any:
    """Return x + y."""
    return _binary(Add(), x, y)


def subtract(x: Any, y: Any) -> Any:
    """Return x - y."""
    return _binary(Subtract(), x, y)


def multiply(x: Any, y: Any) -> Any:
    """Return x * y."""
    return _binary(Multiply(), x, y)


def divide(x: Any, y: Any) -> Any:
    """Return x / y; integers are divided as float32."""
    return _binary(Divide(), *_floating(x, y))


def power(x: Any, y: Any) -> Any:
    """Return x ** y; integers are taken as float32."""
    return _binary(Power(), *_floating(x, y))


def maximum(x: Any, y: Any) -> Any:
    """Return the larger of x and y, element by element."""
    return _binary(Maximum(), x, y)


def minimum(x: Any, y: Any) -> Any:
    """Return the smaller of x and y, element by element."""
    return _binary(Minimum(), x, y)


def negate(x: AnyOperand) -> AnyOperand:
    """Return -x."""
    return apply_one(Negate(), x)


def exp(x: AnyOperand) -> AnyOperand:
    """Return e ** x."""
    return apply_one(Exp(), x)


def log(x: AnyOperand) -> AnyOperand:
    """Return the natural logarithm of x."""
    return apply_one(Log(), x)


def sqrt(x: AnyOperand) -> AnyOperand:
    """Return the square root of x."""
    return apply_one(Sqrt(), x)


def rsqrt(x: AnyOperand) -> AnyOperand:
    """Return 1 / sqrt(x)."""
    return apply_one(Rsqrt(), x)


def tanh(x: AnyOperand) -> AnyOperand:
    """Return the hyperbolic tangent of x."""
    return apply_one(Tanh(), x)


def erf(x: AnyOperand) -> AnyOperand:
    """Return the error function of x."""
    return apply_one(Erf(), x)


def abs(x: AnyOperand) -> AnyOperand:  # noqa: A001 - NumPy's name
    """Return the magnitude of x."""
    return apply_one(Abs(), x)


def sign(x: AnyOperand) -> AnyOperand:
    """Return -1, 0 or 1 by the sign of x."""
    return apply_one(Sign(), x)


def relu(x: AnyOperand) -> AnyOperand:
    """Return max(x, 0)."""
    return apply_one(Relu(), x)


def equal(x: Any, y: Any) -> Any:
    """Return x == y, element by element."""
    return _binary(Equal(), x, y)


def not_equal(x: Any, y: Any) -> Any:
    """Return x != y, element by element."""
    return _binary(NotEqual(), x, y)


def less(x: Any, y: Any) -> Any:
    """Return x < y, element by element."""
    return _binary(Less(), x, y)


def less_equal(x: Any, y: Any) -> Any:
    """Return x <= y, element by element."""
    return _binary(LessEqual(), x, y)


def greater(x: Any, y: Any) -> Any:
    """Return x > y, element by element."""
    return _binary(Greater(), x, y)


def greater_equal(x: Any, y: Any) -> Any:
    """Return x >= y, element by element."""
    return _binary(GreaterEqual(), x, y)


def logical_and(x: Any, y: Any) -> Any:
    """Return x and y, element by element."""
    return _binary(LogicalAnd(), x, y)


def logical_or(x: Any, y: Any) -> Any:
    """Return x or y, element by element."""
    return _binary(LogicalOr(), x, y)


def logical_not(x: AnyOperand) -> AnyOperand:
    """Return not x, element by element."""
    return apply_one(LogicalNot(), x)


def where(condition: AnyOperand, x: Any, y: Any) -> AnyOperand:
    """Return x where the condition holds and y elsewhere."""
    chosen: AnyOperand = apply_one(Where(), condition, *_meet(x, y, like=condition))
    return chosen


def cast(x: AnyOperand, dtype: object) -> AnyOperand:
    """Return x in another dtype; x itself when it has that dtype."""
    wanted = as_dtype(dtype)
    return x if x.dtype == wanted else apply_one(Cast(wanted), x)


def stop_gradient(x: AnyOperand) -> AnyOperand:
    """Return x, through which no gradient flows."""
    return apply_one(StopGradient(), x)


# ------------------------------------------------------------------ shared pieces


def broadcast_shape(shapes: Sequence[Shape], what: str) -> Shape:
    """Return the shape NumPy broadcasting gives.

    Raises:
        ShapeError: sizes differ and none of them is 1.
    """
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        shown = " and ".join(str(shape) for shape in shapes)
        raise ShapeError(
            f"op '{what}' cannot broadcast shapes {shown}; sizes must be equal or 1, aligned at "
            f"the right"
        ) from None


def sum_to(x: AnyOperand, shape: Shape) -> AnyOperand:
    """Return x summed over the dimensions along which `shape` was broadcast to x's shape."""
    from mithril.ops.reduce import sum as total

    if x.shape == shape:
        return x
    extra = x.ndim - len(shape)
    stretched = [i + extra for i, size in enumerate(shape) if size == 1 and x.shape[i + extra] > 1]
    if not stretched:
        return total(x, range(extra))
    return total(x, (*range(extra), *stretched), keepdims=True).reshape(shape)


def _binary(op: Op, x: Any, y: Any) -> Any:
    return apply_one(op, *_meet(x, y))


def _meet(x: Any, y: Any, like: Operand | None = None) -> tuple[Any, Any]:
    """Give scalars and mixed dtypes one dtype: scalars take the array's, arrays are promoted."""
    if isinstance(x, Operand) and isinstance(y, Operand):
        common = promote(x.dtype, y.dtype)
        return cast(x, common), cast(y, common)
    if isinstance(x, Operand):
        x = _room_for(x, y)
        return x, _scalar(x, y, x.dtype)
    if isinstance(y, Operand):
        y = _room_for(y, x)
        return _scalar(y, x, y.dtype), y
    if like is None:
        raise ShapeError("an op on two Python scalars has no array; compute it in Python")
    dtype = DType.float32 if isinstance(x, float) or isinstance(y, float) else DType.int32
    return _scalar(like, x, dtype), _scalar(like, y, dtype)


def _room_for(x: Any, scalar: object) -> Any:
    """A float scalar turns an integer array into float32; a number turns booleans into numbers."""
    if isinstance(scalar, float) and not x.dtype.is_float:
        return cast(x, DType.float32)
    if isinstance(scalar, int) and not isinstance(scalar, bool) and x.dtype == DType.bool_:
        return cast(x, DType.int32)
    return x


def _scalar(like: Any, value: object, dtype: DType) -> Any:
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, Scalar):
        raise ShapeError(
            f"cannot compute with {type(value).__name__} here; pass a Python number or an array of "
            f"the same backend, such as backend.array(…)"
        )
    return like._constant(value, dtype)


def _floating(*operands: Any) -> tuple[Any, ...]:
    return tuple(
        cast(x, DType.float32) if isinstance(x, Operand) and not x.dtype.is_float else x
        for x in operands
    )


def _given(cotangents: Cotangents) -> Any:
    """The one cotangent of an op with one result, which is never None when gradients flow."""
    return cotangents[0]


def _choice_gradient(g: Any, x: Any, y: Any, x_wins: Any) -> Cotangents:
    tied = where(equal(x, y), 0.5, 0.0)
    share = cast(where(x_wins, 1.0, tied), g.dtype)
    return [sum_to(g * share, x.shape), sum_to(g * (1.0 - share), y.shape)]
