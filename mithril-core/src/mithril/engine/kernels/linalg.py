"""The kernel of einsum: one batched matrix product, with transposes as views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.kernels.registry import Run, kernel
from mithril.ops.linalg import Einsum
from mithril.types import TensorType


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
        left, [*batch, *rows, *contracted], (*outer, size(rows), size(contracted)), xp
    )
    arrange_right = _arrange(
        right, [*batch, *contracted, *columns], (*outer, size(contracted), size(columns)), xp
    )
    produced = [*batch, *rows, *columns]
    shape = tuple(sizes[c] for c in produced)
    order = tuple(produced.index(c) for c in result)
    in_order = order == tuple(range(len(order)))

    def run(x: Any, y: Any) -> Any:
        z = xp.matmul(arrange_left(x), arrange_right(y)).reshape(shape)
        return z if in_order else z.transpose(order)

    if types[0].dtype.itemsize >= 4:
        return run
    wide, dtype = np.dtype(np.float32), types[0].dtype.numpy
    return lambda x, y: xp.asarray(
        run(xp.asarray(x, dtype=wide), xp.asarray(y, dtype=wide)), dtype=dtype
    )


def _arrange(term: str, wanted: Sequence[str], shape: tuple[int, ...], xp: ModuleType) -> Run:
    order = tuple(term.index(c) for c in wanted)
    if order == tuple(range(len(order))):
        return lambda x: x.reshape(shape)
    return lambda x: x.transpose(order).reshape(shape)
