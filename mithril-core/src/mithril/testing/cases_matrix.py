"""Example cases of ops on matrices, and of parts at positions: rows of the table in `cases`."""

from __future__ import annotations

import numpy as np

from mithril import ops
from mithril.testing.arrays import Row, floats, integers

X, CUBE = floats(4, 6), floats(2, 4, 6, seed=5)
N = integers(4, 6, seed=1) - 2


def at(*starts: int, dtype: str = "int32") -> tuple[np.ndarray, ...]:
    """Return integer scalars."""
    return tuple(np.asarray(start, dtype) for start in starts)


def spread(*shape: int, seed: int = 0) -> np.ndarray:
    """Return matrices whose singular values are 1, 2, 3, …: none are near one another, or 0."""
    u, _, vh = np.linalg.svd(floats(*shape, seed=seed), full_matrices=False)
    return np.asarray(u * np.arange(1.0, u.shape[-1] + 1) @ vh)


def definite(*shape: int, seed: int = 0) -> np.ndarray:
    """Return positive definite matrices that are not quite symmetric."""
    q, _ = np.linalg.qr(floats(*shape, seed=seed))
    values = np.arange(1.0, shape[-1] + 1)
    product = np.asarray(q * values @ np.swapaxes(q, -1, -2))
    return product + 0.1 * floats(*shape, seed=seed + 1)


# fmt: off
MATRIX: list[Row] = [
    *(
        [ops.DynamicSlice(axes, sizes), x, *at(*starts)]
        for x, axes, sizes, starts in (
            (X, (1,), (3,), (2,)), (X, (1,), (1,), (5,)), (X, (0, 1), (2, 4), (1, 1)),
            (X, (1,), (4,), (-3,)), (X, (0,), (3,), (9,)), (CUBE, (1,), (2,), (1,)),
            (X, (), (), ()),
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
    *([op, definite(*shape)] for op in (ops.Cholesky(), ops.Eigh()) for shape in (
        (3, 3), (4, 3, 3), (2, 2, 4, 4), (2, 1, 1),
    )),
    *([op, spread(*shape)] for op in (ops.Inv(), ops.Det()) for shape in (
        (3, 3), (4, 3, 3), (2, 2, 4, 4), (2, 1, 1),
    )),
    *([op, spread(*shape)] for op in (ops.QR(), ops.SVD()) for shape in (
        (3, 3), (2, 4, 3), (2, 3, 4), (2, 2, 4, 4), (2, 1, 3),
    )),
    [ops.Solve(), spread(3, 3), floats(3, 1, seed=1)],
    [ops.Solve(), spread(4, 3, 3), floats(4, 3, 2, seed=1)],
    [ops.Solve(), spread(2, 2, 4, 4), floats(2, 2, 4, 6, seed=1)],
    *(
        [ops.TriangularSolve(lower, transpose, unit), definite(2, 3, 3), floats(2, 3, 4, seed=1)]
        for lower in (True, False) for transpose in (True, False) for unit in (True, False)
    ),
    [ops.TriangularSolve(), definite(4, 4), floats(4, 2, seed=1)],
]
# fmt: on
