"""Ops that choose by integers.

A program cannot refuse an id that names no row: such rows are NaN (0 of integers), and what is
added there is dropped. With an offset an operand holds only a part of the rows, and ids that lie
elsewhere give zeros.
"""

from __future__ import annotations

import math

from mithril.spi import DType, TensorType, Types, ops

from mithril_torch.kernels.expression import dtype, number
from mithril_torch.kernels.reduce import accumulator, convert
from mithril_torch.kernels.table import kernel
from mithril_torch.kernels.unsigned import wide


@kernel(ops.Take)
@wide
def take(op: ops.Take, types: Types) -> str:
    """Rows copied out of the table."""
    (result,) = op.infer(types)
    if not types[0].size:
        return fill(result, math.nan if len(types) == 2 and result.dtype.is_float else 0)
    ids = _to_index(types, 1)
    return f"take_part({{0}}, {ids}, {{2}}, {op.rows})" if len(types) > 2 else f"take({{0}}, {ids})"


@kernel(ops.ScatterAdd)
@wide
def scatter_add(op: ops.ScatterAdd, types: Types) -> str:
    """Sums of the updates that go to the same row."""
    (result,) = op.infer(types)
    if not result.size or not types[1].size:
        return fill(result, 0)
    ids = _local(types, 2) + ("" if types[0].rank == 1 else ".reshape(-1)")
    width = math.prod(result.shape[1:])
    flat = TensorType((types[0].size, width), accumulator(result).dtype)
    updates = convert("{1}", types[1], flat)
    updates += "" if types[1].shape == flat.shape else f".reshape({list(flat.shape)})"
    text = f"scatter_add({ids}, {updates}, {op.rows})"
    text += "" if result.shape == (op.rows, width) else f".reshape({list(result.shape)})"
    return convert(text, flat, result)


@kernel(ops.OneHot)
def one_hot(op: ops.OneHot, types: Types) -> str:
    """1 at the place an id names."""
    places = f"torch.arange({op.classes}, device=device)"
    text = f"torch.eq({_local(types, 1)}.unsqueeze(-1), {places})"
    return text if op.dtype == DType.bool_ else f"{text}.to({dtype(op.dtype)})"


@kernel(ops.Iota)
def iota(op: ops.Iota, types: Types) -> str:
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


def _to_index(types: Types, place: int) -> str:
    """Return ids in a type that PyTorch takes rows by."""
    known = types[place].dtype in (DType.int32, DType.int64)
    return f"{{{place}}}" if known else f"{{{place}}}.to(torch.int64)"


def to_int64(ids: TensorType, place: int) -> str:
    """Return the operand at a place, which holds ids, as int64."""
    return f"{{{place}}}" if ids.dtype == DType.int64 else f"{{{place}}}.to(torch.int64)"


def _local(types: Types, offset: int) -> str:
    """Return ids counted from the offset, if there is an operand in its place."""
    ids = to_int64(types[0], 0)
    return f"torch.sub({ids}, {{{offset}}})" if len(types) > offset else ids


def fill(result: TensorType, value: float) -> str:
    """Return a tensor of one value."""
    shape = list(result.shape)
    return f"torch.full({shape}, {number(value)}, dtype={dtype(result)}, device=device)"
