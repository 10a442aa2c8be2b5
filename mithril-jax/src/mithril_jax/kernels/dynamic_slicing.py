"""Kernels of the ops that read and write at positions known only at run time.

XLA moves positions in by itself. It writes into the memory of what is donated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax
from mithril.spi import KernelRun, Shape, Types, ops

from mithril_jax.kernels.table import kernel


@kernel(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, types: Types) -> KernelRun:
    """XLA's own."""
    (result,) = op.infer(types)
    place = _places(op.axes, types[0].shape, result.shape)
    return lambda x, *starts: lax.dynamic_slice(
        x, place(starts), result.shape, allow_negative_indices=False
    )


@kernel(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, types: Types) -> KernelRun:
    """XLA's own."""
    place = _places(op.axes, types[0].shape, types[1].shape)
    return lambda x, update, *starts: lax.dynamic_update_slice(
        x, update, place(starts), allow_negative_indices=False
    )


def _places(axes: tuple[int, ...], whole: Shape, part: Shape) -> KernelRun:
    """Return the function from starts to one int32 for each dimension."""
    zero = np.zeros((), np.int32)

    def places(starts: Sequence[Any]) -> list[Any]:
        found: list[Any] = [zero] * len(whole)
        for axis, start in zip(axes, starts, strict=True):
            # Clamped in its own dtype: what is too large for int32 would count from the end there.
            last = np.asarray(min(whole[axis] - part[axis], np.iinfo(start.dtype).max), start.dtype)
            near = lax.clamp(np.zeros((), start.dtype), start, last)
            found[axis] = lax.convert_element_type(near, np.int32)
        return found

    return places
