"""Kernels of attention: expansions, for some of the queries at a time where there are many scores.

All scores of a long sequence take far more room than whatever else a layer makes, and more than the
processor's cache; those of some queries fit. Queries are taken one part after another by a loop.
Where they are causal, there is a loop for each fourth of them, with the keys that it may see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from mithril.spi import DType, KernelRun, TensorType, Types, accumulator, as_dtype, ops

AT_ONCE = {"cpu": 3 << 19}
"""How many scores are worked on at a time, by platform: in cache, and enough for all cores."""
AT_ONCE_ELSEWHERE = 1 << 28
"""On others: they have no such cache, but 1 GiB of scores is enough for them."""
LOOPS = 4
"""So many loops skip most keys that causal queries do not see; each takes time to compile."""

Expand = Callable[[ops.Attention | ops.AttentionGradient, Types], KernelRun]


@dataclass(frozen=True)
class Cut:
    """Queries that one loop goes through, some rows at a time, and how many keys they may see."""

    start: int
    rows: int
    times: int
    keys: int


def count_scores_at_once(platform: str) -> int:
    """Return how many scores are worked on at a time on devices of a platform."""
    return AT_ONCE.get(platform, AT_ONCE_ELSEWHERE)


def attention(op: ops.Attention, types: Types, expand: Expand, platform: str) -> KernelRun:
    """The expansion for each part, whose results are put together."""
    cuts = _cut(op.causal, types, count_scores_at_once(platform))
    loops = [_Loop(cut, op, types, 3, expand) for cut in cuts]
    if not loops:
        return expand(op, types)
    wide, narrow = accumulator(types[0].dtype), types[0].dtype.numpy
    (b, length, h, _), e = types[0].shape, types[2].shape[3]

    def run(*operands: Any) -> Any:
        given = [*(lax.convert_element_type(x, wide) for x in operands[:3]), *operands[3:]]
        made = (jnp.zeros((b, length, h, e), wide), jnp.zeros((b, h, length), wide))
        for loop in loops:
            made = lax.fori_loop(0, loop.cut.times, partial(loop.attend, given), made)
        return lax.convert_element_type(made[0], narrow), made[1]

    return run


def attention_gradient(
    op: ops.AttentionGradient, types: Types, expand: Expand, platform: str
) -> KernelRun:
    """The expansion for each part; what keys and values get of all of them is added up."""
    cuts = _cut(op.causal, types, count_scores_at_once(platform))
    loops = [_Loop(cut, op, types, 6, expand) for cut in cuts]
    if not loops:
        return expand(op, types)
    wide, narrow = accumulator(types[0].dtype), types[0].dtype.numpy

    def run(*operands: Any) -> Any:
        given = [*(lax.convert_element_type(x, wide) for x in operands[:6]), *operands[6:]]
        made = tuple(map(jnp.zeros_like, given[:3]))
        for loop in loops:
            made = lax.fori_loop(0, loop.cut.times, partial(loop.add, given), made)
        return tuple(lax.convert_element_type(x, narrow) for x in made)

    return run


class _Loop:
    """A loop over the parts of some queries.

    Args:
        cut: these queries.
        op: attention or its gradient.
        types: of all operands: q, k and v first, what else belongs to queries, and masks.
        masks: where masks begin.
        expand: returns the expansion of an op.
    """

    def __init__(
        self,
        cut: Cut,
        op: ops.Attention | ops.AttentionGradient,
        types: Types,
        masks: int,
        expand: Expand,
    ) -> None:
        self.cut = cut
        self._masks = masks
        # The last query sees the last key: a query sees so many keys behind its own number.
        self._behind = types[1].shape[1] - types[0].shape[1] if op.causal else None
        self._sizes = [type.shape for type in types]
        given = [
            TensorType(self._cut_shape(number), as_dtype(accumulator(type.dtype)))
            if number < masks
            else type.with_shape(self._cut_shape(number))
            for number, type in enumerate(types)
        ]
        if op.causal:
            given.append(TensorType((1, 1, cut.rows, cut.keys), DType.bool_))
        self._run = expand(replace(op, causal=False), given)

    def attend(self, operands: Sequence[Any], number: Any, made: Any) -> Any:
        """Return outputs and statistics with those of one part in them."""
        start = self._find_start(number)
        found = self._run_part(operands, start)
        pairs = zip(made, found, (1, 2), strict=True)
        return tuple(lax.dynamic_update_slice_in_dim(x, y, start, at) for x, y, at in pairs)

    def add(self, operands: Sequence[Any], number: Any, made: Any) -> Any:
        """Return gradients with those of one part: queries' in their place, others' added."""
        start, (dq, dk, dv) = self._find_start(number), made
        slope, *more = self._run_part(operands, start)
        sums = (x.at[:, : self.cut.keys].add(y) for x, y in zip((dk, dv), more, strict=True))
        return (lax.dynamic_update_slice_in_dim(dq, slope, start, 1), *sums)

    def _find_start(self, number: Any) -> Any:
        number = lax.convert_element_type(number, np.int32)  # a loop counts wider, if JAX does
        return self.cut.start + number * np.int32(self.cut.rows)

    def _run_part(self, operands: Sequence[Any], start: Any) -> Any:
        """Return what the expansion makes of the part that starts at a query."""
        taken = [self._take(x, place, start) for place, x in enumerate(operands)]
        if self._behind is not None:
            shape = (1, 1, self.cut.rows, self.cut.keys)
            last = lax.broadcasted_iota(np.int32, shape, 2) + (start + self._behind)
            taken.append(lax.ge(last, lax.broadcasted_iota(np.int32, shape, 3)))
        return self._run(*taken)

    def _take(self, x: Any, place: int, start: Any) -> Any:
        """Return what a part needs of an operand."""
        rows, keys = self._find_dimensions(place)
        if rows is not None:
            x = lax.dynamic_slice_in_dim(x, start, self.cut.rows, rows)
        return x if keys is None else lax.slice_in_dim(x, 0, self.cut.keys, axis=keys)

    def _cut_shape(self, place: int) -> tuple[int, ...]:
        sizes = list(self._sizes[place])
        rows, keys = self._find_dimensions(place)
        if rows is not None:
            sizes[rows] = self.cut.rows
        if keys is not None:
            sizes[keys] = self.cut.keys
        return tuple(sizes)

    def _find_dimensions(self, place: int) -> tuple[int | None, int | None]:
        """Return the dimensions of queries and of keys of an operand, where it has them."""
        sizes = self._sizes[place]
        if place >= self._masks:  # [b, h, s, t], each size there or 1
            return 2 if sizes[2] > 1 else None, 3 if sizes[3] > 1 else None
        if place in (1, 2):  # keys and values
            return None, 1
        return (1 if len(sizes) == 4 else 2), None


def _cut(causal: bool, types: Types, at_once: int) -> Iterator[Cut]:
    """Yield the queries of each loop; none if all scores are worked on at once."""
    s, t = types[0].shape[1], types[1].shape[1]
    rows = ops.count_rows_at_once(types[0], types[1], at_once)
    if rows == s:
        return
    count, start = s // rows, 0
    each = math.ceil(count / LOOPS) if causal else count
    for first in range(0, count, each):
        times = min(each, count - first)
        end = start + times * rows
        yield Cut(start, rows, times, max(1, end + t - s) if causal else t)
        start = end
    if start < s:
        yield Cut(start, s - start, 1, t)
