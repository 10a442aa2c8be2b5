"""Collectives of one process: the values of a group are a list, and so are the results."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from mithril.ir import Op
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter

Group = list[Any]
SMALL_FLOATS = ("bfloat16", "float16")  # sums of these are taken in float32
COMBINE = {"sum": "add", "max": "maximum", "min": "minimum"}


def _all_reduce(op: Any, xp: ModuleType) -> Callable[..., Any]:
    return _each(_reducer(op.reduction, xp))


def _reducer(reduction: str, xp: ModuleType) -> Callable[[Group], Any]:
    combine = getattr(xp, COMBINE[reduction])

    def reduce(parts: Group) -> Any:
        dtype = parts[0].dtype
        # A framework writes its own dtypes with its name in front.
        small = str(dtype).rpartition(".")[2] in SMALL_FLOATS and reduction == "sum"
        total = xp.asarray(parts[0], dtype=np.float32) if small else parts[0]
        for part in parts[1:]:
            total = combine(total, part)
        return xp.asarray(total, dtype=dtype)

    return reduce


def _all_gather(op: Any, xp: ModuleType) -> Callable[..., Any]:
    return _each(lambda parts: xp.concat(parts, axis=op.dimension))


def _reduce_scatter(op: Any, xp: ModuleType) -> Callable[..., Any]:
    reduce = _reducer(op.reduction, xp)
    return _each(lambda parts: _cut(reduce(parts), op.dimension, op.count))


def _each(exchange: Callable[[Group], Any]) -> Callable[..., Any]:
    """Return the function of one operand as one of several, each by itself."""
    return lambda *groups: tuple(map(exchange, groups)) if len(groups) > 1 else exchange(groups[0])


def _all_to_all(op: Any, xp: ModuleType) -> Callable[..., Any]:
    def run(parts: Group) -> Group:
        pieces = [_cut(part, op.split, op.count) for part in parts]
        return [xp.concat(column, axis=op.concat) for column in zip(*pieces, strict=True)]

    return _each(run)


def _permute(op: Any, xp: ModuleType) -> Callable[..., Any]:
    def run(parts: Group) -> Group:
        sources = op.sources
        return [
            parts[sources[member]] if member in sources else xp.zeros_like(part)
            for member, part in enumerate(parts)
        ]

    return _each(run)


def _cut(x: Any, dimension: int, count: int) -> Group:
    size = x.shape[dimension] // count
    before = (slice(None),) * dimension
    return [x[(*before, slice(i * size, (i + 1) * size))] for i in range(count)]


EXCHANGES: dict[type[Op], Callable[[Any, ModuleType], Callable[..., Any]]] = {
    AllReduce: _all_reduce,
    AllGather: _all_gather,
    ReduceScatter: _reduce_scatter,
    AllToAll: _all_to_all,
    Permute: _permute,
}
"""For each collective the factory `(op, namespace)` of the function that carries it out."""
