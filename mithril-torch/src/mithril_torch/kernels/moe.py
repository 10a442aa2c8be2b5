"""MoE dispatch and combine, row by row inside groups; an id that names no row gives zeros."""

from __future__ import annotations

from mithril.spi import TensorType, Types, ops

from mithril_torch.kernels.expression import dtype
from mithril_torch.kernels.table import kernel
from mithril_torch.kernels.unsigned import wide
from mithril_torch.program.dispatching import DispatchByExpert


@kernel(ops.MoeDispatch)
@wide
def moe_dispatch(op: ops.MoeDispatch, types: Types) -> str:
    """Rows copied, group by group."""
    (result,) = op.infer(types)
    if not types[0].size or not result.size:
        return _zeros(result)
    return "moe_dispatch({0}, {1})"


@kernel(DispatchByExpert)
@wide
def dispatch_by_expert(op: DispatchByExpert, types: Types) -> str:
    """Rows copied, expert by expert."""
    (result,) = op.infer(types)
    if not types[0].size or not result.size:
        return _zeros(result)
    return f"moe_dispatch_by_expert({{0}}, {{1}}, {op.experts})"


@kernel(ops.MoeCombine)
@wide
def moe_combine(op: ops.MoeCombine, types: Types) -> str:
    """Rows of each round added up."""
    (result,) = op.infer(types)
    if not types[0].size or not result.size:
        return _zeros(result)
    return f"moe_combine({{0}}, {{1}}, {op.rows})"


def _zeros(result: TensorType) -> str:
    return f"torch.zeros({list(result.shape)}, dtype={dtype(result)}, device=device)"
