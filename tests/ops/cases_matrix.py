"""Example cases of ops on matrices, and of parts at positions: rows of the table in `cases`."""

from __future__ import annotations

import numpy as np
from mithril import ops

from tests.ops.arrays import floats, integers

X, CUBE = floats(4, 6), floats(2, 4, 6, seed=5)
N = integers(4, 6, seed=1) - 2


def at(*starts: int, dtype: str = "int32") -> tuple[np.ndarray, ...]:
    """Return integer scalars."""
    return tuple(np.asarray(start, dtype) for start in starts)


# fmt: off
MATRIX: list[list] = [
    *(
        [ops.DynamicSlice(axes, sizes), x, *at(*starts)]
        for x, axes, sizes, starts in (
            (X, (1,), (3,), (2,)), (X, (1,), (1,), (5,)), (X, (0, 1), (2, 4), (1, 1)),
            (X, (1,), (4,), (-3,)), (X, (0,), (3,), (9,)), (CUBE, (1,), (2,), (1,)), (X, (), (), ()),
            (N, (0,), (2,), (1,)),
        )
    ),
    [ops.DynamicSlice((1,), (2,)), X, *at(3, dtype="int64")],
    [ops.DynamicSlice((1,), (2,)), X, *at(2**31 + 5, dtype="uint32")],
    *(
        [ops.DynamicUpdateSlice(axes), x, update, *at(*starts)]
        for x, update, axes, starts in (
            (X, floats(4, 1, seed=1), (1,), (2,)), (X, floats(4, 3, seed=1), (1,), (1,)),
            (X, floats(4, 4, seed=1), (1,), (2,)), (X, floats(2, 5, seed=1), (0, 1), (1, 1)),
            (X, floats(4, 2, seed=1), (1,), (-1,)), (X, floats(1, 6, seed=1), (0,), (8,)),
            (CUBE, floats(2, 1, 6, seed=1), (1,), (3,)), (X, floats(4, 6, seed=1), (), ()),
            (N, integers(4, 1, seed=3), (1,), (4,)), (CUBE, floats(1, 4, 6, seed=1), (0,), (1,)),
        )
    ),
    [ops.DynamicUpdateSlice((0,)), X, floats(1, 6, seed=2), *at(2, dtype="uint8")],
]
# fmt: on
