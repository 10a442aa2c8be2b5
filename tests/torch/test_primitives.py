"""Primitive ops as PyTorch writes them: what the conformance cases leave out.

Integers of every width, numbers that are none, ids that name no row, and the way around a device
that cannot be asked, which is also that of `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from mithril import ops
from mithril.ir import Op
from mithril.ops.collective import KeepFirst, TakeShard
from mithril.ops.random import RandomBits
from mithril.testing.cases_primitive import CHOSEN, PRIMITIVE, infinite
from mithril.testing.evaluate import apply, assert_close, coarsest, type_of
from mithril.types import DType

from tests.profiles import quick

torch = pytest.importorskip("torch")
pytest.importorskip("mithril_torch")
from mithril_torch.kernels.callable import kernels_on  # noqa: E402

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
FLOATS = ["bfloat16", "float16", "float32", "float64"]
ARITHMETIC: list[Op] = [
    ops.Add(), ops.Subtract(), ops.Multiply(), ops.Maximum(), ops.Minimum(), ops.Equal(),
    ops.NotEqual(), ops.Less(), ops.LessEqual(), ops.Greater(), ops.GreaterEqual(),
    ops.BitwiseAnd(), ops.BitwiseOr(), ops.BitwiseXor(), ops.FloorDivide(), ops.Remainder(),
]  # fmt: skip
OF_ONE: list[Op] = [
    ops.Negate(), ops.BitwiseInvert(), ops.Abs(), ops.Sign(), ops.Floor(), ops.Sum((0,), False),
    ops.Sum((), False), ops.Max((1,), True), ops.Min((0, 1), False), ops.Argmax(0), ops.Argmin(1),
    ops.Prod((0, 1), True), ops.Prod((), False), ops.Cumsum(1), ops.Cumsum(0, True), ops.Sort(1),
    ops.Sort(0, True), ops.Argsort(0, True), ops.TopK(1, 3), ops.Flip((0,)), ops.Flip(()),
    ops.Slice((0, 1), (4, 5), (1, 2)), ops.Slice((1, 1), (1, 5), (2, 1)),
    ops.Pad((1, 0), (0, 2), (2, 1)), ops.Concatenate(0),
]  # fmt: skip
ODD = np.array(
    [[np.nan, np.inf, -np.inf, 1.5, 0.0, -0.0, -2.5, 2.5],
     [3.0, np.nan, 0.5, -0.5, 1e-30, -1e30, 7.0, np.nan]]
)  # fmt: skip
OF_NUMBERS: list[Op] = [
    ops.Sign(), ops.Abs(), ops.Round(), ops.IsNan(), ops.IsInf(), ops.IsFinite(), ops.Max((1,), 0),
    ops.Min((0,), False), ops.Argmax(1), ops.Argmin(0), ops.Cumsum(1), ops.Prod((1,), False),
]  # fmt: skip
OF_TWO: list[Op] = [
    ops.Maximum(), ops.Minimum(), ops.FloorDivide(), ops.Remainder(), ops.Power(), ops.Divide(),
    ops.Less(), ops.NotEqual(),
]  # fmt: skip
TABLE = np.array([[np.nan, 1], [2, np.inf], [3, 4]], np.float32)
GROUPED = [case for case in PRIMITIVE if isinstance(case[0], ops.GroupedMatmul | ops.GroupedOuter)]
SEED = np.asarray(np.uint32(2**32 - 5))


@pytest.fixture(params=["asked", "not asked"])
def device_is(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: where values may be looked at, and where they may not."""
    if request.param == "not asked":
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


def run(op: Op, *arrays: np.ndarray) -> Iterator[np.ndarray]:
    """Run an op; its results must have the types it infers, and operands stay as they are."""
    types = [type_of(array) for array in arrays]
    operands = [tensor(array) for array in arrays]
    before = [array.tobytes() for array in arrays]
    with torch.inference_mode():
        found = kernels_on("cpu")[op.name](op, types)(*operands)
    assert [plain(operand).tobytes() for operand in operands] == before, "an operand has changed"
    results = [plain(y) for y in (found if isinstance(found, tuple) else (found,))]
    assert [type_of(y) for y in results] == list(op.infer(types)), op
    return iter(results)


def tensor(array: np.ndarray):
    if array.dtype == DType.bfloat16.numpy:
        return torch.from_numpy(np.array(array.view(np.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def plain(x) -> np.ndarray:
    x = x.contiguous()
    if x.dtype == torch.bfloat16:
        return x.view(torch.int16).numpy().view(DType.bfloat16.numpy)
    return x.numpy()


def check(op: Op, *arrays: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        expected = apply(op, *arrays)
    for found, wanted in zip(run(op, *arrays), expected, strict=True):
        assert_close(found, wanted, coarsest(*arrays, wanted))


def numbers(dtype: str, seed: int = 0) -> np.ndarray:
    """Return integers over the whole range, its ends, 0 and 1 among them."""
    ends = np.iinfo(dtype)
    x = np.random.default_rng(seed).integers(ends.min, ends.max, (4, 6), dtype, endpoint=True)
    x.flat[seed : seed + 4] = [ends.min, ends.max, 0, 1]
    return x


def odd(dtype: str) -> np.ndarray:
    with np.errstate(over="ignore"):
        return ODD.astype(DType(dtype).numpy)


def small(dtype: str, below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, below, shape).astype(DType(dtype).numpy)


@quick(lambda dtype: dtype in {"int8", "uint32"})
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", ARITHMETIC, ids=str)
def test_arithmetic_of_integers_wraps_around(op: Op, dtype: str) -> None:
    x, y = numbers(dtype), numbers(dtype, seed=1)
    check(op, x, y)
    check(op, x, y[0])
    check(op, x, np.asarray(y[3, 3]))
    check(op, np.asarray(y[3, 3]), x)


@quick(lambda dtype: dtype in {"int8", "uint32"})
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("op", OF_ONE, ids=str)
def test_ops_of_one_integer_operand(op: Op, dtype: str) -> None:
    check(op, numbers(dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_shifts_powers_choices_and_casts_of_integers(dtype: str) -> None:
    x, few = numbers(dtype), small(dtype, 5, 4, 6)
    for op in (ops.LeftShift(), ops.RightShift(), ops.Power()):
        check(op, x, few)
        check(op, x, np.asarray(few[0, 0]))
    check(ops.Where(), x > 3, x, few)
    for target in ("bool", *INTEGERS, "bfloat16", "float32", "float64"):
        check(ops.Cast(DType(target)), x)
    check(ops.Iota((2, 5, 3), 1, DType(dtype)))
    check(ops.Iota((7,), 0, DType(dtype)), np.asarray(np.int32(9)))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "same"])
def test_ids_of_every_type(dtype: str, kind: str, device_is: None) -> None:
    kind, ids = dtype if kind == "same" else kind, small(dtype, 4, 2, 3)
    table, updates = small(kind, 100, 4, 5), small(kind, 50, 2, 3, 5)
    check(ops.Take(), table, ids)
    check(ops.ScatterAdd(4), ids, updates)
    check(ops.TakeAlong(0), table, small(dtype, 4, 3, 5))
    check(ops.ScatterAlong(1, 6), ids, updates[:, :, 0].copy())
    check(ops.OneHot(3, DType(kind)), ids)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OF_NUMBERS, ids=str)
def test_nan_and_infinity_pass_as_in_numpy(op: Op, dtype: str) -> None:
    check(op, odd(dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", OF_TWO, ids=str)
def test_nan_and_infinity_meet_as_in_numpy(op: Op, dtype: str) -> None:
    x = odd(dtype)
    two = np.asarray(np.array(2, x.dtype))
    check(op, x, x[::-1].copy())
    check(op, x, two)
    check(op, two, x)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])  # NumPy cannot sort bfloat16
@pytest.mark.parametrize("descending", [False, True])
def test_nan_is_sorted_last(dtype: str, descending: bool) -> None:
    x = odd(dtype)
    check(ops.Sort(1, descending), x)
    check(ops.Argsort(1, descending), x)
    check(ops.TopK(1, 6), x)


def test_nan_of_bfloat16_is_sorted_last() -> None:
    (found,) = run(ops.Sort(1, True), odd("bfloat16"))
    (exact,) = apply(ops.Sort(1, True), ODD)
    assert_close(found.astype(np.float64), exact, DType.bfloat16)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bit_floats_are_accumulated_in_float32(dtype: str) -> None:
    ones = np.ones((4096, 2), DType(dtype).numpy)
    zeros = np.zeros((4096, 2), np.int32)
    (total,) = run(ops.Sum((0,), False), ones)
    (rows,) = run(ops.ScatterAdd(1), zeros[:, 0].copy(), ones)
    (places,) = run(ops.ScatterAlong(0, 1), zeros, ones)
    (running,) = run(ops.Cumsum(0), ones)
    for found in (total, rows[0], places[0], running[-1]):
        np.testing.assert_array_equal(found.astype(np.float32), [4096, 4096])


@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *FLOATS])
def test_choice_between_large_operands_keeps_every_bit(dtype: str, device_is: None) -> None:
    x = (np.random.default_rng(0).standard_normal((96, 64)) * 50).astype(DType(dtype).numpy)
    y = x[::-1].copy()
    if DType(dtype).is_float:
        x[0, 0], y[0, 1], x[3] = np.nan, np.inf, -0.0
    condition = np.random.default_rng(1).random((96, 64)) > 0.5
    zero, three = (np.asarray(np.array(n).astype(x.dtype)) for n in (0, 3))
    for where in (condition, condition[:1], condition[:, :1], np.asarray(True)):
        for pair in ((x, y), (x, zero), (zero, x), (x, three), (x[:1], y), (x[:, :1], y[:1])):
            shown = np.broadcast_shapes(where.shape, *(a.shape for a in pair))
            (found,) = run(ops.Where(), where, *pair)
            expected = np.where(where, *pair)
            assert found.shape == shown
            np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("offset", [0, 3, 6])
def test_a_part_of_the_rows(offset: int, device_is: None) -> None:
    """Ids that lie elsewhere give zeros, whatever stands in the rows."""
    start, ids = np.asarray(np.int32(offset)), np.array([[0, 3, 8], [4, 5, 5]], np.int32)
    check(ops.Take(9), TABLE, ids, start)
    check(ops.Take(), TABLE, np.array(4, np.int64), start)
    check(ops.ScatterAdd(3, 9), ids, np.ones((2, 3, 2), np.float32), start)
    check(ops.ScatterAdd(3, 9), ids, np.ones((2, 3), np.int32), start)
    check(ops.OneHot(3, DType.float16), ids, start)


def test_an_id_that_names_no_row(device_is: None) -> None:
    """What is taken there is NaN, 0 of integers; what is added there is dropped."""
    ids, start = np.array([2, 9, -1, 0], np.int32), np.asarray(np.int32(0))
    for (found,) in (run(ops.Take(), TABLE, ids), run(ops.Take(9), TABLE, ids, start)):
        np.testing.assert_array_equal(found[[0, 3]], TABLE[[2, 0]])
        assert np.isnan(found[[1, 2]]).all()
    (found,) = run(ops.Take(), np.arange(3), ids)
    np.testing.assert_array_equal(found, [2, 0, 0, 0])
    (found,) = run(ops.TakeAlong(0), np.arange(3.0), ids)
    np.testing.assert_array_equal(found, [2, np.nan, np.nan, 0])
    for dtype in ("float32", "bfloat16", "int32", "uint32"):
        ones = np.ones((4, 2), DType(dtype).numpy)
        (found,) = run(ops.ScatterAdd(3), ids, ones)
        np.testing.assert_array_equal(found.astype(int), [[1, 1], [0, 0], [1, 1]])
        (found,) = run(ops.ScatterAlong(0, 3), ids, ones[:, 0].copy())
        np.testing.assert_array_equal(found.astype(int), [1, 0, 1])


@pytest.mark.parametrize("index", [0, 1, 2])
def test_what_belongs_to_a_device(index: int, device_is: None) -> None:
    x, place = np.arange(24.0).reshape(4, 6), np.asarray(np.int32(index))
    check(TakeShard(1, 3), x, place)
    check(KeepFirst(), np.where(x == 3, np.nan, x), place)


@pytest.mark.parametrize(
    ("shape", "whole", "offsets"),
    [
        ((), (), ()),
        ((5,), (5,), ()),
        ((3, 70001), (3, 70001), ()),
        ((2, 66000), (300, 70001), (298, 4001)),
        ((2, 10), (2, 1 << 31), (0, (1 << 31) - 10)),
        ((2, 66000), (3, 1 << 31), (1, (1 << 31) - 66000)),
        ((0, 3), (0, 3), ()),
    ],
)
@pytest.mark.parametrize("width", [32, 24, 1])
def test_random_bits_of_parts_and_blocks(
    shape: tuple[int, ...],
    whole: tuple[int, ...],
    offsets: tuple[int, ...],
    width: int,
    device_is: None,
) -> None:
    starts = [np.asarray(np.int32(n)) for n in offsets]
    check(RandomBits(shape, whole, 0xFFFFFFFF - 3, width), SEED, *starts)


def test_blocks_of_entries(device_is: None) -> None:
    """Also where one is no number, which others are not, and where blocks have no rows."""
    for op, *arrays in GROUPED:
        check(op, *arrays)
    check(ops.GroupedOuter(3), *infinite("float32"))


EMPTY = np.zeros((0, 4), np.float32)
NO_ROWS = np.zeros((2, 4, 0, 4), np.float32)
NO_IDS = np.zeros(0, np.int32)


@pytest.mark.parametrize(
    ("op", "arrays"),
    [
        *(
            (op, [EMPTY])
            for op in (
                ops.Sum((1,), True), ops.Prod((0, 1), False), ops.Cumsum(0), ops.Sort(0),
                ops.Argsort(1, True), ops.Flip((0,)), ops.Pad((1, 0), (0, 0), (2, 1)),
                ops.Reshape((4, 0)), ops.Max((1,), False), ops.Argmax(1),
            )
        ),
        (ops.Take(), [TABLE, NO_IDS]),
        (ops.ScatterAdd(3), [NO_IDS, EMPTY]),
        (ops.TakeAlong(0), [EMPTY, np.zeros((0, 4), np.int32)]),
        (ops.ScatterAlong(0, 3), [np.zeros((0, 4), np.int32), EMPTY]),
        (ops.OneHot(3, DType.int8), [NO_IDS]),
        (ops.GroupedMatmul(), [NO_ROWS, CHOSEN, np.zeros((3, 6, 4), np.float32)]),
        (ops.GroupedOuter(3), [NO_ROWS, NO_ROWS, CHOSEN]),
    ],
)  # fmt: skip
def test_empty_operands(op: Op, arrays: list[np.ndarray], device_is: None) -> None:
    check(op, *arrays)
