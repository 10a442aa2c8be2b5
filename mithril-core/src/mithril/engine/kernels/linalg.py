"""The kernel of einsum: one batched matrix product, with transposes as views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.linalg import Einsum
from mithril.types import Shape, TensorType


@kernel(Einsum)
def einsum(op: Einsum, types: Sequence[TensorType], xp: ModuleType) -> Run:
    """Arrange both operands as [batch, rows, contracted] and [batch, contracted, columns].

    16-bit floats are multiplied in float32.
    """
    left, right, result = op.terms
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in left if c not in right]
    contracted = [c for c in left if c in right and c not in result]
    columns = [c for c in right if c not in left]
    sizes = dict(zip(left + right, types[0].shape + types[1].shape, strict=True))

    def size(letters: Sequence[str]) -> int:
        return math.prod(sizes[c] for c in letters)

    outer = tuple(sizes[c] for c in batch)
    arrange_left = _arrange(
        left, types[0].shape, [*batch, *rows, *contracted], (*outer, size(rows), size(contracted))
    )
    arrange_right = _arrange(
        right,
        types[1].shape,
        [*batch, *contracted, *columns],
        (*outer, size(contracted), size(columns)),
    )
    produced = "".join([*batch, *rows, *columns])
    arrange_result = _rearrange(
        (*outer, size(rows), size(columns)), tuple(sizes[c] for c in produced), produced, result
    )
    multiply = xp.matmul

    def run(x: Any, y: Any) -> Any:
        return arrange_result(multiply(arrange_left(x), arrange_right(y)))

    if types[0].dtype.itemsize >= 4:
        return run
    wide, dtype = np.dtype(np.float32), types[0].dtype.numpy
    return lambda x, y: xp.asarray(
        run(xp.asarray(x, dtype=wide), xp.asarray(y, dtype=wide)), dtype=dtype
    )


def _arrange(term: str, sizes: Shape, wanted: Sequence[str], shape: Shape) -> Run:
    """Return the function that transposes, then reshapes; it does only what changes something."""
    order = tuple(term.index(c) for c in wanted)
    if order != tuple(range(len(order))):
        return lambda x: x.transpose(order).reshape(shape)
    return (lambda x: x) if shape == sizes else lambda x: x.reshape(shape)


def _rearrange(sizes: Shape, shape: Shape, produced: str, wanted: str) -> Run:
    """Return the function that reshapes, then transposes; it does only what changes something."""
    order = tuple(produced.index(c) for c in wanted)
    if order != tuple(range(len(order))):
        return lambda x: x.reshape(shape).transpose(order)
    return (lambda x: x) if shape == sizes else lambda x: x.reshape(shape)
