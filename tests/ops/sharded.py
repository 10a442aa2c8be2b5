"""Runs an op in shards as its rule allows, and puts the results together as its rule says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from mithril.ir import Builder, Group, Op, Rule, Tensor, Tensors
from mithril.ir.rule import FactorDims
from mithril.testing.evaluate import assert_close, coarsest, evaluate, type_of
from mithril.types import DType, TensorType

REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
Place = Mapping[str, int]  # for each split factor, the number of the part


def ways(size: int) -> int:
    """Return into how many parts a factor is split: the smallest divisor above 1."""
    return next(n for n in range(2, size + 1) if size % n == 0)


def check_rule(op: Op, arrays: Sequence[np.ndarray], factors: Sequence[str]) -> None:
    """Assert that an op split over some factors gives what the whole op gives."""
    whole = _run(op, arrays)
    types = [type_of(array) for array in arrays]
    rule = op.rule(types, [type_of(result) for result in whole])
    assert not rule.special.intersection(factors), "parts are exchanged: try it on a mesh"
    counts = {factor: ways(rule.sizes[factor]) for factor in factors}
    local = {f: size // counts.get(f, 1) for f, size in rule.sizes.items()}
    outputs = [_local(type_of(y), dims, local) for y, dims in zip(whole, rule.results, strict=True)]
    parts = {}
    for numbers in itertools.product(*(range(count) for count in counts.values())):
        place = dict(zip(counts, numbers, strict=True))
        operands = [
            array if i in rule.ignored else _part(array, dims, rule.sizes, local, place)
            for i, (array, dims) in enumerate(zip(arrays, rule.operands, strict=True))
        ]
        parts[numbers] = _run_shard(op, operands, rule.sizes, local, place, outputs)
    for index, (expected, dims) in enumerate(zip(whole, rule.results, strict=True)):
        pieces = [(dict(zip(counts, n, strict=True)), part[index]) for n, part in parts.items()]
        assert_close(_together(pieces, dims, rule, local, expected), expected)


Pick = str | tuple[int, ...]  # what an axis of 2 devices does: split a factor, or a linear group


def picks(rule: Rule) -> list[Pick]:
    """Return everything one axis of 2 devices may do to an op."""
    apart = rule.special  # parts are exchanged: it is tried on a mesh
    factors = [f for f in rule.splittable if rule.sizes[f] % 2 == 0 and f not in apart]
    return [*factors, *rule.linear]


def is_legal(rule: Rule, chosen: Sequence[Pick]) -> bool:
    """Return whether axes of 2 devices may do this together: parts must be equal."""
    return all(rule.sizes[f] % 2 ** chosen.count(f) == 0 for f in chosen if isinstance(f, str))


def check_picks(op: Op, arrays: Sequence[np.ndarray], chosen: Sequence[Pick]) -> None:
    """Assert that an op gives on a mesh, with axes of 2 devices, what the whole op gives.

    An axis that picks a linear group gives each device summands of the group's operands.
    """
    whole = _run(op, arrays)
    types = [type_of(array) for array in arrays]
    rule = op.rule(types, [type_of(result) for result in whole])
    local = {f: size // 2 ** list(chosen).count(f) for f, size in rule.sizes.items()}
    outputs = [_local(type_of(y), dims, local) for y, dims in zip(whole, rule.results, strict=True)]
    sums = [[axis for axis, p in enumerate(chosen) if _in_group(i, p)] for i in range(len(arrays))]
    terms = [_summands(array, len(axes)) for array, axes in zip(arrays, sums, strict=True)]
    found = []
    for device in itertools.product(range(2), repeat=len(chosen)):
        place = _place(chosen, device)
        operands = [
            array
            if i in rule.ignored
            else _part(terms[i][tuple(device[a] for a in sums[i])], dims, rule.sizes, local, place)
            for i, (array, dims) in enumerate(zip(arrays, rule.operands, strict=True))
        ]
        found.append((place, _run_shard(op, operands, rule.sizes, local, place, outputs)))
    for index, (expected, dims) in enumerate(zip(whole, rule.results, strict=True)):
        pieces = [(place, results[index]) for place, results in found]
        together = _together(pieces, dims, rule, local, expected)
        assert_close(together, expected, coarsest(*arrays, expected))


def _in_group(operand: int, pick: Pick) -> bool:
    return not isinstance(pick, str) and operand in pick


def _place(chosen: Sequence[Pick], device: tuple[int, ...]) -> dict[str, int]:
    """Return the part a device has: of each factor, the first axis being major, and of sums."""
    place: dict[str, int] = {}
    for axis, (pick, at) in enumerate(zip(chosen, device, strict=True)):
        if isinstance(pick, str):
            place[pick] = 2 * place.get(pick, 0) + at
        else:
            place[f"sum over axis {axis}"] = at
    return place


def _summands(array: np.ndarray, axes: int) -> dict[tuple[int, ...], np.ndarray]:
    """Return arrays whose sum is the array, one for each place along some axes of 2 devices."""
    rng = np.random.default_rng(13)
    *places, last = itertools.product(range(2), repeat=axes)
    if array.dtype == bool:  # a sum of truth values is whether one is true
        return {at: array & (rng.random(array.shape) < 0.5) for at in places} | {last: array}
    if array.dtype.kind == "f":
        terms = {at: rng.standard_normal(array.shape).astype(array.dtype) for at in places}
    else:
        terms = {at: rng.integers(-3, 4, array.shape).astype(array.dtype) for at in places}
    return {**terms, last: (array - sum(terms.values())).astype(array.dtype)}


@dataclass
class LocalShard:
    """A shard as `Op.localize` sees it."""

    builder: Builder
    sizes: Mapping[str, int]
    local: Mapping[str, int]
    place: Place
    outputs: Sequence[TensorType]

    def size(self, factor: str) -> int:
        return self.local[factor]

    def whole(self, factor: str) -> int:
        return self.sizes[factor]

    def offset(self, factor: str) -> Tensor | None:
        if factor not in self.place:
            return None
        return self.builder.constant(self.place[factor] * self.local[factor], DType.int32)

    def count(self, factor: str) -> Tensor | None:
        return None  # sizes are even here

    def group(self, factor: str) -> Group | None:
        return None  # special factors are whole here

    def apply(self, op: Op, *operands: Tensor) -> Tensors:
        return self.builder.apply(op, *operands)


def _run(op: Op, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    builder = Builder()
    inputs = [builder.input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    return _evaluated(builder, builder.apply(op, *inputs), arrays)


def _run_shard(
    op: Op,
    arrays: Sequence[np.ndarray],
    sizes: Mapping[str, int],
    local: Mapping[str, int],
    place: Place,
    outputs: Sequence[TensorType],
) -> list[np.ndarray]:
    builder = Builder()
    inputs = [builder.input(type_of(array), f"x{i}") for i, array in enumerate(arrays)]
    results = op.localize(inputs, LocalShard(builder, sizes, local, place, outputs))
    assert [result.type for result in results] == list(outputs)
    return _evaluated(builder, results, arrays)


def _evaluated(
    builder: Builder, results: Tensors, arrays: Sequence[np.ndarray]
) -> list[np.ndarray]:
    graph = builder.build({f"y{i}": result for i, result in enumerate(results)})
    return list(evaluate(graph, {f"x{i}": array for i, array in enumerate(arrays)}).values())


def _local(t: TensorType, dims: FactorDims, local: Mapping[str, int]) -> TensorType:
    return t.with_shape(tuple(math.prod(local[f] for f in dim) for dim in dims))


def _box(dims: FactorDims, local: Mapping[str, int], place: Place) -> tuple[slice, ...]:
    """Return the part in an array that has one dimension per factor."""
    at = [(place.get(f, 0) * local[f], local[f]) for dim in dims for f in dim]
    return tuple(slice(start, start + size) for start, size in at)


def _part(
    array: np.ndarray,
    dims: FactorDims,
    sizes: Mapping[str, int],
    local: Mapping[str, int],
    place: Place,
) -> np.ndarray:
    apart = array.reshape([sizes[f] for dim in dims for f in dim])
    shape = [math.prod(local[f] for f in dim) for dim in dims]
    return apart[_box(dims, local, place)].reshape(shape)


def _together(
    pieces: Sequence[tuple[Place, np.ndarray]],
    dims: FactorDims,
    rule: Rule,
    local: Mapping[str, int],
    like: np.ndarray,
) -> np.ndarray:
    """Lay pieces side by side along factors of the result; reduce over the others."""
    present = [f for dim in dims for f in dim]
    absent = [f for f in pieces[0][0] if f not in present]
    kinds = {rule.reduction(f) for f in absent}
    assert len(kinds) <= 1, "different reductions do not commute; split the factors one by one"
    reduce = REDUCE[kinds.pop()] if kinds else None
    whole = np.empty([rule.sizes[f] for f in present], like.dtype)
    filled = np.zeros(whole.shape, bool)
    for place, piece in pieces:
        box = _box(dims, local, place)
        apart = piece.reshape([local[f] for f in present])
        if filled[box].all() and reduce is not None:
            whole[box] = reduce(whole[box], apart)
        else:
            assert not filled[box].any(), "two shards hold one part of the result"
            whole[box] = apart
        filled[box] = True
    assert filled.all()
    return whole.reshape(like.shape)
