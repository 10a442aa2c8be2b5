"""Numbers that arrays meet: the same at once, inside a function, and as an argument of one."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.types import DType

BACKEND = ml.NumpyBackend(ml.Mesh(x=2))
ARRAYS = {
    name: BACKEND.array(np.asarray([1, 0], name))
    for name in ("bool", "int8", "uint8", "int32", "float32")
}


def add(x: Any, n: Any) -> Any:
    return x + n


inner = ml.jit(add)

WAYS: dict[str, Callable[[ml.Array, Any], ml.Array]] = {
    "at once": add,
    "on the left": lambda x, n: n + x,
    "in a function": lambda x, n: ml.jit(lambda x: x + n)(x),
    "as an argument": ml.jit(add),
    "on the left, as an argument": ml.jit(lambda x, n: n + x),
    "in a function inside": lambda x, n: ml.jit(lambda x: inner(x, n))(x),
    "as an argument of one inside": ml.jit(inner),
}
SUMS = [
    ("int32", np.float32(0.5), [1.5, 0.5], "float32"),
    ("int32", np.float64(0.5), [1.5, 0.5], "float32"),
    ("int32", 0.5, [1.5, 0.5], "float32"),
    ("int8", np.int64(100), [101, 100], "int8"),
    ("bool", np.int64(3), [4, 3], "int32"),
    ("bool", 3, [4, 3], "int32"),
    ("float32", np.float64(0.5), [1.5, 0.5], "float32"),
    ("float32", 2**40, [2.0**40, 2.0**40], "float32"),
    ("int32", True, [2, 1], "int32"),
]
TOO_LARGE = [
    ("int8", 300, "is 300, which is no int8; that holds the integers from -128 to 127; take another"),
    ("int8", np.int16(300), "is 300, which is no int8"),
    ("int8", 2**40, "is 1099511627776, which is no int8"),
    ("uint8", -1, "is -1, which is no uint8; that holds the integers from 0 to 255; take another"),
    ("int32", 2**40, "is 1099511627776, which is no int32"),
    ("bool", 2**40, "is 1099511627776, which is no int32"),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "number", "values", "result"), SUMS, ids=str)
def test_a_number_takes_the_dtype_of_the_array_it_meets(
    way: str, dtype: str, number: Any, values: list[float], result: str
) -> None:
    made = WAYS[way](ARRAYS[dtype], number)
    assert made.dtype == result
    np.testing.assert_array_equal(made.numpy(), np.asarray(values, result))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("dtype", "number", "text"), TOO_LARGE, ids=str)
def test_a_number_that_the_dtype_does_not_hold_is_refused(
    way: str, dtype: str, number: Any, text: str
) -> None:
    with pytest.raises(ml.ShapeError, match=re.escape(text)):
        WAYS[way](ARRAYS[dtype], number)


def test_a_refusal_names_the_argument_or_the_line() -> None:
    x = ARRAYS["int8"]
    with pytest.raises(ml.ShapeError, match=r"^argument 'n' of function 'add' is 300"):
        inner(x, 300)
    with pytest.raises(ml.ShapeError, match=r"^number is 300.*test_numbers\.py:\d+\)$"):
        ml.jit(lambda x: x + 300)(x)


def test_a_plan_made_for_a_small_number_refuses_a_large_one() -> None:
    f = ml.jit(add)
    x = ARRAYS["uint8"]
    assert f(x, 1).numpy().tolist() == [2, 1]
    with pytest.raises(ml.ShapeError, match="argument 'n' of function 'add' is 256"):
        f(x, 256)
    assert f(x, 255 - 1).numpy().tolist() == [255, 254]
    assert f.recompiles == 1


def test_a_number_cast_by_name_is_converted() -> None:
    """As an array of one number is: it wraps around."""
    f = ml.jit(lambda n: mnp.astype(n, "int8"), backend=BACKEND)
    assert f(300).item() == 44


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float16", "float32"])
def test_a_scalar_of_numpy_keeps_its_dtype_where_it_meets_no_array(dtype: str) -> None:
    number = np.ones((), DType(dtype).numpy)[()]
    same = ml.jit(lambda n: n, backend=BACKEND)
    for f in (same, ml.jit(same, backend=BACKEND)):
        assert f(number).dtype == dtype
    assert ml.jit(lambda: same(number), backend=BACKEND)().dtype == dtype
    assert ml.jit(lambda: number, backend=BACKEND)().dtype == dtype


@pytest.mark.parametrize("number", [np.float32(0.5), np.int64(3), np.bool_(True), 2**40])
def test_where_takes_scalars_of_numpy(number: Any) -> None:
    where = ml.jit(lambda c, x: mnp.where(c, number, x))
    for made in (
        where(ARRAYS["bool"], ARRAYS["float32"]),
        mnp.where(ARRAYS["bool"], number, ARRAYS["float32"]),
    ):
        np.testing.assert_array_equal(made.numpy(), np.asarray([number, 0], np.float32))


MADE: dict[str, Callable[[Any, str], object]] = {
    "at once": lambda value, dtype: BACKEND.full((2,), value, dtype=dtype),
    "like another": lambda value, dtype: BACKEND.full_like(ARRAYS["bool"], value, dtype=dtype),
    "in a function": lambda value, dtype: ml.jit(
        lambda: mnp.full((2,), value, dtype), backend=BACKEND
    )(),
}


@pytest.mark.parametrize("way", MADE)
@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (300, "int8", "number is 300, which is no int8"),
        (0.5, "int32", "number is 0.5, which is no int32"),
        (float("nan"), "int32", "number is nan, which is no int32"),
        (float("inf"), "uint8", "number is inf, which is no uint8"),
        (2**64, "uint64", "number is 18446744073709551616, which is no uint64"),
        (10**400, "float32", r"0, which is no float32; that holds numbers up to 1.8e\+308 at most"),
    ],
)
def test_full_refuses_what_the_dtype_does_not_hold(
    way: str, value: Any, dtype: str, text: str
) -> None:
    with pytest.raises(ml.ShapeError, match=text):
        MADE[way](value, dtype)


@pytest.mark.parametrize("way", MADE)
@pytest.mark.parametrize(
    ("value", "dtype"), [(2.0, "int32"), (-128, "int8"), (2**64 - 1, "uint64"), (0.5, "bfloat16")]
)
def test_full_takes_what_it_holds(way: str, value: Any, dtype: str) -> None:
    made: Any = MADE[way](value, dtype)
    assert made.dtype == dtype
    assert made[0].item() == value


@pytest.mark.parametrize("value", [np.float32(2.5), np.asarray(2.5), BACKEND.array(2.5)])
def test_full_takes_a_number_of_numpy_or_of_an_array(value: Any) -> None:
    assert BACKEND.full((2,), value, dtype="float32").numpy().tolist() == [2.5, 2.5]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], r"one number is needed, not values of shape \(2,\); use array"),
        ("1", "values are of type <U1, which is no dtype of Mithril; give numbers"),
    ],
)
def test_full_takes_one_number(value: Any, text: str) -> None:
    with pytest.raises(ml.ShapeError, match=text):
        BACKEND.full((2,), value, dtype="int32")


@dataclass(frozen=True)
class Setting:
    by: float


@pytest.mark.parametrize(
    ("whole", "part"),
    [(frozenset([2]), frozenset([2.0])), (Setting(2), Setting(2.0)), ((2,), (2.0,))],
    ids=str,
)
def test_statics_that_are_equal_and_differ_have_plans_of_their_own(
    whole: object, part: object
) -> None:
    def scaled(x: ml.Array, k: object) -> ml.Array:
        (by,) = (k.by,) if isinstance(k, Setting) else k
        return x * by

    function = ml.jit(scaled, static="k")
    x = ml.NumpyBackend().array([3], dtype="int8")
    assert function(x, whole).dtype == "int8"
    assert function(x, part).dtype == "float32"


def test_a_static_zero_keeps_its_sign() -> None:
    function = ml.jit(lambda x, k: x * k, static="k")
    x = ml.NumpyBackend().ones(1)
    assert [str(function(x, k).item()) for k in (0.0, -0.0)] == ["0.0", "-0.0"]


def test_full_takes_numbers_that_are_known() -> None:
    x = ml.NumpyBackend().ones(2)
    made = ml.jit(lambda x: ml.numpy.full((2,), np.float32(3)) + x)(x)
    assert made.numpy().tolist() == [4, 4]
    for function in (lambda x, n: ml.numpy.full((2,), n), ml.numpy.full_like):
        with pytest.raises(ml.ShapeError, match="full takes a number that is known while"):
            ml.jit(function)(x, 3)


def test_a_number_that_may_meet_float64_is_not_rounded_before() -> None:
    x = BACKEND.array([1.0, 2.0], dtype="float64")
    expected = x.numpy() * 0.1
    for f in (ml.jit(lambda x, r: x * r), ml.jit(ml.checkpoint(mnp.multiply))):
        np.testing.assert_array_equal(f(x, 0.1).numpy(), expected)
        np.testing.assert_array_equal(f(x, np.float64(0.1)).numpy(), expected)
    slope = ml.grad(lambda x, r: (x * r).sum())(x, 0.1)
    np.testing.assert_array_equal(slope.numpy(), np.full(x.shape, 0.1))
    y = ARRAYS["float32"]
    beside = ml.jit(lambda x, y, r: (y * r, r * 2, r, y * mnp.where(y > 1, r, 0.0)))(x, y, 0.1)
    assert [made.dtype for made in beside] == ["float32"] * 4
    slopes = ml.grad(lambda x, r: (x * r).sum(), argnums=(0, 1))(x, 0.1)
    np.testing.assert_allclose([s.numpy().sum() for s in slopes], [0.2, 3.0], rtol=1e-6)


def test_a_number_stays_one_inside_of_checkpoints_loops_and_gradients() -> None:
    x = BACKEND.ones(2, dtype="float16")
    scale = ml.checkpoint(lambda x, s: x * s)
    assert ml.jit(scale)(x, 0.5).dtype == "float16"

    def iterate(carry: Any, _: Any) -> Any:
        x, count = carry
        return (x * 0.5, count + 1), x * count

    plain, again = (
        ml.scan(f, (ARRAYS["float32"], 0), length=2)[1].numpy()
        for f in (iterate, ml.checkpoint(iterate))
    )
    np.testing.assert_array_equal(again, plain)
    loss = ml.grad(lambda s, x: ((x * s).astype("float32").sum(), x * s), has_aux=True)
    assert loss(0.5, x)[1].dtype == "float16"


def test_limits_of_a_number_are_known_inside_of_a_checkpoint() -> None:
    f = ml.jit(ml.checkpoint(add))
    with pytest.raises(ml.ShapeError, match="argument 'n' of function 'add' is 256"):
        f(ARRAYS["uint8"], 256)
