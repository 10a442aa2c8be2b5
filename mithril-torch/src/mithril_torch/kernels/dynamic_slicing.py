"""Ops that read and write at positions known only at run time."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.table import kernel


@kernel(ops.DynamicSlice)
def dynamic_slice(op: ops.DynamicSlice, types: Types) -> str:
    """A copy of a part."""
    return f"slice_at({{0}}, {_format_starts(1, types)}, {op.axes}, {op.sizes})"


@kernel(ops.DynamicUpdateSlice)
def dynamic_update_slice(op: ops.DynamicUpdateSlice, types: Types) -> str:
    """A copy that is written to, or the memory of the operand itself where nobody else has it."""
    function = "update_slice_in_place" if op.in_place else "update_slice"
    return f"{function}({{0}}, {{1}}, {_format_starts(2, types)}, {op.axes})"


def _format_starts(first: int, types: Types) -> str:
    """Return the starts as a tuple."""
    return f"({''.join(f'{{{i}}}, ' for i in range(first, len(types)))})"
