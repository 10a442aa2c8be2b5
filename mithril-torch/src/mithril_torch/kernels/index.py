"""Ops that choose by integers, and order.

A program cannot refuse an id that names no row: such rows are NaN (0 of integers), and what is
added there is dropped. With an offset an operand holds only a part of the rows, and ids that lie
elsewhere give zeros.
"""

from __future__ import annotations

import math
from typing import Any

from mithril.ops import index, order
from mithril.types import DType, TensorType

from mithril_torch.kernels.reduction import accumulator, convert
from mithril_torch.kernels.registry import Types, dtype, kernel, number
from mithril_torch.kernels.unsigned import wide


@kernel(index.Take)
@wide
def take(op: index.Take, types: Types) -> str:
    """Rows copied out of the table."""
    (result,) = op.infer(types)
    if not types[0].size:
        return _full(result, math.nan if len(types) == 2 and result.dtype.is_float else 0)
    ids = _to_index(types, 1)
    return f"take_part({{0}}, {ids}, {{2}}, {op.rows})" if len(types) > 2 else f"take({{0}}, {ids})"


@kernel(index.ScatterAdd)
@wide
def scatter_add(op: index.ScatterAdd, types: Types) -> str:
    """Sums of the updates that go to the same row."""
    (result,) = op.infer(types)
    if not result.size or not types[1].size:
        return _full(result, 0)
    ids = _local(types, 2) + ("" if types[0].rank == 1 else ".reshape(-1)")
    width = math.prod(result.shape[1:])
    flat = TensorType((types[0].size, width), accumulator(result).dtype)
    updates = convert("{1}", types[1], flat)
    updates += "" if types[1].shape == flat.shape else f".reshape({list(flat.shape)})"
    text = f"scatter_add({ids}, {updates}, {op.rows})"
    text += "" if result.shape == (op.rows, width) else f".reshape({list(result.shape)})"
    return convert(text, flat, result)


@kernel(index.OneHot)
def one_hot(op: index.OneHot, types: Types) -> str:
    """1 at the place an id names."""
    places = f"torch.arange({op.classes}, device=device)"
    text = f"torch.eq({_local(types, 1)}.unsqueeze(-1), {places})"
    return text if op.dtype == DType.bool_ else f"{text}.to({dtype(op.dtype)})"


@kernel(index.Iota)
def iota(op: index.Iota, types: Types) -> str:
    """Numbers that count along a dimension."""
    size, rank = op.shape[op.axis], len(op.shape)
    whole = op.dtype in (DType.int32, DType.int64)
    kind = op.dtype if whole else DType.int64
    text = f"torch.arange({size}, dtype={dtype(kind)}, device=device)"
    text += f".add({{0}}.to({dtype(kind)}))" if types else ""
    text += "" if whole else f".to({dtype(op.dtype)})"
    after = rank - op.axis - 1
    if after:
        text += f".view({[size, *[1] * after]})"
    return text if rank == 1 else f"{text}.expand({list(op.shape)})"


@kernel(order.TakeAlong)
@wide
def take_along(op: order.TakeAlong, types: Types) -> str:
    """Elements by position, row by row."""
    (result,) = op.infer(types)
    if not types[0].size:
        return _full(result, math.nan if result.dtype.is_float else 0)
    return f"take_along({{0}}, {_long(types[1], 1)}, {op.axis})"


@kernel(order.ScatterAlong)
@wide
def scatter_along(op: order.ScatterAlong, types: Types) -> str:
    """Sums of the updates that go to one place."""
    (result,) = op.infer(types)
    if not result.size:
        return _full(result, 0)
    kind = accumulator(result)
    updates = convert("{1}", types[1], kind)
    text = f"scatter_along({_long(types[0], 0)}, {updates}, {op.axis}, {op.size})"
    return convert(text, kind, result)


@kernel(order.Sort)
@wide
def sort(op: order.Sort, types: Types) -> str:
    """Sorted rows, NaN last."""
    text = f"{_sort(op, types)}[0]"
    return f"torch.neg({text})" if _negates(op, types) else text


@kernel(order.Argsort)
@wide
def argsort(op: order.Argsort, types: Types) -> str:
    """Positions by a stable sort, NaN last."""
    return f"{_sort(op, types)}[1].to(torch.int32)"


@kernel(order.TopK)
def top_k(op: order.TopK, types: Types) -> str:
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


def _to_index(types: Types, place: int) -> str:
    """Return ids in a type that PyTorch takes rows by."""
    known = types[place].dtype in (DType.int32, DType.int64)
    return f"{{{place}}}" if known else f"{{{place}}}.to(torch.int64)"


def _long(ids: TensorType, place: int) -> str:
    return f"{{{place}}}" if ids.dtype == DType.int64 else f"{{{place}}}.to(torch.int64)"


def _local(types: Types, offset: int) -> str:
    """Return ids counted from the offset, if there is an operand in its place."""
    ids = _long(types[0], 0)
    return f"torch.sub({ids}, {{{offset}}})" if len(types) > offset else ids


def _full(result: TensorType, value: float) -> str:
    shape = list(result.shape)
    return f"torch.full({shape}, {number(value)}, dtype={dtype(result)}, device=device)"
