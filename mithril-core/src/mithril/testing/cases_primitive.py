"""Example cases of more primitive ops: rows of the table in `cases`."""

from __future__ import annotations

import numpy as np

from mithril import ops
from mithril.testing.arrays import Row, booleans, floats, integers, positive
from mithril.testing.evaluate import apply

X, CUBE = floats(4, 6), floats(2, 4, 6, seed=5)
N = integers(4, 6, below=40, seed=1) - 20
M = integers(4, 6, below=9, seed=2) + 1
ZEROS = np.where(np.arange(24).reshape(4, 6) % 5 == 2, 0, X)  # one or two in a row
ODD = np.array([[np.nan, np.inf, -np.inf, 1.0], [0.0, -2.0, np.nan, 3.0]])


def apart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return divisors like y of which no quotient is near a whole number, where it jumps."""
    while True:
        quotient = x / y
        near = np.abs(quotient - np.round(quotient)) < 0.01
        if not near.any():
            return y
        y = np.where(near.any(tuple(range(near.ndim - y.ndim))), y * 1.037, y)


# Four rows a group go to six places in two rounds; some go nowhere, some places stay empty.
FULL = np.array([[2, -1, 0, 3, 1, 2], [-1, 1, 3, -1, -1, 2]], np.int32)
GONE = np.array([[2, 4, 0, 3, -1, -1, 5, -1], [-1, 1, 5, 2, -1, -1, -1, -1]], np.int32)
# One row a group, to six places in three rounds.
ONE_FULL = np.array([[-1, -1, 0, -1, 0, -1], [0, -1, -1, -1, -1, 0]], np.int32)
ONE_GONE = np.array([[2, -1, 4], [-1, 5, 0]], np.int32)

OWN = np.array([[0, -1, 0], [-1, 1, 1]], np.int32)  # of its own matrix, or of none
CHOSEN = np.array([[2, 0, 3, 2], [0, -1, 2, 2]], np.int32)  # of three matrices; two name none


def _avg_pool(op: ops.AvgPool, *shape: int) -> tuple[Row, Row]:
    x = floats(*shape)
    (y,) = apply(op, x)
    back = ops.AvgPoolGradient(op.window, op.stride, op.padding, op.count_padding, shape[2:])
    return [op, x], [back, floats(*y.shape, seed=1)]


# fmt: off
PRIMITIVE: list[Row] = [
    *([op, X] for op in (
        ops.Sigmoid(), ops.Expm1(), ops.Arctan(), ops.Sinh(), ops.Cosh(), ops.Floor(), ops.Ceil(),
        ops.Round(), ops.Trunc(),
    )),
    [ops.Tan(), floats(4, 6, low=-1.2, high=1.2)],
    [ops.Log1p(), positive(4, 6)],
    *([op, N] for op in (ops.Floor(), ops.Ceil(), ops.Round(), ops.Trunc())),
    [ops.Round(), np.arange(24).reshape(4, 6) / 4 - 3.01],
    *([op, ODD] for op in (ops.IsNan(), ops.IsInf(), ops.IsFinite())),
    *([op, *operands] for op in (ops.FloorDivide(), ops.Remainder()) for operands in (
        (X, apart(X, floats(4, 6, seed=1))), (CUBE, apart(CUBE, positive(6))), (N, M), (N, -M),
    )),
    [ops.Power(), N, integers(4, 6, below=4)],
    [ops.Power(), integers(4, 6, below=4, seed=3) - 2, integers(4, 6, below=7) - 3],
    *([op, N, M] for op in (ops.BitwiseAnd(), ops.BitwiseOr(), ops.BitwiseXor())),
    [ops.BitwiseAnd(), N, integers(6, below=16)],
    [ops.BitwiseInvert(), N],
    *([op, N, integers(4, 6, below=5)] for op in (ops.LeftShift(), ops.RightShift())),
    [ops.LogicalXor(), booleans(4, 6), booleans(4, 6, seed=1)],
    *([ops.Prod(axes, keep), CUBE] for axes in ((0,), (1, 2), (0, 1, 2)) for keep in (False, True)),
    [ops.Prod((1,), False), integers(4, 6)],
    [ops.Cumsum(1), CUBE],
    [ops.Cumsum(0, True), X],
    [ops.Cumsum(1), N],
    [ops.Cumprod(1), CUBE],
    [ops.Cumprod(0, True), X],
    [ops.Cumprod(1), N],
    [ops.Cumprod(1), ZEROS],
    [ops.Cumprod(1, True), ZEROS],
    [ops.Sort(2), CUBE],
    [ops.Sort(0, True), X],
    [ops.Sort(1), N],
    [ops.Argsort(1), CUBE],
    [ops.Argsort(1, True), integers(4, 8, below=3)],
    [ops.TopK(1, 3), X],
    [ops.TopK(0, 4), X],
    [ops.TopK(1, 2), integers(4, 8, below=3)],
    [ops.Flip((0, 2)), CUBE],
    [ops.Flip((1,)), N],
    [ops.TakeAlong(1), CUBE, integers(2, 3, 6, below=4)],
    [ops.TakeAlong(1), CUBE, integers(2, 2, 6, below=4, dtype="uint8")],
    [ops.TakeAlong(0), X, integers(4, 6, below=4, dtype="int64")],
    [ops.ScatterAlong(1, 4), integers(2, 2, 6, below=4), floats(2, 2, 6)],
    [ops.ScatterAlong(0, 5), integers(4, 6, below=5), N],
    [ops.MoeDispatch(), floats(2, 4, 5), FULL, GONE],
    [ops.MoeCombine(4), floats(2, 6, 5, seed=2), GONE, FULL],
    [ops.MoeCombine(1), floats(2, 6, 5, seed=2), ONE_GONE, ONE_FULL],
    [ops.GroupedMatmul(), floats(2, 4, 3, 5), CHOSEN, floats(3, 6, 5, seed=1)],
    [ops.GroupedMatmul(True), floats(2, 4, 3, 5), CHOSEN, floats(3, 5, 6, seed=1)],
    [ops.GroupedMatmul(aligned=True), floats(2, 3, 3, 5), OWN, floats(2, 6, 5, seed=1)],
    [ops.GroupedMatmul(True, True), floats(2, 3, 3, 5), OWN, floats(2, 5, 6, seed=1)],
    [ops.GroupedOuter(2, True), floats(2, 3, 3, 5), floats(2, 3, 3, 6, seed=1), OWN],
    [ops.GroupedOuter(3), floats(2, 4, 3, 5), floats(2, 4, 3, 6, seed=1), CHOSEN],
    *_avg_pool(ops.AvgPool((2, 2), (2, 2), ((0, 0), (0, 0)), True), 2, 4, 4, 6),
    *_avg_pool(ops.AvgPool((3, 2), (2, 1), ((1, 1), (0, 1)), True), 2, 2, 5, 4),
    *_avg_pool(ops.AvgPool((3, 2), (2, 1), ((1, 1), (0, 1)), False), 2, 2, 5, 4),
    *_avg_pool(ops.AvgPool((3,), (1,), ((2, 0),), False), 2, 2, 6),
]
# fmt: on


def infinite(dtype: str) -> tuple[np.ndarray, ...]:
    """Return operands of `GroupedOuter(3)`: infinity for entry 2 left, and for entry 0 right."""
    left, right = (floats(2, 4, 3, n).astype(dtype) for n in (5, 6))
    left[0, :2], right[0, :2] = [[[np.inf]], [[1]]], [[[1]], [[np.inf]]]
    return left, right, CHOSEN
