"""Products with a matrix for each block."""

from __future__ import annotations

from mithril.spi import Types, ops

from mithril_torch.kernels.table import kernel


@kernel(ops.GroupedMatmul)
def grouped_matmul(op: ops.GroupedMatmul, types: Types) -> str:
    """Blocks of one matrix are multiplied together."""
    stack = "{2}" if op.transposed else "{2}.transpose(1, 2)"
    return f"grouped_matmul({{0}}, {{1}}, {stack})"


@kernel(ops.GroupedOuter)
def grouped_outer(op: ops.GroupedOuter, types: Types) -> str:
    """One product for each entry, over the rows of all its blocks."""
    return f"grouped_outer({{0}}, {{1}}, {{2}}, {op.entries})"
