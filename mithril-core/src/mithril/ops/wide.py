"""Compositions that are computed in at least float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mithril.ops.elementwise import cast, meet, require_floats
from mithril.ops.reduce import accumulator


def compute_wide(name: str, compute: Callable[..., Any], *operands: Any) -> Any:
    """Return what a function makes of one or two operands, computed in at least float32.

    Args:
        name: what messages call the function.
        compute: takes as many operands, of one float dtype.
        operands: tensors; one of two may be a number.

    Returns:
        The result in the dtype that the operands are promoted to.

    Raises:
        ShapeError: the operands do not hold floats.
    """
    met = meet(*operands) if len(operands) == 2 else operands
    require_floats(name, met[0])
    dtype = met[0].dtype
    return cast(compute(*(cast(x, accumulator(dtype)) for x in met)), dtype)


__all__: list[str] = []
