"""Reductions of rows that lie in this process."""

from __future__ import annotations

import torch

from mithril_torch.program.runtime_library.exchange_layout import NATIVE_DTYPES

COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}


def reduce_rows(
    rows: list[torch.Tensor], reduction: str, *, in_place: bool = False
) -> torch.Tensor:
    """Return the reduction of rows, perhaps in the first; 16-bit floats are added in float32."""
    first, combine = rows[0], getattr(torch, COMBINE[reduction])
    wide = wide_dtype(first.dtype)
    total = first.to(wide)
    for row in rows[1:]:
        total = combine(total, row.to(wide), out=total if in_place else None)
    return total.to(first.dtype)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which elements are combined: PyTorch adds up few of the small ones."""
    if dtype.is_floating_point:
        return torch.float32 if dtype.itemsize == 2 else dtype
    return dtype if dtype in NATIVE_DTYPES else torch.int64


__all__: list[str] = []
