"""Elementwise ops: what they have in common, and how scalars and dtypes meet.

The ops themselves are in `choice`, `arithmetic` and `functions`; most differ in a line or two: the
dtype rule and the gradient. Operands of different dtypes are promoted by the functions that build
the ops, so an op itself sees equal dtypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from mithril.errors import ShapeError, kind_of
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import AnyOperand, Operand, apply_one
from mithril.ir.rule import Rule, elementwise_rule
from mithril.ir.tensor import Number
from mithril.ops.reading import read_values
from mithril.types import DType, Scalar, Shape, TensorType, as_dtype, promote


@dataclass(frozen=True)
class Elementwise(Op):
    """Base of ops that work element by element; `linear` lists linear groups of operands."""

    is_pointwise: ClassVar[bool] = True
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
class NumberOnly(Elementwise):
    """An elementwise function of numbers, not of booleans."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if DType.bool_ in dtypes:
            raise ShapeError(f"op '{self.name}' needs numbers, not bool; cast it first")
        return Elementwise.result_dtype(self, dtypes)


def require_floats(function: str, x: Operand) -> None:
    """Raise unless an operand holds floats.

    Raises:
        ShapeError: it does not.
    """
    if not x.dtype.is_float:
        raise ShapeError(f"op '{function}' needs a float dtype, not {x.dtype}; cast it first")


@dataclass(frozen=True)
class FloatOnly(Elementwise):
    """An elementwise function of floating-point numbers."""

    flops: ClassVar[int] = 8

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        if not dtypes[0].is_float:
            raise ShapeError(
                f"op '{self.name}' needs a float dtype, not {dtypes[0]}; cast it first"
            )
        return Elementwise.result_dtype(self, dtypes)


@dataclass(frozen=True)
class Comparison(Elementwise):
    """An elementwise relation; the result is bool and no gradient flows."""

    def result_dtype(self, dtypes: Sequence[DType]) -> DType:
        Elementwise.result_dtype(self, dtypes)
        return DType.bool_

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [None] * len(inputs)


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
        return [cast(take_cotangent(cotangents), source) if flows else None]


def cast(x: AnyOperand, dtype: object) -> AnyOperand:
    """Return x in another dtype; x itself when it has that dtype.

    Args:
        x: any tensor.
        dtype: a dtype: `mithril.numpy.float16`, its name `"float16"`, or one of NumPy's or
            Python's.

    Returns:
        The shape of x, in that dtype. Floats are cut off at the point in integers; numbers other
        than 0 are true.

    Raises:
        ShapeError: there is no such dtype.

    >>> cast(backend.array([1.7, -1.7]), "int32").numpy()
    array([ 1, -1], dtype=int32)
    """
    wanted = as_dtype(dtype)
    return x if x.dtype == wanted else apply_one(Cast(wanted), x)


# ------------------------------------------------------------------ shared pieces


def broadcast_shape(shapes: Sequence[Shape], what: str) -> Shape:
    """Return the shape NumPy broadcasting gives.

    Raises:
        ShapeError: sizes differ and none of them is 1.
    """
    rank = max(map(len, shapes), default=0)
    aligned = zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True)
    wanted = [{size for size in sizes if size != 1} or {1} for sizes in aligned]
    if any(len(sizes) > 1 for sizes in wanted):
        shown = " and ".join(str(shape) for shape in shapes)
        raise ShapeError(
            f"op '{what}' cannot broadcast shapes {shown}; sizes must be equal or 1, aligned at "
            f"the right"
        )
    return tuple(sizes.pop() for sizes in wanted)


def sum_to(x: AnyOperand, shape: Shape) -> AnyOperand:
    """Return x summed over the dimensions along which `shape` was broadcast to x's shape."""
    from mithril.ops.reduce import sum as total

    if x.shape == shape:
        return x
    extra = x.ndim - len(shape)
    stretched = [i + extra for i, size in enumerate(shape) if size == 1 != x.shape[i + extra]]
    if not stretched:
        return total(x, range(extra))
    return total(x, (*range(extra), *stretched), keepdims=True).reshape(shape)


def binary(op: Op, x: Any, y: Any) -> Any:
    return apply_one(op, *meet(x, y))


def meet(x: Any, y: Any, like: Operand | None = None) -> tuple[Any, Any]:
    """Give scalars and mixed dtypes one dtype: scalars take the array's, arrays are promoted."""
    if not isinstance(x, Operand) or not isinstance(y, Operand):
        x, y = _as_python(x), _as_python(y)
        if isinstance(x, list | tuple):
            x, y = _meet_list(x, y, like)
        if isinstance(y, list | tuple):
            y, x = _meet_list(y, x, like)
    if isinstance(x, Operand) and isinstance(y, Operand):
        if isinstance(x, Number) and not y.is_number:
            return _meet_number(x, y)
        if isinstance(y, Number) and not x.is_number:
            y, x = _meet_number(y, x)
            return x, y
        if x.dtype is y.dtype:
            return x, y
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
    dtype = _dtype_of_numbers(x, y, like._default_float)
    return _scalar(like, x, dtype), _scalar(like, y, dtype)


def wide_float(x: Operand) -> DType:
    """Return the float dtype that integers of a backend or trace become: at least float32."""
    return promote(x._default_float, DType.float32)


def _dtype_of_numbers(x: object, y: object, default_float: DType) -> DType:
    if isinstance(x, float) or isinstance(y, float):
        return default_float
    return DType.bool_ if isinstance(x, bool) and isinstance(y, bool) else DType.int32


def _room_for(x: Any, scalar: object) -> Any:
    """A float scalar turns an integer array into floats; a number turns booleans into numbers."""
    if isinstance(scalar, float) and not x.dtype.is_float:
        return cast(x, wide_float(x))
    if isinstance(scalar, int) and not isinstance(scalar, bool) and x.dtype == DType.bool_:
        return cast(x, DType.int32)
    return x


def _meet_number(number: Number, other: Operand) -> tuple[Operand, Operand]:
    """Give a traced Python number the dtype of the array, as if its value were known."""
    if number.known is not None:
        other = _room_for(other, number.known)
        return _scalar(other, number.known, other.dtype), other
    example: Scalar = False
    if number.dtype.is_float:
        example = 0.0
    elif number.dtype.is_integer:
        example = 0
    other = _room_for(other, example)
    number.met.add(other.dtype)
    if other.dtype == DType.float64 and number.wide is not None:
        return number.wide, other
    return cast(number, other.dtype), other


_PYTHON = frozenset({float, int, bool})


def _as_python(x: Any) -> Any:
    """Return a scalar of NumPy as the Python number it holds; anything else as it is."""
    if type(x) in _PYTHON or isinstance(x, Operand):
        return x
    is_scalar = isinstance(x, np.generic | np.ndarray) and x.ndim == 0
    return x.item() if is_scalar else x


def _meet_list(values: Any, other: Any, like: Operand | None) -> tuple[Any, Any]:
    """Return numbers in lists as a tensor, and what they meet: each is taken as a number is."""
    host, example = read_values(values), _example(values)
    if isinstance(other, Operand):
        near = other = _room_for(other, example)
        dtype = near.dtype
    elif like is not None:
        near, dtype = like, _dtype_of_numbers(example, _example(other), like._default_float)
    else:
        raise ShapeError("an op on two lists of numbers has no array; compute it in NumPy")
    return adopt_values(host.astype(dtype.numpy), dtype, near), other


def adopt_values(values: np.ndarray, dtype: DType, near: Operand) -> Operand:
    """Return an array of NumPy as a tensor of the backend or trace that an operand is of.

    Raises:
        ShapeError: the trace takes none.
    """
    taken = near._adopt(values, dtype)
    if taken is None:
        raise ShapeError(
            f"a list cannot be taken here, where only {near.type} is known; pass a tensor"
        )
    return taken


def _example(values: object) -> Scalar:
    """Return a number of the kind of those in lists."""
    examples: dict[str, Scalar] = {"b": False, "f": 0.0}
    return examples.get(read_values(values).dtype.kind, 0)


def _scalar(like: Any, value: object, dtype: DType) -> Any:
    if not isinstance(value, Scalar):
        raise ShapeError(
            f"cannot compute with {kind_of(value)} here; pass a Python number or an array of "
            f"the same backend, such as backend.array(…)"
        )
    return like._number(value, dtype)


def floating(*operands: Any) -> tuple[Any, ...]:
    """Return integers and booleans as floats: those they meet, at least float32."""
    tensors = [x for x in operands if isinstance(x, Operand) and not x.is_number]
    floats = [x.dtype for x in tensors if x.dtype.is_float]

    def take(x: Operand) -> Operand:
        return cast(x, promote(floats[0], DType.float32) if floats else wide_float(x))

    return tuple(
        take(x) if isinstance(x, Operand) and not x.dtype.is_float else x for x in operands
    )


def take_cotangent(cotangents: Cotangents) -> Any:
    """The one cotangent of an op with one result, which is never None when gradients flow."""
    return cotangents[0]


__all__ = ["Cast", "cast"]
