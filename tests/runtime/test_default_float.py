"""The default float dtype of a backend or model holds wherever a float dtype is chosen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.ir import Tensor

from tests.profiles import quick, scaled

EXACT = 1e-12
I = np.arange(1, 7, dtype=np.int32).reshape(2, 3)  # noqa: E741
C = np.array([[True, False, True], [False, False, True]])
BODIES: dict[str, tuple[Callable[..., Any], Any]] = {
    "int / int": (lambda i, c: i / 3, I / 3),
    "number / int": (lambda i, c: 1 / i, 1 / I),
    "int * float": (lambda i, c: i * 0.1, I * 0.1),
    "float - bool": (lambda i, c: 0.1 - c, 0.1 - C),
    "int * list": (lambda i, c: i * [0.1, 0.2, 0.3], I * [0.1, 0.2, 0.3]),
    "int ** float": (lambda i, c: i**0.5, I**0.5),
    "reciprocal": (lambda i, c: mnp.reciprocal(i), 1 / I),
    "where": (lambda i, c: mnp.where(c, 0.1, 0.2), np.where(C, 0.1, 0.2)),
    "where of a list": (lambda i, c: mnp.where(c, [0.1, 0.2, 0.3], 0), np.where(C, [0.1, 0.2, 0.3], 0)),
    "where of an int": (lambda i, c: mnp.where(c, i, 0.1), np.where(C, I, 0.1)),
    "clip": (lambda i, c: mnp.clip(i, 1.1, 4.7), np.clip(I, 1.1, 4.7)),
    "maximum": (lambda i, c: mnp.maximum(i, 2.1), np.maximum(I, 2.1)),
    "pad": (lambda i, c: mnp.pad(i, 1, 0.1), np.pad(I.astype(float), 1, constant_values=0.1)),
    "mean": (lambda i, c: mnp.mean(i, 1), I.mean(1)),
    "mean of bools": (lambda i, c: c.mean(), C.mean()),
    "var": (lambda i, c: mnp.var(i), I.var()),
    "std": (lambda i, c: i.std(), I.std()),
    "one_hot": (lambda i, c: mnp.one_hot(i, 9) / 3, np.eye(9)[I] / 3),
    "ones": (lambda i, c: mnp.ones((2,)) / 3, np.ones(2) / 3),
    "full": (lambda i, c: mnp.full((2,), 0.1), np.full(2, 0.1)),
    "zeros": (lambda i, c: mnp.zeros((2,)) + 0.1, np.full(2, 0.1)),
    "eye": (lambda i, c: mnp.eye(2) * 0.1, np.eye(2) * 0.1),
    "arange": (lambda i, c: mnp.arange(0.0, 1.0, 0.1), np.arange(0.0, 1.0, 0.1)),
    "linspace": (lambda i, c: mnp.linspace(0, 1, 7), np.linspace(0, 1, 7)),
    "a list": (lambda i, c: mnp.array([0.1, 0.2]), np.array([0.1, 0.2])),
    "NumPy": (lambda i, c: mnp.asarray(np.array([0.1, 0.2])), np.array([0.1, 0.2])),
    "captured": (lambda i, c: i / 7 + np.full(3, 0.1), I / 7 + 0.1),
    "a number": (lambda i, c: 0.1, np.float64(0.1)),
}  # fmt: skip
EAGER = {
    "ones": (lambda b: b.ones(2) / 3, np.ones(2) / 3),
    "full": (lambda b: b.full((2,), 0.1), np.full(2, 0.1)),
    "linspace": (lambda b: b.linspace(0, 1, 7), np.linspace(0, 1, 7)),
    "arange": (lambda b: b.arange(0.0, 1.0, 0.1), np.arange(0.0, 1.0, 0.1)),
    "eye": (lambda b: b.eye(2) * 0.1, np.eye(2) * 0.1),
    "array": (lambda b: b.array([0.1, 0.2]), np.array([0.1, 0.2])),
    "mnp": (lambda b: mnp.full((2,), 0.1, backend=b), np.full(2, 0.1)),
}


def check(found: ml.Array, expected: Any, dtype: str = "float64") -> None:
    assert found.dtype == dtype
    assert found.shape == np.shape(expected)
    if dtype == "float64":
        np.testing.assert_allclose(found.numpy(), expected, rtol=EXACT, atol=EXACT)


@quick(lambda mesh, dtype: mesh.size == 2 and dtype == "float64")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(x=2)], ids=str)
@pytest.mark.parametrize("name", BODIES)
def test_the_default_holds_in_functions_and_on_arrays(name: str, mesh: ml.Mesh, dtype: str) -> None:
    body, expected = BODIES[name]
    backend = ml.NumpyBackend(mesh, dtype=dtype)
    given = [backend.array(x, sharding=P("x") if mesh.size > 1 else P()) for x in (I, C)]
    check(ml.jit(body, backend=backend)(*given), expected, dtype)
    needs_a_trace = ("ones", "full", "zeros", "eye", "arange", "linspace", "a list", "NumPy")
    if name not in (*needs_a_trace, "a number"):
        check(body(*given), expected, dtype)


@quick(lambda options: "compile" in options)
@pytest.mark.parametrize("options", [{"backend": "float64"}, {"compile": "float64"}], ids=str)
@pytest.mark.parametrize("name", [name for name in BODIES if name != "a number"])
def test_the_default_holds_in_layers(name: str, options: dict[str, str]) -> None:
    body, expected = BODIES[name]

    @ml.layer
    def Body(i: Tensor, c: Tensor) -> Tensor:  # noqa: N802
        return body(i, c)

    backend = ml.NumpyBackend(dtype=options.get("backend"))
    precision = ml.Precision(dtype="float64") if "compile" in options else None
    compiled = ml.compile(Body(), backend, precision=precision)
    check(compiled.evaluate({}, {"i": I, "c": C})["output"], expected)


@pytest.mark.parametrize("name", EAGER)
def test_the_default_holds_where_arrays_are_made(name: str) -> None:
    body, expected = EAGER[name]
    for dtype in ("float64", "float32"):
        check(body(ml.NumpyBackend(dtype=dtype)), expected, dtype)


def test_choices_between_numbers() -> None:
    backend = ml.NumpyBackend()
    condition = backend.array([True, False])
    for x, y, dtype in ((True, False, "bool"), (1, 0, "int32"), (True, 2, "int32"),
                        (0.5, 1, "float32"), ([True, False], True, "bool"), ([1, 2], 3, "int32")):  # fmt: skip
        found = mnp.where(condition, x, y)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy(), np.where([True, False], x, y))
        assert ml.jit(lambda c, x=x, y=y: mnp.where(c, x, y))(condition).dtype == dtype


def test_small_defaults_make_what_is_said_and_compute_in_32_bits() -> None:
    backend = ml.NumpyBackend(dtype="bfloat16")
    i = backend.array(I)
    assert (
        backend.ones(2).dtype == ml.jit(lambda: mnp.ones(2), backend=backend)().dtype == "bfloat16"
    )
    assert (i / 3).dtype == ml.jit(lambda i: i / 3)(i).dtype == "float32"
    assert mnp.mean(i).dtype == "float32"


def test_specs_without_a_dtype_are_of_the_default() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2), dtype="float64")
    compiled = ml.compile(
        ml.Linear(3), backend, shapes={"input": ml.TensorSpec((4, 5), sharding=P("data"))},
        inference=True,
    )  # fmt: skip
    x = backend.array(np.ones((4, 5)), sharding=P("data"))
    compiled.evaluate(compiled.randomize_params(), {"input": x})
    assert compiled.recompiles == 1
    plan = ml.jit(lambda x: x * 2, backend=backend).plan(ml.TensorSpec((4,), sharding=P("data")))
    assert plan.inputs[0].type.dtype == "float64"
    assert ml.TensorSpec((4,)).type.dtype == "float32"
    made = ml.compile(ml.Linear(3), ml.NumpyBackend(), shapes={"input": np.ones((4, 5))})
    assert made.plan.inputs[0].type.dtype == "float32"  # as evaluate() takes it


def test_positions_are_as_exact_as_what_they_are_added_to() -> None:
    compiled = ml.compile(ml.PositionalEncoding(64), ml.NumpyBackend(dtype="float64"))
    found = compiled.evaluate({}, {"input": np.zeros((64, 6))})["output"].numpy()
    rates = 10000.0 ** (-2.0 * (np.arange(6) // 2) / 6)
    angles = np.arange(64)[:, None] * rates
    expected = np.where(np.arange(6) % 2 == 0, np.sin(angles), np.cos(angles))
    np.testing.assert_allclose(found, expected, atol=EXACT)


NUMBERS = st.floats(-8, 8, allow_nan=False, width=64)
LEAVES = st.one_of(st.just("i"), st.just("c"), st.just("ones"), NUMBERS, st.integers(-4, 4))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.tuples(st.sampled_from(["+", "*", "/", "where", "mean"]), inner, inner),
    max_leaves=6,
)


def compute(tree: Any, xp: Any, values: dict[str, Any]) -> Any:
    """Return what an expression gives, in NumPy or Mithril."""
    if not isinstance(tree, tuple):
        return values[tree] if isinstance(tree, str) else tree
    kind, left, right = tree
    x, y = compute(left, xp, values), compute(right, xp, values)
    if kind == "where":
        return xp.where(values["c"], x, y)
    if kind == "mean":
        return xp.mean(values["i"] * x) + y
    if kind == "/":
        return x / (y * y + 3)
    return x + y if kind == "+" else x * y


@settings(max_examples=scaled(200), deadline=None)
@given(TREES)
def test_expressions_under_float64_are_those_of_numpy(tree: Any) -> None:
    backend = ml.NumpyBackend(dtype="float64")

    def body(i: Any, c: Any, xp: Any = mnp) -> Any:
        made = xp.ones((2, 3))
        return compute(tree, xp, {"i": i, "c": c, "ones": made}) + 0.1 * made

    try:
        expected = body(I, C, np)
        found = ml.jit(body, backend=backend)(I, C)
    except (ml.ShapeError, TypeError) as error:  # int32 with floats, say, or bool - bool
        assert "do not mix" in str(error) or "bool" in str(error) or "two Python" in str(error)
        return
    check(found, expected)


def test_kinds_of_arrays_do_not_mix() -> None:
    backend = ml.NumpyBackend(dtype="float64")
    with pytest.raises(
        ml.ShapeError,
        match=r"dtypes int32 and float64 do not mix; the array API standard promotes within one "
        r"kind only; cast one side, such as x.astype\('float64'\)",
    ):
        _ = backend.array(I) + backend.ones((2, 3))
    check(backend.array(I) / backend.full((2, 3), 7.0), I / 7)  # a division has floats
