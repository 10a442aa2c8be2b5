"""Writes a collective as a graph of others: what its operands are cut into, and sent how."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

from mithril.ir import Builder, Graph, Tensor
from mithril.ir.op import Types
from mithril.mesh import Mesh
from mithril.ops import cast, concatenate, moveaxis
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    ReduceScatter,
    is_narrow_sum,
)
from mithril.ops.control import after
from mithril.partition.algorithms.parts import Exchange, Way
from mithril.types import DType


def write_collective(op: Collective, types: Types, way: Way, mesh: Mesh) -> Graph:
    """Return a graph that does what a collective does, with one output for each of its results.

    Sums of 16-bit floats are taken in float32, and rounded once.

    Args:
        op: an all_reduce, a reduce_scatter, an all_gather or an all_to_all.
        types: of its operands, of one dtype.
        way: how it is carried out, over its axes.
        mesh: the devices.
    """
    builder = Builder()
    operands = [builder.input(type, f"x{number}") for number, type in enumerate(types)]
    dtype, reduction = types[0].dtype, getattr(op, "reduction", "")
    is_narrow = is_narrow_sum(reduction, dtype)
    given = [cast(x, DType.float32) for x in operands] if is_narrow else operands
    made = _write(op, given, way, Exchange(builder, mesh))
    results = [cast(y, dtype) for y in made] if is_narrow else made
    return builder.build({f"y{number}": y for number, y in enumerate(results)})


def _write(op: Collective, operands: Sequence[Tensor], way: Way, how: Exchange) -> list[Any]:
    results = op.infer([x.type for x in operands])
    if isinstance(op, AllReduce):
        alone = len(operands) == 1
        x = operands[0] if alone else _join([x.reshape(x.size) for x in operands])
        total = how.reduce(way, x, op.reduction)
        # A compiler may fuse what reads it with what a member computed, and what others sent,
        # each in its own way: then it would be rounded otherwise from device to device.
        total = after(total, total)
        return [total] if alone else _cut(total, [x.shape for x in operands])
    if isinstance(op, ReduceScatter):
        rows = [_to_rows(x, op.dimension, op.count) for x in operands]
        wide = _join([row.reshape(op.count, row.size // op.count) for row in rows])
        return _cut(how.scatter(way.parts, wide, op.reduction), [made.shape for made in results])
    if isinstance(op, AllGather):
        row = _join([x.reshape(x.size) for x in operands])
        parts = _cut(how.gather(way.parts, row), [x.shape for x in operands])
        return [
            _from_rows(part, op.dimension, made.shape)
            for part, made in zip(parts, results, strict=True)
        ]
    assert isinstance(op, AllToAll), "other kinds have no choice of algorithms"
    pieces = [_to_rows(x, op.split, op.count) for x in operands]
    if len(pieces) == 1:
        return [_from_rows(how.exchange(way.parts, pieces[0]), op.concat, results[0].shape)]
    wide = _join([piece.reshape(op.count, piece.size // op.count) for piece in pieces])
    parts = _cut(how.exchange(way.parts, wide), [piece.shape[1:] for piece in pieces])
    return [
        _from_rows(part, op.concat, made.shape) for part, made in zip(parts, results, strict=True)
    ]


def _to_rows(x: Tensor, dimension: int, count: int) -> Any:
    """Return x cut along a dimension, part after part along a new first one."""
    shape = (*x.shape[:dimension], count, x.shape[dimension] // count, *x.shape[dimension + 1 :])
    return moveaxis(x.reshape(shape), dimension, 0)


def _from_rows(rows: Any, dimension: int, shape: Sequence[int]) -> Any:
    """Return the parts along the first dimension put together along another one."""
    return moveaxis(rows, 0, dimension).reshape(shape)


def _join(parts: Sequence[Any]) -> Any:
    """Return parts side by side along the last dimension."""
    return concatenate(parts, -1) if len(parts) > 1 else parts[0]


def _cut(wide: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """Return what lies side by side along the last dimension, each with its shape behind others."""
    ends = accumulate(map(prod, shapes), initial=0)
    cuts = zip(pairwise(ends), shapes, strict=True)
    before = wide.shape[:-1]
    return [wide[..., start:stop].reshape(*before, *shape) for (start, stop), shape in cuts]


__all__ = ["write_collective"]
