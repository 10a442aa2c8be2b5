"""Ops along one dimension: order, picking by position, adding by position."""

from __future__ import annotations

import math
from typing import Any

from mithril.spi import Types, ops

from mithril_torch.kernels.index import fill, to_int64
from mithril_torch.kernels.reduce import accumulator, convert
from mithril_torch.kernels.table import kernel
from mithril_torch.kernels.unsigned import wide


@kernel(ops.TakeAlong)
@wide
def take_along(op: ops.TakeAlong, types: Types) -> str:
    """Elements by position, row by row."""
    (result,) = op.infer(types)
    if not types[0].size:
        return fill(result, math.nan if result.dtype.is_float else 0)
    return f"take_along({{0}}, {to_int64(types[1], 1)}, {op.axis})"


@kernel(ops.ScatterAlong)
@wide
def scatter_along(op: ops.ScatterAlong, types: Types) -> str:
    """Sums of the updates that go to one place."""
    (result,) = op.infer(types)
    if not result.size:
        return fill(result, 0)
    kind = accumulator(result)
    updates = convert("{1}", types[1], kind)
    text = f"scatter_along({to_int64(types[0], 0)}, {updates}, {op.axis}, {op.size})"
    return convert(text, kind, result)


@kernel(ops.Sort)
@wide
def sort(op: ops.Sort, types: Types) -> str:
    """Sorted rows, NaN last."""
    text = f"{_sort(op, types)}[0]"
    return f"torch.neg({text})" if _negates(op, types) else text


@kernel(ops.Argsort)
@wide
def argsort(op: ops.Argsort, types: Types) -> str:
    """Positions by a stable sort, NaN last."""
    return f"{_sort(op, types)}[1].to(torch.int32)"


@kernel(ops.TopK)
def top_k(op: ops.TopK, types: Types) -> str:
    """The first k of a stable descending sort."""
    return f"top_k({{0}}, {op.k}, {op.axis})"


def _sort(op: Any, types: Types) -> str:
    """Return a stable sort; a descending one of floats is an ascending one of their opposites."""
    if _negates(op, types):
        return f"torch.sort(torch.neg({{0}}), dim={op.axis}, stable=True)"
    descending = ", descending=True" if op.descending else ""
    return f"torch.sort({{0}}, dim={op.axis}, stable=True{descending})"


def _negates(op: Any, types: Types) -> bool:
    return bool(op.descending and types[0].dtype.is_float)
