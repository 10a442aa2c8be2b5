"""What MLX's own functions do otherwise than NumPy: every dtype, and numbers at the edges."""

from __future__ import annotations

import math

import mlx.core as mx
import numpy as np
import pytest
from mithril import ops
from mithril.engine.kernels.elementwise import erf_float32
from mithril.ir import Constant, Op
from mithril.ops.collective import KeepFirst, TakeShard
from mithril.testing.arrays import floats, integers
from mithril.testing.evaluate import apply, assert_close, type_of
from mithril.types import DType
from mithril_mlx.kernels import KERNELS, exponential
from mithril_mlx.tensors import to_mlx, to_numpy

from tests.profiles import quick

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
FLOATS = ["bfloat16", "float16", "float32", "float64"]
EDGES = [0.0, -0.0, 0.1, 1, -1, 0.5, 1.5, 2.5, -0.5, -2.5, 3, -7, 30, math.inf, -math.inf, math.nan]


def ran(op: Op, *arrays: np.ndarray) -> list[np.ndarray]:
    """Run an op on MLX."""
    found = KERNELS[op.name](op, [type_of(a) for a in arrays])(*map(to_mlx, arrays))
    return [to_numpy(x) for x in (found if isinstance(found, tuple) else (found,))]


def check(op: Op, *arrays: np.ndarray) -> None:
    """Compare with the core's kernel."""
    with np.errstate(all="ignore"):
        expected = apply(op, *arrays)
    for mine, theirs in zip(ran(op, *arrays), expected, strict=True):
        assert_close(mine, theirs)


def whole(dtype: str) -> np.ndarray:
    """Return integers at the edges of a dtype, and near 0."""
    ends = np.iinfo(dtype)
    near = [-8, -7, -2, -1] if ends.min else [9, 10]
    return np.array([0, 1, 2, 3, 5, 7, 8, 31, *near, ends.max, ends.min], dtype)


def pairs(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    left, right = np.meshgrid(numbers, numbers)
    return np.ascontiguousarray(left), np.ascontiguousarray(right)


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("op", [ops.FloorDivide(), ops.Remainder()], ids=str)
def test_integers_are_divided_by_any_number(op: Op, dtype: str) -> None:
    """Also by 0, and the least one by -1, for which MLX ends the process."""
    check(op, *pairs(whole(dtype)))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("op", [ops.LeftShift(), ops.RightShift()], ids=str)
def test_bits_move_by_as_many_places_as_there_are(op: Op, dtype: str) -> None:
    x, places = pairs(whole(dtype))
    bits = np.iinfo(dtype).bits
    check(op, x, np.where(np.isin(places, [0, 1, 3, 7]), places, bits).astype(dtype))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED])
def test_powers_of_integers(dtype: str) -> None:
    check(ops.Power(), *pairs(whole(dtype)[:-2]))


@quick(lambda dtype: dtype in {"bfloat16", "float64"})
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "op",
    [ops.FloorDivide(), ops.Remainder(), ops.Maximum(), ops.Minimum(), ops.Power(), ops.Divide()],
    ids=str,
)
def test_floats_at_the_edges_meet(op: Op, dtype: str) -> None:
    check(op, *pairs(np.array(EDGES).astype(DType(dtype).numpy)))


@quick(lambda dtype: dtype in {"bfloat16", "float64"})
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "op",
    [
        ops.Sign(), ops.Abs(), ops.Relu(), ops.Round(), ops.Floor(), ops.Ceil(), ops.Trunc(),
        ops.IsNan(), ops.IsInf(), ops.IsFinite(), ops.Exp(), ops.Expm1(), ops.Sigmoid(), ops.Tanh(),
        ops.Sin(), ops.Cos(), ops.Log(), ops.Rsqrt(), ops.Arctan(), ops.Cast(DType.bool_),
    ],
    ids=str,
)  # fmt: skip
def test_a_float_at_the_edge(op: Op, dtype: str) -> None:
    check(op, np.array(EDGES).astype(DType(dtype).numpy))


@pytest.mark.parametrize(
    "op", [ops.Exp(), ops.Sin(), ops.Cos(), ops.Sigmoid(), ops.Erf(), ops.Tanh()], ids=str
)
def test_float64_is_exact(op: Op) -> None:
    x = np.concatenate([np.linspace(-20, 20, 4001), [1e-300, -1e-9, 1e-5, 90.0, -700.0, 700.0]])
    (found,), (expected,) = ran(op, x), apply(op, x)
    near = np.abs(expected) > 1e-3  # what is left of a sine near its zeros has fewer digits
    np.testing.assert_allclose(found[near], expected[near], rtol=1e-12)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(("op", "units"), [(ops.Exp(), 2), (ops.Erf(), 3), (ops.Sigmoid(), 3)])
def test_float64_is_right_to_the_last_bits(op: Op, units: int) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.linspace(-9, 9, 20001), rng.uniform(-700, 700, 20001), [-745.0, -710.0]])
    (found,), (expected,) = ran(op, x), apply(op, x)
    np.testing.assert_allclose(found, expected, rtol=units * np.finfo(float).eps, atol=5e-324)
    if isinstance(op, ops.Erf):
        assert np.abs(found).max() == 1


def test_erf_of_float32_is_that_of_the_core() -> None:
    x = np.linspace(-5, 5, 1001, dtype=np.float32)
    assert_close(ran(ops.Erf(), x)[0], erf_float32(x, np))


@quick(lambda dtype: dtype in {"bfloat16", "float64"})
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(
    "op",
    [
        ops.Max((0,), False), ops.Min((1,), True), ops.Max((0, 1), False), ops.Argmax(0),
        ops.Argmin(1), ops.Sort(1, True), ops.Argsort(0, True), ops.TopK(1, 2),
    ],
    ids=str,
)  # fmt: skip
def test_nan_is_the_extreme_and_comes_last(op: Op, dtype: str) -> None:
    x = floats(6, 5).astype(DType(dtype).numpy)
    x[[1, 3, 3], [2, 0, 4]] = math.nan
    # NumPy leaves NaN anywhere among bfloat16: it is asked in float32.
    expected = apply(op, x.astype(np.float32) if dtype == "bfloat16" else x)
    for mine, theirs in zip(ran(op, x), expected, strict=True):
        np.testing.assert_array_equal(mine.astype(theirs.dtype), theirs)


@quick(lambda dtype: dtype in {"bool", "int8", "uint64"})
@pytest.mark.parametrize("dtype", ["bool", *SIGNED, *UNSIGNED])
@pytest.mark.parametrize(
    "op", [ops.Sum((1,), False), ops.Prod((0,), True), ops.Cumsum(1), ops.Cumsum(0, True)], ids=str
)
def test_totals_of_integers(op: Op, dtype: str) -> None:
    check(op, integers(4, 6, below=2 if dtype == "bool" else 5).astype(dtype))


@quick(lambda dtype: dtype in {"bool", "int8", "uint64"})
@pytest.mark.parametrize("dtype", ["bool", *SIGNED, *UNSIGNED])
@pytest.mark.parametrize("op", [ops.Sort(1, True), ops.Argsort(0, True), ops.TopK(1, 3)], ids=str)
def test_integers_in_descending_order(op: Op, dtype: str) -> None:
    x = integers(4, 6, below=2).astype(dtype)
    if dtype != "bool":
        x[0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    check(op, x)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1 << 25,), (0,)), ((2, 1 << 24), (0, 1)), ((1 << 24, 2), (0,)), ((3, 1 << 24, 1), (0, 1))],
)
def test_many_terms_are_added_up_exactly(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """MLX alone would stop at 2 ** 24."""
    ones = mx.ones(shape)
    op = ops.Sum(axes, False)
    run = KERNELS["sum"](op, [type_of(np.broadcast_to(np.float32(1), shape))])
    wanted = math.prod(shape[i] for i in axes)
    assert to_numpy(run(ones)).tolist() == np.full(op._keep_dims(shape), wanted).tolist()


@pytest.mark.parametrize(
    "op",
    [
        ops.Sum((1,), False), ops.Prod((0, 1), True), ops.Sum((0,), True), ops.Prod((1,), False),
        ops.Cumsum(1), ops.Max((0,), False), ops.Argmin(0), ops.Sort(1, True), ops.Argsort(1),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_reductions_without_terms(op: Op, dtype: str) -> None:
    check(op, np.zeros((3, 0), DType(dtype).numpy))


def test_quantifiers_without_terms() -> None:
    for axes in ((0,), (1,), (0, 1)):
        check(ops.AllTrue(axes, False), np.zeros((2, 0), bool))
        check(ops.AnyTrue(axes, False), np.zeros((2, 0), bool))


def test_16_bit_floats_are_added_up_in_float32() -> None:
    ones = np.ones(4096, DType.bfloat16.numpy)
    assert ran(ops.Sum((0,), False), ones)[0] == 4096
    assert ran(ops.Cumsum(0), ones)[0][-1] == 4096
    assert ran(ops.Einsum("i,i->"), ones, ones)[0] == 4096
    assert ran(ops.Einsum("ai,bi->ab"), ones[None], ones[None])[0] == 4096
    ids = np.zeros(4096, np.int32)
    assert ran(ops.ScatterAdd(1), ids, ones)[0] == 4096
    assert ran(ops.ScatterAlong(0, 1), ids, ones)[0] == 4096


# ------------------------------------------------------------------ ids

IDS = np.array([[2, 5, -1], [0, 3, 7]])
OFFSET = np.asarray(2, np.int32)


@quick(lambda ids: ids in {"int32", "uint8"})
@pytest.mark.parametrize("ids", [*SIGNED, *UNSIGNED])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint32", "bfloat16", "float64"])
def test_ids_outside_a_part_of_a_table_give_zeros(ids: str, dtype: str) -> None:
    table = floats(4, 3).astype(DType(dtype).numpy)
    table[0] = math.inf if DType(dtype).is_float else 1
    check(ops.Take(), table, np.abs(IDS).astype(ids), OFFSET)
    check(ops.Take(8), table, np.abs(IDS).astype(ids), OFFSET)
    check(ops.ScatterAdd(4), np.abs(IDS).astype(ids), floats(2, 3, 5).astype(np.float32), OFFSET)
    check(ops.OneHot(4, DType.float32), np.abs(IDS).astype(ids), OFFSET)


@pytest.mark.parametrize("ids", SIGNED)
def test_an_id_that_names_no_row_is_nan_or_nothing(ids: str) -> None:
    known, at = (IDS >= 0) & (IDS < 4), IDS.astype(ids)
    table = floats(4, 3).astype(np.float32)
    expected = np.where(known[..., None], table[np.where(known, IDS, 0)], math.nan)
    np.testing.assert_array_equal(ran(ops.Take(), table, at)[0], expected)
    np.testing.assert_array_equal(
        ran(ops.Take(4), table[:2], at, np.asarray(0, np.int32))[0],
        np.where((IDS == 0)[..., None], table[0], np.where(known[..., None], 0, math.nan)),
    )
    counts = table.astype(np.int32)
    (found,) = ran(ops.Take(), counts, at)
    np.testing.assert_array_equal(found, np.where(known[..., None], counts[IDS % 4], 0))
    (added,) = ran(ops.ScatterAdd(4), at, np.ones((2, 3), np.float32))
    assert added.tolist() == [1, 0, 1, 1]


def test_positions_that_name_nothing_give_nan_or_are_dropped() -> None:
    x = floats(2, 4).astype(np.float32)
    (found,) = ran(ops.TakeAlong(1), x, IDS.astype(np.int32))
    expected = [[x[0, 2], math.nan, math.nan], [x[1, 0], x[1, 3], math.nan]]
    np.testing.assert_array_equal(found, expected)
    (added,) = ran(ops.ScatterAlong(1, 4), IDS.astype(np.int32), np.ones((2, 3), np.float32))
    assert added.tolist() == [[0, 0, 1, 0], [1, 0, 0, 1]]


@pytest.mark.parametrize("width", [1, 3])
def test_an_empty_table_and_no_ids(width: int) -> None:
    empty, none = np.zeros((0, width), np.float32), np.zeros(0, np.int32)
    assert np.isnan(ran(ops.Take(), empty, np.array([0, 1], np.int32))[0]).all()
    check(ops.Take(), floats(3, width), none)
    check(ops.ScatterAdd(3), none, empty)
    check(ops.TakeAlong(0), floats(3, width), np.zeros((0, width), np.int32))
    check(ops.ScatterAlong(0, 3), np.zeros((0, width), np.int32), empty)


def test_many_updates_are_added_as_few_are() -> None:
    """Beyond some number rows are added in another way."""
    ids, updates = integers(700, below=50), floats(700, 400).astype(np.float32)
    check(ops.ScatterAdd(50), ids, updates)
    check(ops.ScatterAdd(20), ids, updates, np.asarray(10, np.int32))


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "uint8"])
def test_counting_from_an_offset(dtype: str) -> None:
    check(ops.Iota((3, 4, 2), 1, DType(dtype)), np.asarray(5, np.int32))


# ------------------------------------------------------------------ products

EQUATIONS = [
    "ab,bc->ac", "ab,bc->ca", "ab,cb->ac", "ba,bc->ac", "ba,bc->ca", "ba,cb->ca", "abc,dc->abd",
    "abc,dc->dab", "abd,abc->dc", "abd,abc->cd", "abd,dc->abc", "abcd,abe->cde", "abcd,ecd->abe",
    "abcd,edc->abe", "abcd,aebd->acbe", "abc,abd->acd", "abc,acd->bad", "bac,adc->abd", "ab,b->a",
    "b,ab->a", "a,b->ab", "a,b->ba", "ab,ab->", "ab,ba->b", "ab,ba->ba", "ab,bc->abc", "abc,b->ac",
    "abc,bd->dac", "abc,b->abc",
]  # fmt: skip


@quick(lambda dtype: dtype != "bfloat16")
@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_products(equation: str, dtype: str) -> None:
    sizes = dict(zip("abcde", (2, 3, 4, 5, 6), strict=True))
    left, right = equation.partition("->")[0].split(",")
    x, y = (
        floats(*(sizes[c] for c in term), seed=seed).astype(DType(dtype).numpy)
        for seed, term in enumerate((left, right))
    )
    check(ops.Einsum(equation), x, y)
    check(ops.Einsum(equation), x[:0], np.zeros([0 if c == left[0] else sizes[c] for c in right]
          ).astype(x.dtype))  # fmt: skip


# ------------------------------------------------------------------ the rest


@pytest.mark.parametrize("shape", [(5, 3), (2, 1 << 9, 3), (3, (1 << 17) - 5)])
@pytest.mark.parametrize("width", [32, 7])
def test_random_bits_are_those_of_the_core(shape: tuple[int, ...], width: int) -> None:
    seed = np.asarray(4_000_000_000, np.uint32)
    check(ops.RandomBits(shape, shape, -3, width), seed)
    offsets = [np.asarray(n, np.int32) for n in range(len(shape))]
    for times in (4, 1 << 15):  # beyond 32 bits, too
        whole = tuple(times * n for n in shape)
        check(ops.RandomBits(shape, whole, 9, width), seed, *offsets)


@pytest.mark.parametrize("dtype", ["bool", "uint16", "bfloat16", "float64"])
def test_parts_by_a_device_index(dtype: str) -> None:
    x = integers(4, 6, below=2).astype(DType(dtype).numpy)
    for index in range(2):
        check(TakeShard(1, 2), x, np.asarray(index, np.int32))
        check(KeepFirst(), x, np.asarray(index, np.int32))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16"])
def test_zeros_go_between_elements_of_every_dtype(dtype: str) -> None:
    x = integers(2, 3, below=2).astype(dtype)
    check(ops.Pad((1, 0), (0, 2), (1, 2)), x)
    check(ops.Pad((1, 0), (0, 2), (0, 0)), x)
    check(ops.Pad((1, 2), (0, 1), (3, 0)), x[:0])
    check(ops.Pad((0, 2), (1, 1), (3, 1)), x[:, :1])


def test_a_large_constant_is_exact() -> None:
    check(Constant((1 << 63) + 1, DType.uint64))
    check(Constant(-(1 << 63), DType.int64))


def test_a_long_erf_holds_what_is_in_between_of_a_part_alone() -> None:
    """And has the same numbers, to the last bit."""
    x = mx.random.normal((3, 7, 33000), stream=mx.cpu)
    mx.eval(x)
    found = []
    with mx.stream(mx.cpu):
        for run in (exponential._erf_at_once, exponential._erf):
            mx.reset_peak_memory()
            before = mx.get_active_memory()
            y = run(x)
            mx.eval(y)
            found.append((np.array(y), (mx.get_peak_memory() - before) / x.nbytes))
            del y
    (whole, most), (parts, least) = found
    np.testing.assert_array_equal(parts, whole)
    assert least < 0.75 * most
