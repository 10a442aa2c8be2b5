"""Element types and tensor types: what a value is, without saying where it lives.

A `DType` is one of the names below; NumPy (with ml_dtypes for the 16-bit floats) is the reference
for their meaning, and promotion follows the Python array API standard: kinds do not mix silently,
except that Python scalars take the dtype of the array they meet.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from mithril.errors import ShapeError, listing, nearest

Shape = tuple[int, ...]
Scalar = bool | int | float
MOST_DIMENSIONS = 64
"""Of a tensor: as many as NumPy and PyTorch have."""


class DType(StrEnum):
    """The element types of Mithril, by their NumPy names."""

    bool_ = "bool"
    int8 = "int8"
    int16 = "int16"
    int32 = "int32"
    int64 = "int64"
    uint8 = "uint8"
    uint16 = "uint16"
    uint32 = "uint32"
    uint64 = "uint64"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float32 = "float32"
    float64 = "float64"

    __hash__ = str.__hash__  # that of enums is Python's, and of their names

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The NumPy dtype of the same meaning."""
        return _numpy_dtype(self._value_)  # `value` takes longer, and planning asks all the time

    @property
    def itemsize(self) -> int:
        """Bytes an element takes."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        """Whether gradients flow through values of this dtype."""
        return "float" in self._value_

    @property
    def is_integer(self) -> bool:
        """Whether this is a signed or unsigned integer type."""
        return "int" in self._value_


@cache
def _numpy_dtype(name: str) -> np.dtype[np.generic]:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def as_dtype(value: object) -> DType:
    """Return the `DType` meant by a name, a NumPy dtype or a `DType`.

    Raises:
        ShapeError: the dtype is not one Mithril knows.

    >>> as_dtype(np.float32)
    <DType.float32: 'float32'>
    """
    if isinstance(value, DType):
        return value
    try:
        name = value if isinstance(value, str) else np.dtype(value).name  # type: ignore[call-overload]
    except (TypeError, ValueError):  # what NumPy knows no dtype for
        name = str(value)
    try:
        return DType(name)
    except ValueError:
        known = [member.value for member in DType]
        raise ShapeError(
            f"dtype '{name}' is not supported; known: {listing(known)}{nearest(name, known)}"
        ) from None


def dtype_of_values(host: np.ndarray, default: DType) -> DType:
    """Return the dtype that values of NumPy are taken in.

    Args:
        host: the values.
        default: what float64 becomes. int64 becomes int32 where all values fit.

    >>> dtype_of_values(np.arange(3), DType.float32)
    <DType.int32: 'int32'>
    """
    found = as_dtype(host.dtype)  # whatever the order of the bytes
    if found is DType.float64:
        return default
    if found is DType.int64:
        fits = not host.size or (host.min() >= -(2**31) and host.max() < 2**31)
        return DType.int32 if fits else DType.int64
    return found


@cache
def promote(left: DType, right: DType) -> DType:
    """Return the dtype two arrays meet in, by the array API standard.

    Raises:
        ShapeError: the kinds do not mix (say, int32 with float32); cast one side.
    """
    if left == right:
        return left
    mixed = {left, right}
    if left.is_float and right.is_float:
        if mixed == {DType.bfloat16, DType.float16}:
            return DType.float32
        return max(left, right, key=lambda dtype: (dtype.itemsize, dtype.value))
    if left.is_integer and right.is_integer and DType.uint64 not in mixed:
        return as_dtype(np.promote_types(left.numpy, right.numpy))
    floats = [dtype for dtype in (left, right) if dtype.is_float]
    example = f", such as x.astype('{floats[0]}')" if floats else ""
    raise ShapeError(
        f"dtypes {left} and {right} do not mix; the array API standard promotes within one kind "
        f"only; cast one side{example}"
    )


def to_python(value: Any) -> Any:
    """Return a scalar of NumPy as a number of Python, in tuples and lists too; all else as it is.

    >>> to_python((np.int64(3), np.float32(0.5), np.True_, "same"))
    (3, 0.5, True, 'same')
    """
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return value.item()
    if type(value) in (tuple, list) and any(isinstance(x, np.generic) for x in value):
        return type(value)(map(to_python, value))
    return value


def check_number(value: Scalar, dtype: DType, what: str = "number") -> None:
    """Raise unless a dtype holds a number: floats are rounded, integers never wrapped around.

    Args:
        value: the number.
        dtype: what it is taken in.
        what: the number's name, for messages.

    Raises:
        ShapeError: it does not.
    """
    if dtype.is_integer:
        limits = np.iinfo(dtype.value)
        fits = limits.min <= value <= limits.max and value % 1 == 0
        held = f"the integers from {limits.min} to {limits.max}"
    else:
        fits = not isinstance(value, int) or abs(value) <= sys.float_info.max
        held = f"numbers up to {sys.float_info.max:.2g} at most"
    if not fits:
        raise ShapeError(f"{what} is {value}, which is no {dtype}; that holds {held}; take another")


@dataclass(frozen=True, slots=True)
class TensorType:
    """Shape and dtype of a tensor.

    >>> str(TensorType((2, 3), DType.float32))
    'float32[2, 3]'
    """

    shape: Shape
    dtype: DType

    def __post_init__(self) -> None:
        if len(self.shape) > MOST_DIMENSIONS:
            raise ShapeError(
                f"a tensor of {self.dtype} would have {len(self.shape)} dimensions, and "
                f"{MOST_DIMENSIONS} is the most; merge some with reshape"
            )

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def with_shape(self, shape: Shape) -> TensorType:
        """Return the same dtype with another shape."""
        return TensorType(shape, self.dtype)
