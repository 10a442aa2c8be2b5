"""Collectives of one process: the values of a group are a list, and so are the results."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from operator import and_, or_
from typing import Any

from mithril.engine.standard.namespace import ArrayNamespace, dtype_in, widen
from mithril.ir import Op
from mithril.ir.op import Types
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from mithril.types import DType

Group = list[Any]
Exchange = Callable[[Group], Any]
COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}
COMBINE_BOOLEANS = {"sum": or_, "max": or_, "min": and_}


def _all_reduce(op: Any, types: Types, xp: ArrayNamespace) -> Callable[..., Any]:
    return _each([_reducer(op.reduction, type.dtype, xp) for type in types])


def _reducer(reduction: str, dtype: DType, xp: ArrayNamespace) -> Exchange:
    """Return what combines the values of a group; sums of 16-bit floats are taken in float32."""
    if dtype == DType.bool_:
        return partial(reduce, COMBINE_BOOLEANS[reduction])
    combine = getattr(xp, COMBINE[reduction])
    if reduction != "sum" or widen(dtype) is dtype:
        return lambda parts: reduce(combine, parts)
    wide = dtype_in(xp, widen(dtype))

    def add(parts: Group) -> Any:
        total = reduce(combine, [xp.asarray(part, dtype=wide) for part in parts])
        return xp.asarray(total, dtype=parts[0].dtype)

    return add


def _all_gather(op: Any, types: Types, xp: ArrayNamespace) -> Callable[..., Any]:
    return _each([lambda parts: xp.concat(parts, axis=op.dimension)] * len(types))


def _reduce_scatter(op: Any, types: Types, xp: ArrayNamespace) -> Callable[..., Any]:
    def exchange(dtype: DType) -> Exchange:
        combine = _reducer(op.reduction, dtype, xp)
        return lambda parts: _cut(combine(parts), op.dimension, op.count)

    return _each([exchange(type.dtype) for type in types])


def _each(exchanges: list[Exchange]) -> Callable[..., Any]:
    """Return the function of one operand as one of several, each by itself."""
    if len(exchanges) == 1:
        return exchanges[0]
    return lambda *groups: tuple(
        exchange(group) for exchange, group in zip(exchanges, groups, strict=True)
    )


def _all_to_all(op: Any, types: Types, xp: ArrayNamespace) -> Callable[..., Any]:
    def run(parts: Group) -> Group:
        pieces = [_cut(part, op.split, op.count) for part in parts]
        return [xp.concat(column, axis=op.concat) for column in zip(*pieces, strict=True)]

    return _each([run] * len(types))


def _permute(op: Any, types: Types, xp: ArrayNamespace) -> Callable[..., Any]:
    def run(parts: Group) -> Group:
        sources = op.sources
        return [
            parts[sources[member]] if member in sources else xp.zeros_like(part)
            for member, part in enumerate(parts)
        ]

    return _each([run] * len(types))


def _cut(x: Any, dimension: int, count: int) -> Group:
    size = x.shape[dimension] // count
    before = (slice(None),) * dimension
    return [x[(*before, slice(i * size, (i + 1) * size), ...)] for i in range(count)]


EXCHANGES: dict[type[Op], Callable[[Any, Types, ArrayNamespace], Callable[..., Any]]] = {
    AllReduce: _all_reduce,
    AllGather: _all_gather,
    ReduceScatter: _reduce_scatter,
    AllToAll: _all_to_all,
    Permute: _permute,
}
"""For each collective the factory `(op, operand types, namespace)` of what carries it out."""
