"""Work of many steps, cut into blocks that stay in the processor's cache.

NumPy makes one pass over memory for each step; a polynomial of twenty steps on a large array waits
for memory most of the time, and for the system to hand out pages for every large temporary. On
blocks it is several times faster.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from mithril.engine.kernels.registry import Run
from mithril.types import Shape

BLOCK = 1 << 15
ROWS_BLOCK = 1 << 17
"""Elements at a time: of elementwise work, and of whole rows."""


def in_blocks(step: Run, xp: ModuleType) -> Run:
    """Return the same elementwise function of arrays of one shape, run block by block.

    Args:
        step: takes arrays of at least one dimension, and returns one of their shape and the first
            one's dtype.
        xp: the array namespace.

    Returns:
        A function of such arrays that may be given `out=`, memory for the result.
    """

    def run(*operands: Any, out: Any = None) -> Any:
        first = operands[0]
        if not first.shape:  # what NumPy computes of a scalar is no array, and takes no `out=`
            return xp.reshape(step(*(xp.reshape(x, (1,)) for x in operands)), ())
        if first.size <= 2 * BLOCK:
            if out is None:
                return step(*operands)
            out[...] = step(*operands)
            return out
        flat = [xp.reshape(operand, (-1,)) for operand in operands]
        result = xp.empty(first.size, dtype=first.dtype) if out is None else out.reshape(-1)
        for start in range(0, first.size, BLOCK):
            part = slice(start, start + BLOCK)
            result[part] = step(*(operand[part] for operand in flat))
        return xp.reshape(result, first.shape)

    return run


def in_row_blocks(
    step: Run,
    lead: Shape,
    width: int,
    kinds: tuple[str, str],
    xp: ModuleType,
    *,
    writes: bool = False,
) -> Run:
    """Return the same function of rows, run on some of them at a time.

    Args:
        step: takes operands whose rows stand along the first dimension, and returns a tuple.
        lead: the dimensions of the operands that count rows.
        width: elements of a row.
        kinds: for each operand and for each result a letter: `r` has rows, `w` is passed whole,
            `+` is added up over the blocks.
        xp: the array namespace.
        writes: whether the step takes `out=`, memory for its first result, which is then of the
            shape and dtype of the first operand; None is to make some.
    """
    rows, (given, made) = math.prod(lead), kinds
    size = max(1, ROWS_BLOCK // max(1, width))
    parts = [slice(i, i + size) for i in range(0, rows, size)]

    def run(*operands: Any) -> Any:
        flat = [
            xp.reshape(x, (rows, *x.shape[len(lead) :])) if kind == "r" else x
            for x, kind in zip(operands, given, strict=True)
        ]
        if len(parts) <= 1:
            results = step(*flat)
        else:
            results, like = None, flat[0]
            first = xp.empty(like.shape, dtype=like.dtype) if writes else None
            for part in parts:
                told = {} if first is None else {"out": first[part]}
                cut = (x[part] if k == "r" else x for x, k in zip(flat, given, strict=True))
                found = step(*cut, **told)
                if results is None:
                    results = _room(found, made, rows, first, xp)
                _collect(found, results, made, part, **told)
        return tuple(
            xp.reshape(y, (*lead, *y.shape[1:])) if kind == "r" else y
            for y, kind in zip(results, made, strict=True)
        )

    return run


def _room(found: Any, kinds: str, rows: int, first: Any, xp: ModuleType) -> list[Any]:
    """Return arrays for the results of all rows, like those of some; the first may be there."""
    made = [
        xp.empty((rows, *y.shape[1:]), dtype=y.dtype) if kind == "r" else xp.zeros_like(y)
        for y, kind in zip(found, kinds, strict=True)
        if first is None or y is not found[0]
    ]
    return made if first is None else [first, *made]


def _collect(found: Any, results: list[Any], kinds: str, part: slice, out: Any = None) -> None:
    for y, result, kind in zip(found, results, kinds, strict=True):
        if y is out:
            continue
        if kind == "r":
            result[part] = y
        else:
            result += y
