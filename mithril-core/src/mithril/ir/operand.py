"""Operand: anything an op can be applied to, with Python's operators.

Two classes derive from it: `Tensor`, a value of a graph being built, and `Array`, a concrete
(possibly sharded) array of a backend. Functions over operands (`relu(x)`, `x @ y`, `x.sum()`) are
written once and work on both: `apply` hands the op to the operands, which record it or run it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from mithril.errors import GraphError, ShapeError
from mithril.ir.methods import Methods
from mithril.types import DType, Scalar, Shape, TensorType

if TYPE_CHECKING:
    from mithril.ir.op import Op

AnyOperand = TypeVar("AnyOperand", bound="Operand")


class Operand(Methods):
    """Base of traced and concrete tensors; see the module's text."""

    __slots__ = ()
    __array_priority__ = 1000  # NumPy arrays on the left give way to our operators
    is_number = False
    """Whether it stands for a Python number, which takes the dtype of the array it meets."""
    __hash__ = object.__hash__

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        raise NotImplementedError

    def _apply(self, op: Op, operands: Sequence[Operand]) -> tuple[Self, ...]:
        raise NotImplementedError

    def _constant(self, value: Scalar, dtype: DType) -> Self:
        raise NotImplementedError

    def _number(self, value: Scalar, dtype: DType) -> Self:
        """Return a number that an op is applied to; unlike a constant, it is never a result."""
        return self._constant(value, dtype)

    def _adopt(self, other: object, dtype: DType | None = None) -> Operand | None:
        """Return an operand of another kind as one of this kind, None if that cannot be."""
        return None

    @property
    def _constant_value(self) -> Scalar | None:
        """The number that it always is, None if it is no constant."""
        return None

    @property
    def _default_float(self) -> DType:
        """The float dtype of what is made of Python numbers alone."""
        return DType.float32

    @property
    def shape(self) -> Shape:
        """Size of each dimension."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.type.dtype

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return self.type.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    @property
    def T(self) -> Self:  # noqa: N802 - NumPy's name
        """The transpose of a matrix; the last two dimensions are swapped."""
        if self.ndim < 2:
            raise ShapeError(f"cannot transpose {self.type}; .T needs at least two dimensions")
        order = (*range(self.ndim - 2), self.ndim - 1, self.ndim - 2)
        return self._call("transpose", self, order)

    def __add__(self, other: Any) -> Self:
        return self._call("add", self, other)

    def __radd__(self, other: Any) -> Self:
        return self._call("add", other, self)

    def __sub__(self, other: Any) -> Self:
        return self._call("subtract", self, other)

    def __rsub__(self, other: Any) -> Self:
        return self._call("subtract", other, self)

    def __mul__(self, other: Any) -> Self:
        return self._call("multiply", self, other)

    def __rmul__(self, other: Any) -> Self:
        return self._call("multiply", other, self)

    def __truediv__(self, other: Any) -> Self:
        return self._call("divide", self, other)

    def __rtruediv__(self, other: Any) -> Self:
        return self._call("divide", other, self)

    def __pow__(self, other: Any) -> Self:
        return self._call("power", self, other)

    def __rpow__(self, other: Any) -> Self:
        return self._call("power", other, self)

    def __matmul__(self, other: Any) -> Self:
        return self._call("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Self:
        return self._call("matmul", other, self)

    def __neg__(self) -> Self:
        return self._call("negate", self)

    def __eq__(self, other: object) -> Self:  # type: ignore[override]
        return self._call("equal", self, other)

    def __ne__(self, other: object) -> Self:  # type: ignore[override]
        return self._call("not_equal", self, other)

    def __lt__(self, other: Any) -> Self:
        return self._call("less", self, other)

    def __le__(self, other: Any) -> Self:
        return self._call("less_equal", self, other)

    def __gt__(self, other: Any) -> Self:
        return self._call("greater", self, other)

    def __ge__(self, other: Any) -> Self:
        return self._call("greater_equal", self, other)

    def __floordiv__(self, other: Any) -> Self:
        return self._call("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Self:
        return self._call("floor_divide", other, self)

    def __mod__(self, other: Any) -> Self:
        return self._call("remainder", self, other)

    def __rmod__(self, other: Any) -> Self:
        return self._call("remainder", other, self)

    def __abs__(self) -> Self:
        return self._call("abs", self)

    def __pos__(self) -> Self:
        return self

    def __and__(self, other: Any) -> Self:
        return self._call("bitwise_and", self, other)

    def __rand__(self, other: Any) -> Self:
        return self._call("bitwise_and", other, self)

    def __or__(self, other: Any) -> Self:
        return self._call("bitwise_or", self, other)

    def __ror__(self, other: Any) -> Self:
        return self._call("bitwise_or", other, self)

    def __xor__(self, other: Any) -> Self:
        return self._call("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> Self:
        return self._call("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> Self:
        return self._call("bitwise_left_shift", self, other)

    def __rlshift__(self, other: Any) -> Self:
        return self._call("bitwise_left_shift", other, self)

    def __rshift__(self, other: Any) -> Self:
        return self._call("bitwise_right_shift", self, other)

    def __rrshift__(self, other: Any) -> Self:
        return self._call("bitwise_right_shift", other, self)

    def __invert__(self) -> Self:
        return self._call("bitwise_invert", self)

    def __getitem__(self, index: Any) -> Self:
        return self._call("getitem", self, index)

    def _call(self, function: str, *arguments: object, **options: object) -> Self:
        result: Self = _find_function(function)(*arguments, **options)
        return result

    def __len__(self) -> int:
        if not self.ndim:
            raise ShapeError(f"{self.type} has no length; it is a scalar")
        return self.shape[0]


@cache
def _find_function(name: str) -> Callable[..., Any]:
    """Return the function that an operator stands for, when it is used first.

    The ops lie in a layer above this one.
    """
    function: Callable[..., Any] = getattr(import_module("mithril.ops"), name)
    return function


def apply(op: Op, *operands: AnyOperand) -> tuple[AnyOperand, ...]:
    """Apply an op to operands of one kind: record it on tensors, run it on arrays.

    Raises:
        GraphError: traced tensors and concrete arrays are mixed, or no operand is given.
    """
    if len(set(map(type, operands))) == 1 and isinstance(operands[0], Operand):
        return operands[0]._apply(op, operands)
    for operand in operands:
        if not isinstance(operand, Operand):
            raise GraphError(
                f"op '{op.name}' takes tensors, not {type(operand).__name__}; pass an array of a "
                f"backend, such as backend.array(…)"
            )
    alike = operands
    for operand in operands:
        if not _same_kind(operand, operands[0]):
            alike = _of_one_kind(op, operands)
    return alike[0]._apply(op, alike)


def apply_one(op: Op, *operands: AnyOperand) -> AnyOperand:
    """Apply an op with a single result and return that result."""
    (result,) = apply(op, *operands)
    return result


def _of_one_kind(op: Op, operands: tuple[AnyOperand, ...]) -> tuple[AnyOperand, ...]:
    """Return operands of which a trace has taken in those that are arrays."""
    first, other = next((x, y) for x in operands for y in operands if not _same_kind(x, y))
    for host in (first, other):
        taken = [x if _same_kind(x, host) else host._adopt(x) for x in operands]
        if all(x is not None for x in taken):
            return cast("tuple[AnyOperand, ...]", tuple(taken))
    raise GraphError(
        f"op '{op.name}' mixes a {type(first).__name__} and a {type(other).__name__}; pass arrays "
        f"as model inputs instead of capturing them"
    )


def _same_kind(x: Operand, y: Operand) -> bool:
    return isinstance(x, type(y)) or isinstance(y, type(x))
