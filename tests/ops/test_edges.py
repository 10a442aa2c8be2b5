"""What the ops say of operands at the edge is what the NumPy engine, the oracle, does."""

from __future__ import annotations

import numpy as np
import pytest
from mithril import ops
from mithril.errors import ShapeError
from mithril.ir import Op
from mithril.testing.evaluate import apply

NAN = float("nan")
SIGNED, ALL = ("int8", "int32", "int64"), ("int8", "int32", "int64", "uint8", "uint32")


def compute(op: Op, *operands: object, dtype: str = "float32") -> list[object]:
    arrays = [x if isinstance(x, np.ndarray) else np.asarray(x, dtype) for x in operands]
    with np.errstate(all="ignore"):
        (found,) = apply(op, *arrays)
    return list(found.tolist())


@pytest.mark.parametrize("dtype", ALL)
def test_whole_division_by_zero_is_zero(dtype: str) -> None:
    for op in (ops.FloorDivide(), ops.Remainder()):
        assert compute(op, [5, 7, 0], [0, 0, 0], dtype=dtype) == [0, 0, 0]


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_least_integer_over_minus_one(dtype: str) -> None:
    least = int(np.iinfo(dtype).min)
    assert compute(ops.FloorDivide(), [least], [-1], dtype=dtype) == [least]
    assert compute(ops.Remainder(), [least, 7], [-1, -1], dtype=dtype) == [0, 0]


@pytest.mark.parametrize("dtype", ALL)
def test_shifts_by_all_bits_and_more(dtype: str) -> None:
    bits = np.dtype(dtype).itemsize * 8
    places = [bits, bits + 3]
    assert compute(ops.LeftShift(), [5, 5], places, dtype=dtype) == [0, 0]
    assert compute(ops.RightShift(), [5, 5], places, dtype=dtype) == [0, 0]
    if dtype in SIGNED:
        assert compute(ops.RightShift(), [-5, -5], places, dtype=dtype) == [-1, -1]


def test_nan() -> None:
    x, y = [1.0, NAN, 3.0], [2.0, 2.0, NAN]
    for op in (ops.Maximum(), ops.Minimum()):
        assert np.isnan(compute(op, x, y)).tolist() == [False, True, True]
    for reduction in (ops.Max((0,), False), ops.Min((0,), False)):
        assert np.isnan(compute(reduction, [x, y])).tolist() == [False, True, True]
    for arg in (ops.Argmax(0), ops.Argmin(0)):
        assert compute(arg, [[3.0, 3.0], [NAN, 1.0], [NAN, 1.0]])[0] == 1
    assert np.isnan(compute(ops.Sign(), x)).tolist() == [False, True, False]
    for descending in (False, True):
        found = compute(ops.Sort(0, descending), [1.0, NAN, 3.0])
        assert np.isnan(found).tolist() == [False, False, True]
        assert compute(ops.Argsort(0, descending), [1.0, NAN, 3.0])[-1] == 1


@pytest.mark.parametrize("bad", [3, -1])
def test_ids_out_of_range(bad: int) -> None:
    table, ids = np.ones((3, 2), np.float32), np.array([0, bad], np.int32)
    for op, operands in (
        (ops.Take(), (table, ids)),
        (ops.TakeAlong(0), (table[:, 0], ids)),
        (ops.ScatterAlong(0, 3), (ids, table[:2, 0])),
        (ops.ScatterAdd(3), (ids, table[:2])),
    ):
        with pytest.raises(ShapeError, match=f"{op.name} meets id {bad}; ids must lie in 0…2"):
            apply(op, *operands)
    offset = np.asarray(0, np.int32)
    assert compute(ops.ScatterAdd(3), ids, table[:2], offset) == [[1, 1], [0, 0], [0, 0]]
    assert compute(ops.Take(), table, ids, offset) == [[1, 1], [0, 0]]
