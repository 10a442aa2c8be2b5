"""Operands at the edge: empty, with ties, NaN and infinity, extreme, and indices of nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from mithril import ops
from mithril.engine import Engine
from mithril.errors import listing
from mithril.ir import Op
from mithril.testing.arrays import floats
from mithril.testing.cases import Case
from mithril.testing.cases_primitive import CHOSEN, infinite
from mithril.testing.check import Check, Mismatch, Missing, Outcome
from mithril.testing.checks.ops import has_no_expansion, judge_op
from mithril.testing.levels import Level
from mithril.testing.merged import MergedCases, narrow, narrow_op
from mithril.testing.smallest import Failing
from mithril.testing.target import Target
from mithril.types import DType

Arrays = tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Edge:
    """An op on operands at the edge; what is right is what NumPy's kernel makes of them."""

    op: Op
    arrays: Callable[[], Arrays]


def _array(*values: object, dtype: str = "float32") -> Callable[[], Arrays]:
    return lambda: tuple(np.asarray(value, dtype) for value in values)


NAN, INF = float("nan"), float("inf")
EMPTY = np.zeros((0, 4), np.float32)
ODD = [1.0, NAN, 3.0, 1.0, -INF, 3.0, INF, NAN, -0.0, 0.0]
OTHERS = [NAN, 2.0, 3.0, -1.0, INF, INF, -INF, NAN, 0.0, -0.0]
FINITE = [1.0, 3.0, -2.0, 3.0, 0.0, -2.0]
LARGE = [1e4, -1e4, 80.0, -80.0, 0.0, 1e-30]
TABLE, IDS = floats(3, 4).astype(np.float32), np.array([2, 3, 0, -1], np.int32)
AGAIN = np.array([1, 2, 1], np.int32)
FLAGS = np.array([True, False, True])
BY_NAN = (
    ops.Add(), ops.Subtract(), ops.Multiply(), ops.Maximum(), ops.Minimum(), ops.Equal(),
    ops.NotEqual(), ops.Less(), ops.LessEqual(), ops.Greater(), ops.GreaterEqual(), ops.Divide(),
)  # fmt: skip
OF_NAN = (
    ops.Negate(), ops.Abs(), ops.Exp(), ops.Tanh(), ops.Relu(), ops.Sigmoid(), ops.Floor(),
    ops.IsNan(), ops.IsInf(), ops.IsFinite(), ops.Sum((0,), False), ops.Max((0,), False),
    ops.Min((0,), False), ops.Cumsum(0), ops.Sort(0), ops.Sort(0, True), ops.Argsort(0),
    ops.Argsort(0, True), ops.TopK(0, 3), ops.StopGradient(), ops.Flip((0,)),
)  # fmt: skip
OF_LARGE = (
    ops.Exp(), ops.Tanh(), ops.Sigmoid(), ops.Erf(), ops.Gelu(False), ops.Gelu(True), ops.Silu(),
    ops.Softmax(0), ops.LogSoftmax(0), ops.RmsNorm(1e-6), ops.Expm1(),
)  # fmt: skip
OF_NOTHING = (
    ops.Softmax(1), ops.Sum((0,), False), ops.Sum((1,), False), ops.Prod((0,), False),
    ops.Transpose((1, 0)), ops.Reshape((4, 0)), ops.Relu(), ops.Cumsum(0), ops.Sort(1),
    ops.Broadcast((3, 0, 4)), ops.Exp(),
)  # fmt: skip


def _of_large(op: Op) -> Callable[[], Arrays]:
    more = ([1.0] * len(LARGE),) if isinstance(op, ops.RmsNorm) else ()
    return _array(LARGE, *more)


def _blocks_without_rows() -> Arrays:
    shapes = ((2, 4, 0, 5), (2, 4, 0, 6))
    left, right = (np.zeros(shape, np.float32) for shape in shapes)
    return left, right, CHOSEN


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _far(*starts: int) -> Callable[[], Arrays]:
    return lambda: (
        np.asarray(77, np.uint32), *(np.asarray(start, np.int32) for start in starts)
    )  # fmt: skip


def _ones(dtype: str) -> Callable[[], Arrays]:
    return lambda: (np.ones(4096, DType(dtype).numpy),)


def _logits() -> Arrays:
    return np.array([[1e4, 0.0, -1e4]], np.float32), np.array([1], np.int32)


EDGES: dict[str, list[Edge]] = {
    "empty": [
        *(Edge(op, lambda: (EMPTY,)) for op in OF_NOTHING),
        Edge(ops.Einsum("ab,cb->ac"), lambda: (EMPTY, TABLE)),
        Edge(ops.Einsum("ab,ac->bc"), lambda: (EMPTY, EMPTY)),
        Edge(ops.Concatenate(0), lambda: (EMPTY, TABLE)),
        Edge(ops.ScatterAdd(3), lambda: (np.zeros(0, np.int32), EMPTY)),
        Edge(ops.Take(), lambda: (TABLE, np.zeros(0, np.int32))),
        Edge(ops.GroupedOuter(3), _blocks_without_rows),
        Edge(ops.Inv(), lambda: (np.zeros((0, 3, 3), np.float32),)),
        Edge(ops.Convolution((1,), ((1, 0),), (1,), 1), lambda: (_zeros(2, 0, 5), _zeros(3, 0, 3))),
        Edge(ops.MaxPool((2,), (1,), ((0, 0),)), lambda: (_zeros(2, 0, 5),)),
        Edge(ops.AvgPool((2,), (1,), ((0, 0),), True), lambda: (_zeros(2, 0, 5),)),
    ],
    "NaN and infinity": [
        *(Edge(op, _array(ODD, OTHERS)) for op in BY_NAN),
        *(Edge(op, _array(ODD)) for op in OF_NAN),
        Edge(
            ops.Where(),
            lambda: (np.array([True, False]), np.array([1, NAN]), np.array([NAN, 2])),
        ),
        Edge(ops.Pad((0,), (2,), (0,)), _array(ODD)),
        Edge(ops.GroupedOuter(3), lambda: infinite("float32")),
        Edge(ops.ScatterAdd(3), lambda: (AGAIN, np.array(ODD[:9], np.float32).reshape(3, 3))),
    ],
    "ties": [
        *(
            Edge(op, _array(FINITE))
            for op in (
                ops.Argmax(0), ops.Argmin(0), ops.Sort(0), ops.Argsort(0), ops.Argsort(0, True),
                ops.TopK(0, 3),
            )
        ),
    ],
    "extremes": [
        *(Edge(op, _of_large(op)) for op in OF_LARGE),
        Edge(ops.CrossEntropy(), _logits),
        Edge(ops.Rsqrt(), _array([1e-30, 1e30, 1.0])),
        Edge(ops.Log(), _array([0.0, 1e-30, 1e30])),
        Edge(ops.Sum((0,), False), _ones("float32")),
        # Sums of 16-bit floats are taken in float32, and rounded once.
        *(Edge(ops.Sum((0,), False), _ones(dtype)) for dtype in ("bfloat16", "float16")),
        Edge(ops.Add(), _array([127, -128], [1, -1], dtype="int8")),
        Edge(ops.Multiply(), _array([2**31 - 1, -(2**31)], [2, 3], dtype="int32")),
        Edge(ops.Subtract(), _array([0, 3], [1, 2], dtype="uint8")),
        Edge(ops.Abs(), _array([-(2**31), -1], dtype="int32")),
    ],
    "integers divided by 0": [
        Edge(op, _array([5, 7, 0], [0, 2, 0], dtype=dtype))
        for op in (ops.FloorDivide(), ops.Remainder())
        for dtype in ("int8", "int32", "int64", "uint8", "uint16", "uint32")
    ],
    "unsigned and booleans": [
        *(
            Edge(op, _array([1, 2, 250], dtype=dtype))
            for op in (ops.Abs(), ops.Relu(), ops.Sign(), ops.Flip((0,)))
            for dtype in ("uint8", "uint16", "uint32")
        ),
        Edge(ops.Flip((0,)), lambda: (FLAGS,)),
        Edge(ops.ScatterAdd(3), lambda: (AGAIN, FLAGS)),
        Edge(ops.ScatterAlong(0, 3), lambda: (AGAIN, FLAGS)),
    ],
    "indices beyond the end": [
        Edge(ops.DynamicSlice((0,), (2,)), lambda: (TABLE, np.asarray(9, np.int32))),
        Edge(ops.OneHot(3, DType.float32), lambda: (IDS,)),
    ],
    "random bits far from the start": [
        Edge(
            ops.RandomBits((2, 3), (1 << 18, 1 << 18), 5), _far((1 << 18) - 2, (1 << 17) + 1)
        ),
        Edge(ops.RandomBits((3, 4), (9, 8), 2, 9), _far(6, 4)),
    ],
}  # fmt: skip


def list_value_checks() -> Iterator[Check]:
    """Yield a check for each kind of edge."""
    for name in EDGES:
        yield Check("values", name, partial(check_edge, name))


def _differ(engine: Engine, chosen: list[tuple[Op, Arrays]]) -> bool:
    """Return whether anything is wrong of ops on operands, all of them in one program."""
    merged = MergedCases(engine)
    for number, (op, arrays) in enumerate(chosen):
        merged.add(Case(op, arrays, number))
    try:
        with np.errstate(all="ignore"):
            return bool(merged.run())
    except Exception:  # whatever a plugin raises; one by one it is named
        return True


def check_edge(name: str, target: Target, level: Level) -> Outcome:
    """Compare ops on operands at an edge with NumPy."""
    engine, missing = target.engine, []
    chosen = []
    for edge in EDGES[name]:
        op = narrow_op(edge.op, engine)
        arrays = tuple(narrow(array, engine) for array in edge.arrays())
        if op.name not in engine.kernels and has_no_expansion(op.name, engine):
            missing.append(op.name)
        elif all(array.dtype.name in engine.dtypes for array in arrays):
            chosen.append((op, arrays))
    failing = []
    for op, arrays in chosen if _differ(engine, chosen) else ():
        with np.errstate(all="ignore"):
            difference = judge_op(engine, op, arrays)
        if difference is not None:
            failing.append(Failing(op, arrays, difference))
    if failing:
        others = dict.fromkeys(case.op.name for case in failing[1:])
        more = f"; wrong as well: {listing(others)}" if others else ""
        raise Mismatch(
            f"{len(failing)} of {len(chosen)} cases: {failing[0]}{more}",
            failing[0].difference.cause,
        )
    if missing and not chosen:
        raise Missing(f"no kernel and no expansion for {listing(dict.fromkeys(missing))}")
    left = f"; without {listing(dict.fromkeys(missing))}, which has no kernel" if missing else ""
    return Outcome(note=f"{len(chosen)} cases{left}")
