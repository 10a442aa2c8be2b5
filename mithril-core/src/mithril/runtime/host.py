"""Reading what users pass in on the host: shapes, values, parts that devices hold."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from mithril.errors import MithrilError, ShapeError, kind_of
from mithril.mesh import Box, Sharding, edges
from mithril.runtime.dlpack import UNREADABLE, read_foreign
from mithril.types import DType, Scalar, Shape


def read_shape(given: Sequence[Any], example: str) -> Shape:
    """Return a shape given as integers or as one tuple.

    Args:
        given: what stands where the shape is expected.
        example: a call as it should be, for messages.

    Raises:
        ShapeError: a size is not an integer of 0 or more.
    """
    sizes = given[0] if len(given) == 1 and not isinstance(given[0], int | np.integer) else given
    try:
        shape = tuple(operator.index(size) for size in sizes)
    except TypeError:
        raise ShapeError(f"shape {sizes!r} is not made of integers; write {example}") from None
    if any(size < 0 for size in shape):
        raise ShapeError(f"shape {shape} has a negative size; sizes are 0 or more")
    return shape


def check_line(start: object, stop: object, step: object) -> int:
    """Return how many numbers there are from a start up to, but without, a stop.

    Raises:
        ShapeError: one of them is no finite number, or the step is 0.
    """
    numbers = [read_number(n) for n in (start, stop, step)]
    if not all(math.isfinite(n) for n in numbers):
        raise ShapeError(
            f"arange counts from {start} to {stop} by {step}; give finite numbers, it makes as "
            f"many as lie between"
        )
    first, end, width = numbers
    if width == 0:
        raise ShapeError("arange has step 0 and would never end; give another step")
    return max(0, math.ceil((end - first) / width))


def read_number(value: object) -> Scalar:
    """Return a number of Python, of NumPy or of an array without dimensions as one of Python.

    Raises:
        ShapeError: it is none.
    """
    if isinstance(value, Scalar):
        return value
    host = on_host(value)
    if host.ndim:
        raise ShapeError(f"one number is needed, not values of shape {host.shape}; use array(…)")
    number: Scalar = host.item()
    return number


def on_host(values: object) -> np.ndarray:
    """Return what NumPy reads values as.

    Raises:
        ShapeError: it reads no array of numbers.
    """
    if values is None:
        raise ShapeError("values are None; give a number, numbers in nested lists, or an array")
    check_unmasked(values, "values are")
    try:
        host = np.asarray(values)
    except UNREADABLE as error:
        found = read_foreign(values)
        if found is None and not isinstance(error, ValueError):
            raise ShapeError(
                f"values are {kind_of(values)} that NumPy cannot read; {error}; give an array of it"
            ) from error
        if found is None:
            raise ShapeError(f"values do not form an array; {error}; give equal lengths") from error
        host = found
    check_numbers(host.dtype, "values are")
    return host


def check_unmasked(values: object, what: str, error: type[MithrilError] = ShapeError) -> None:
    """Raise if values are a masked array of NumPy: what its mask hides would be computed with.

    Args:
        values: anything.
        what: the subject and verb of the message.
        error: what is raised.

    Raises:
        MithrilError: they are.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise error(
            f"{what} a masked array of NumPy, whose mask would be lost; pass x.filled(value), and "
            f"the mask as an array of its own where you need it"
        )


def check_range(host: np.ndarray, dtype: DType, what: str = "values", where: str = "") -> None:
    """Raise unless a dtype holds all values.

    Integers are never wrapped around, and what is finite stays so: floats are rounded, or cut off
    towards 0 to become integers, which are never made of what is not finite.

    Args:
        host: the values.
        dtype: what they become.
        what: what messages call them.
        where: the option in which another dtype is given, for messages.

    Raises:
        ShapeError: it does not hold one of them.
    """
    if dtype is DType.bool_ or not host.size or np.can_cast(host.dtype, dtype.numpy):
        return
    low, high = _find_ends(host, dtype)
    if dtype.is_integer and not (math.isfinite(low) and math.isfinite(high)):
        raise ShapeError(
            f"{what} are not finite in places, as no {dtype} is; give a float dtype{where}, or "
            f"replace them"
        )
    make: Callable[[Scalar], Any] = math.trunc if dtype.is_integer else dtype.numpy.type
    with np.errstate(over="ignore"):
        least, most = make(low), make(high)
    limits: Any = (np.iinfo if dtype.is_integer else ml_dtypes.finfo)(dtype.numpy)
    if not limits.min <= least <= most <= limits.max:
        raise ShapeError(
            f"{what} reach from {low} to {high}, {dtype} from {limits.min} to {limits.max}; give a "
            f"wider dtype{where}"
        )


def _find_ends(host: np.ndarray, dtype: DType) -> tuple[Scalar, Scalar]:
    """Return the least and the greatest of values, of finite ones alone for a dtype of floats."""
    number = int if host.dtype.kind in "iu" else float
    with np.errstate(invalid="ignore"):  # NumPy warns of NaN in bfloat16
        low, high = host.min(), host.max()
        if dtype.is_float and not (np.isfinite(low) and np.isfinite(high)):
            finite = host[np.isfinite(host)]
            low, high = (finite.min(), finite.max()) if finite.size else (0, 0)
    return number(low), number(high)


def check_numbers(dtype: np.dtype[Any], what: str) -> None:
    """Raise unless values are numbers of some dtype.

    Args:
        dtype: of NumPy.
        what: the subject and verb of the message.

    Raises:
        ShapeError: they are texts, dates, objects, complex or of several parts.
    """
    if dtype.kind not in "biufV" or issubclass(dtype.type, np.void):
        raise ShapeError(f"{what} of type {dtype}, which is no dtype of Mithril; give numbers")


def one_dtype(devices: Sequence[int], dtypes: Sequence[DType]) -> DType:
    """Return the dtype of the parts that devices hold.

    Raises:
        ShapeError: one part has another dtype than the first.
    """
    for device, dtype in zip(devices, dtypes, strict=True):
        if dtype != dtypes[0]:
            raise ShapeError(
                f"from_local_shards is given {dtypes[0]} for device {devices[0]} and {dtype} for "
                f"device {device}; pass dtype= for all of them"
            )
    return dtypes[0]


def of_boxes(
    devices: Sequence[int], parts: Sequence[np.ndarray], sharding: Sharding, shape: Shape
) -> Callable[[Box], np.ndarray]:
    """Return the function that gives a copy of the part of a box, from those that devices hold.

    Args:
        devices: flat indices.
        parts: what each of them holds.
        sharding: how the whole lies.
        shape: of the whole.

    Raises:
        ShapeError: a part has another shape than its device holds, or parts that are to be the
            same differ.
    """
    held: dict[object, np.ndarray] = {}
    for device, part in zip(devices, parts, strict=True):
        box = sharding.box(device, shape)
        expected = tuple(cut.stop - cut.start for cut in box)
        if part.shape != expected:
            raise ShapeError(
                f"from_local_shards is given {part.shape} for device {device}, which holds "
                f"{expected} of {shape}; pass shape= if parts differ in size"
            )
        first = held.setdefault(edges(box), part)
        if first is not part and first.tobytes() != part.tobytes():
            raise ShapeError(
                f"from_local_shards is given other values for device {device} than for one that "
                f"holds the same part; give both the same, or a sharding that splits it"
            )
    return lambda box: held[edges(box)].copy()
