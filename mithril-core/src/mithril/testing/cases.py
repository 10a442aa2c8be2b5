"""Example cases of every op: the op with its attributes, and the arrays it is applied to.

Floats are float64, distinct and away from 0, so that finite differences hold where an op compares
numbers or has a kink; ties have tests of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mithril import ops
from mithril.ir import Constant, Op
from mithril.ops.conv import Convolution as Conv
from mithril.ops.pool import MaxPool, MaxPoolGradient
from mithril.ops.random import RandomBits
from mithril.testing.arrays import Row, booleans, floats, integers, positive
from mithril.testing.cases_fused import FUSED
from mithril.testing.cases_matrix import MATRIX
from mithril.testing.cases_primitive import PRIMITIVE
from mithril.testing.evaluate import apply
from mithril.testing.levels import first_of_each
from mithril.types import DType

F32, F64, I32, I64, BOOL = DType.float32, DType.float64, DType.int32, DType.int64, DType.bool_


@dataclass(frozen=True, eq=False)
class Case:
    """An op and operands for it."""

    op: Op
    arrays: tuple[np.ndarray, ...]
    number: int

    def __str__(self) -> str:
        return f"{self.op.name}-{self.number}"


def _convolution(op: Conv, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[Row, Row, Row]:
    image, weight = floats(*x), floats(*w, seed=1)
    (y,) = apply(op, image, weight)
    dy = floats(*y.shape, seed=2)
    return (
        [op, image, weight],
        [op.input_gradient(x[2:]), dy, weight],
        [op.weight_gradient(w[2:]), image, dy],
    )


def _max_pool(op: MaxPool, *shape: int) -> tuple[Row, Row]:
    x = floats(*shape)
    (y,) = apply(op, x)
    gradient = MaxPoolGradient(op.window, op.stride, op.padding)
    return [op, x], [gradient, x, y, floats(*y.shape, seed=1)]


X, Y = floats(4, 6), floats(4, 6, seed=1) + 0.031
ROW, COLUMN, SCALAR = floats(6, seed=2) + 0.017, floats(4, 1, seed=3) + 0.013, floats(seed=4) + 0.7
CUBE = floats(2, 4, 6, seed=5)
N = integers(4, 6, seed=1) - 2
TRUTH, LIES = booleans(4, 6), booleans(4, 6, seed=1)
SEED = np.asarray(1234, np.uint32)

# fmt: off
_TABLE: list[Row] = [
    [Constant(2.5, F64)],
    [ops.After(), X, ROW],
    [Constant(-3, I32)],
    [Constant(True, BOOL)],
    *(
        [op, *operands]
        for op in (ops.Add(), ops.Subtract(), ops.Multiply(), ops.Maximum(), ops.Minimum())
        for operands in ((X, Y), (X, ROW), (COLUMN, ROW), (X, SCALAR), (N, integers(6)))
    ),
    [ops.Divide(), X, positive(4, 6)],
    [ops.Divide(), CUBE, positive(4, 1)],
    [ops.Power(), positive(4, 6), Y],
    [ops.Power(), positive(4, 1), ROW],
    *([op, x] for op in (ops.Negate(), ops.Abs(), ops.Sign(), ops.Relu()) for x in (X, N)),
    *([op, X] for op in (
            ops.Exp(), ops.Tanh(), ops.Sin(), ops.Cos(), ops.Erf(), ops.StopGradient(),
        )),
    *([op, positive(4, 6)] for op in (ops.Log(), ops.Sqrt(), ops.Rsqrt())),
    *(
        [op, *operands]
        for op in (
            ops.Equal(), ops.NotEqual(), ops.Less(), ops.LessEqual(), ops.Greater(),
            ops.GreaterEqual(),
        )
        for operands in ((X, ROW), (N, integers(6)))
    ),
    [ops.Add(), TRUTH, LIES],
    [ops.Multiply(), TRUTH, LIES],
    [ops.LogicalAnd(), TRUTH, LIES],
    [ops.LogicalAnd(), TRUTH, booleans(6)],
    [ops.LogicalOr(), TRUTH, LIES],
    [ops.LogicalNot(), TRUTH],
    [ops.Where(), TRUTH, X, Y],
    [ops.Where(), booleans(4, 1), ROW, COLUMN],
    [ops.Where(), TRUTH, N, integers(6)],
    [ops.Cast(F32), X],
    [ops.Cast(F64), X.astype("float32")],
    [ops.Cast(I32), X],
    [ops.Cast(BOOL), N],
    # movement
    [ops.Reshape((24,)), X],
    [ops.Reshape((2, 2, 3, 2)), X],
    [ops.Reshape((8, 6)), CUBE],
    [ops.Reshape((2, 6, 4)), CUBE],
    [ops.Reshape((4, 6, 2)), floats(6, 8)],
    [ops.Reshape((1, 4, 1, 6)), X],
    [ops.Reshape((1,)), SCALAR],
    [ops.Transpose((1, 0)), X],
    [ops.Transpose((2, 0, 1)), CUBE],
    [ops.Transpose((0, 2, 1)), integers(2, 4, 6)],
    [ops.Broadcast((2, 4, 6)), X],
    [ops.Broadcast((4, 6)), COLUMN],
    [ops.Broadcast((4, 6)), SCALAR],
    [ops.Slice((0, 1), (4, 5), (1, 2)), X],
    [ops.Slice((1, 0), (3, 6), (1, 1)), X],
    [ops.Slice((0, 0, 2), (2, 4, 2), (1, 1, 1)), CUBE],
    [ops.Slice((0, 0), (4, 4), (1, 3)), N],
    [ops.Slice((0, 5), (4, 6), (1, 1)), X],
    [ops.Slice((0, 2), (4, 5), (1, 1)), N],
    [ops.Pad((0, 1), (0, 2), (0, 0)), X],
    [ops.Pad((2, 0), (1, 0), (0, 0)), floats(1, 6)],
    [ops.Pad((0, 3), (0, 1), (0, 0)), floats(4, 2)],
    [ops.Pad((0, 0), (0, 1), (0, 1)), floats(4, 3)],
    [ops.Pad((1, 0), (0, 0), (2, 0)), X],
    [ops.Pad((0, 0, 1), (0, 3, 0), (0, 1, 1)), CUBE],
    [ops.Concatenate(0), X, Y],
    [ops.Concatenate(1), X, floats(4, 2), floats(4, 1, seed=1)],
    [ops.Concatenate(1), CUBE, CUBE[:, :2]],
    # contraction
    [ops.Einsum("mk,kn->mn"), X, floats(6, 8)],
    [ops.Einsum("bsd,hd->bsh"), CUBE, floats(4, 6)],
    [ops.Einsum("bsh,bst->bht"), CUBE, floats(2, 4, 8)],
    [ops.Einsum("i,i->"), ROW, floats(6)],
    [ops.Einsum("i,j->ji"), ROW, floats(4)],
    [ops.Einsum("ab,ab->ab"), X, Y],
    [ops.Einsum("bshe,bthe->bhst"), floats(2, 4, 2, 3), floats(2, 6, 2, 3, seed=1)],
    # reductions
    *(
        [op(axes, keep), x]
        for op in (ops.Sum, ops.Max, ops.Min)
        for x, axes, keep in (
            (X, (0,), False), (X, (0, 1), False), (CUBE, (0, 2), True), (CUBE, (1,), False),
            (N, (1,), True), (X, (), False),
        )
    ),
    [ops.Sum((0,), False), TRUTH],
    [ops.Sum((1,), False), integers(4, 6, dtype="int8")],
    *(
        [op(*attributes), TRUTH]
        for op in (ops.AnyTrue, ops.AllTrue)
        for attributes in (((0,), False), ((1,), True), ((0, 1), False))
    ),
    *([op(axis), CUBE] for op in (ops.Argmax, ops.Argmin) for axis in (0, 2)),
    [ops.Argmax(1), N],
    # positions
    [ops.Take(), floats(6, 4), integers(8)],
    [ops.Take(), floats(6, 2, 4), integers(2, 4, dtype="int64")],
    [ops.Take(), floats(6), integers()],
    [ops.Take(), floats(6, 4), integers()],
    [ops.ScatterAdd(6), integers(8), floats(8, 4)],
    [ops.ScatterAdd(6), integers(2, 4), floats(2, 4)],
    [ops.ScatterAdd(256), integers(4, 4, below=256), floats(4, 4, 2)],
    [ops.ScatterAdd(6), integers(8), integers(8, 2, seed=1)],
    [ops.OneHot(6, F64), integers(4, 2)],
    [ops.OneHot(4, F32), integers(8) - 1],
    [ops.Iota((4, 6), 1, I32)],
    [ops.Iota((4, 6), 0, I64)],
    [ops.Iota((2, 4, 6), 1, F64)],
    [RandomBits((4, 6), (4, 6), 3), SEED],
    [RandomBits((2, 3, 4), (2, 3, 4), 0), SEED],
    [RandomBits((6, 4), (6, 4), 1, 5), SEED],
    # more of numbers, order and positions
    *PRIMITIVE,
    *MATRIX,
    # neural networks
    *FUSED,
    # convolutions
    *_convolution(Conv((1, 1), ((0, 0), (0, 0)), (1, 1), 1), (2, 4, 4, 5), (6, 4, 3, 2)),
    *_convolution(Conv((2, 1), ((1, 1), (0, 2)), (1, 2), 1), (2, 2, 5, 4), (4, 2, 3, 2)),
    *_convolution(Conv((2,), ((3, 0),), (1,), 2), (4, 4, 6), (8, 2, 3)),
    *_convolution(Conv((1,), ((1, 1),), (1,), 4), (2, 4, 5), (8, 1, 3)),
    *_convolution(Conv((1, 1), ((0, 0), (0, 0)), (1, 1), 1), (2, 4, 3, 2), (6, 4, 1, 1)),
    *_convolution(Conv((3, 3), ((0, 0), (0, 0)), (1, 1), 1), (2, 2, 4, 5), (4, 2, 1, 1)),
    *_convolution(
        Conv((1, 2, 1), ((1, 0), (0, 0), (0, 1)), (1, 1, 1), 2), (2, 2, 3, 4, 2), (4, 1, 2, 2, 2)
    ),
    *_max_pool(MaxPool((2, 2), (2, 2), ((0, 0), (0, 0))), 2, 4, 4, 6),
    *_max_pool(MaxPool((3, 2), (2, 1), ((1, 1), (0, 1))), 2, 2, 5, 4),
    *_max_pool(MaxPool((3,), (1,), ((2, 0),)), 2, 2, 6),
    *_max_pool(MaxPool((3,), (1,), ((2, 0),)), 3, 2, 6),
    *_max_pool(MaxPool((2, 1, 2), (1, 1, 2), ((0, 0), (0, 0), (1, 0))), 2, 2, 3, 2, 3),
    [MaxPool((2,), (2,), ((1, 1),)), integers(2, 2, 6) - 9],
]
# fmt: on


def _read_only(array: np.ndarray | np.generic) -> np.ndarray:
    array = np.asarray(array).view()
    array.flags.writeable = False
    return array


CASES = [
    Case(op, tuple(map(_read_only, arrays)), number) for number, (op, *arrays) in enumerate(_TABLE)
]


def _kind(case: Case) -> tuple[str, bool]:
    return case.op.name, any(array.dtype.kind == "f" for array in case.arrays)


_FIRST = {case.number for case in first_of_each(CASES, _kind)}


def is_first_of_its_op(case: Case) -> bool:
    """Return whether no case before it has the same op, on floats or without: for `quick`."""
    return case.number in _FIRST


def with_floats(case: Case) -> bool:
    """Return whether gradients can flow through a case: an operand and a result are floats."""
    results = apply(case.op, *case.arrays)
    return any(a.dtype.kind == "f" for a in case.arrays) and any(
        r.dtype.kind == "f" for r in results
    )
