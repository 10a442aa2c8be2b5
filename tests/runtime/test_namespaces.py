"""A function has one definition, in `mithril.ops`; methods and namespaces show that one."""

from __future__ import annotations

import inspect
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import ops
from mithril.ir import Tensor
from mithril.ir.methods import Methods
from mithril.runtime.functions import ALIASES, EAGER, FUNCTIONS, NOT_EAGER

METHODS = {name for name in vars(Methods) if not name.startswith("_")}
OF_NUMPY = {name for name in dir(np.ndarray) if not name.startswith("_")}
"""What NumPy's arrays have; JAX's have the same methods."""
BESIDES = {"split", "stop_gradient"}
"""Methods that arrays of NumPy lack."""
X = np.array([[3.0, 1.0, 2.0], [0.5, 5.0, 4.0]], np.float32)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "astype": ("int32",), "clip": (1.0, 3.0), "repeat": (2, 1), "reshape": ((3, 2),), "split": (3, 1),
    "swapaxes": (0, 1), "take": (np.array([1, 0]),), "transpose": ((1, 0),),
}  # fmt: skip
MADE = {
    "arange", "array", "asarray", "empty", "empty_like", "eye", "full", "full_like", "linspace",
    "ones", "ones_like", "zeros", "zeros_like",
}  # fmt: skip


def function_of(name: str) -> Any:
    return getattr(ops, ALIASES.get(name, name))


def test_every_function_is_in_every_namespace() -> None:
    backend = ml.NumpyBackend()
    assert {*EAGER} | MADE <= {*mnp.__all__}
    for name in EAGER:
        assert callable(getattr(mnp, name)) and callable(getattr(backend, name))
    for name in MADE - {"asarray", "empty", "empty_like"}:  # other names of the same
        assert callable(getattr(backend, name))
    assert not {*FUNCTIONS} & {*NOT_EAGER}


def test_methods_are_those_of_numpy_that_are_functions_here() -> None:
    assert (OF_NUMPY & {*EAGER}) | BESIDES == METHODS
    for kind in (ml.Array, Tensor):
        assert all(getattr(kind, name) is getattr(Methods, name) for name in METHODS)


@pytest.mark.parametrize("name", sorted(METHODS - {"reshape", "transpose"}))
def test_a_method_takes_what_its_function_takes(name: str) -> None:
    _, *method = inspect.signature(getattr(Methods, name)).parameters.values()
    _, *function = inspect.signature(function_of(name)).parameters.values()
    assert [(p.name, p.kind, p.default) for p in method] == [
        (p.name, p.kind, p.default) for p in function
    ]


@pytest.mark.parametrize("name", sorted(METHODS))
def test_methods_and_functions_do_the_same(name: str) -> None:
    backend = ml.NumpyBackend(ml.Mesh(x=2))
    x = backend.array(X > 2 if name in ("all", "any") else X, sharding=ml.P("x"))
    given = ARGUMENTS.get(name, ())
    by_function = getattr(mnp, name)(x, *given)
    for found in (
        getattr(x, name)(*given),
        getattr(backend, name)(x, *given),
        ml.jit(lambda x: getattr(x, name)(*given))(x),
        ml.jit(lambda x: getattr(mnp, name)(x, *given))(x),
        in_layer(name, given, x),
    ):
        for one, other in zip(parts(found), parts(by_function), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one.numpy(), other.numpy())


def parts(found: Any) -> list[ml.Array]:
    return list(found) if isinstance(found, tuple) else [found]


def in_layer(name: str, given: tuple[Any, ...], x: ml.Array) -> Any:
    @ml.layer(outputs=("a", "b", "c") if name == "split" else ("a",))
    def Body(x: Tensor) -> Any:  # noqa: N802
        made = getattr(x, name)(*given)
        return dict(zip("abc", made, strict=True)) if isinstance(made, tuple) else made

    found = ml.compile(Body(), x.backend).evaluate({}, {"x": x})
    return tuple(found.values())


def test_no_gradient_flows_through_a_stop() -> None:
    x = ml.NumpyBackend().array(X)
    slope = ml.grad(lambda x: (x * x.stop_gradient() * mnp.stop_gradient(x)).sum())(x)
    np.testing.assert_allclose(slope.numpy(), X * X, rtol=1e-6)


@pytest.mark.parametrize("sections", [1, 3, [1], [0, 2], [2, 1], np.array([1, 2])], ids=str)
def test_split_is_that_of_numpy(sections: Any) -> None:
    backend = ml.NumpyBackend(ml.Mesh(x=2))
    for axis in (1, -1):
        x = backend.array(X, sharding=ml.P("x"))
        found = mnp.split(x, sections, axis)
        for one, other in zip(found, np.split(X, sections, axis), strict=True):
            np.testing.assert_array_equal(one.numpy(), other)
    assert [part.shape for part in mnp.split(backend.zeros(0), 2)] == [(0,), (0,)]
    with pytest.raises(
        ml.ShapeError,
        match=r"split dimension 1 of float32\[2, 3\] into 2 equal parts; give a divisor",
    ):
        mnp.split(backend.array(X), 2, axis=1)


INTEGERS = {
    "tensordot": (lambda x, xp: xp.tensordot(x, x, 2), ()),
    "tensordot of one dimension": (lambda x, xp: xp.tensordot(x, x, (-1, 1)), ()),
    "tile": (lambda x, xp: xp.tile(x, 2), ()),
    "reshape": (lambda x, xp: xp.reshape(x, 6), ()),
    "reshape by a method": (lambda x, xp: x.reshape(-1), ()),
    "reshape by integers of NumPy": (lambda x, xp: x.reshape(np.int64(3), np.int8(2)), ()),
    "broadcast_to": (lambda x, xp: xp.broadcast_to(x[0, 0], 3), ()),
    "pad": (lambda x, xp: xp.pad(x, 1), ()),
    "pad by a pair": (lambda x, xp: xp.pad(x, (1, 2)), ()),
    "pad by pairs": (lambda x, xp: xp.pad(x, ((1, 2), (0, 1))), ()),
    "pad by one pair": (lambda x, xp: xp.pad(x, ((1, 2),)), ()),
    "pad by columns": (lambda x, xp: xp.pad(x, ((1,), (2,))), ()),
    "squeeze": (lambda x, xp: xp.squeeze(x[:1], np.int64(0)), ()),
    "moveaxis": (lambda x, xp: xp.moveaxis(x, [0], -1), ()),
    "transpose": (lambda x, xp: x[0].transpose(0), ()),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_taken_where_numpy_takes_them(name: str) -> None:
    body = INTEGERS[name][0]
    x = ml.NumpyBackend().array(X)
    expected = body(X, np)
    for found in (body(x, mnp), ml.jit(lambda x: body(x, mnp))(x)):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


NAN = float("nan")
REFUSED = {
    "reshape": (lambda x: x.reshape(NAN), "reshape's shape is nan, which is no integer"),
    "roll": (lambda x: mnp.roll(x, 1.5, 0), "roll's shift is 1.5, which is no integer"),
    "transpose": (lambda x: x.transpose(1.5), "transpose's order is 1.5, which is no integer"),
    "expand_dims": (lambda x: mnp.expand_dims(x, 1.5), "expand_dims's axis is 1.5"),
    "squeeze": (lambda x: mnp.squeeze(x, "0"), "a number in squeeze's axis is '0'"),
    "moveaxis": (lambda x: mnp.moveaxis(x, 0, NAN), "moveaxis's destination is nan"),
    "top_k": (lambda x: mnp.top_k(x, 1.5), "top_k's k is 1.5, which is no integer"),
    "tril": (lambda x: mnp.tril(x, 0.5), "tril's k is 0.5, which is no integer"),
    "one_hot": (lambda x: mnp.one_hot(x, 2.5), "one_hot's classes is 2.5, which is no integer"),
    "split": (lambda x: x.split(NAN), "split's sections is nan, which is no integer"),
    "tile": (lambda x: mnp.tile(x, x), "array float32\\[3\\] is no index"),
    "arange": (lambda x: x.backend.arange(NAN), "arange counts from 0 to nan by 1; give finite"),
    "arange in a trace": (
        ml.jit(lambda x: x + mnp.arange(0.0, np.inf)),
        "arange counts from 0.0 to inf by 1; give finite numbers",
    ),
    "arange of text": (lambda x: x.backend.arange("3"), "values are of type <U1"),
    "linspace": (lambda x: x.backend.linspace("0", 1, 3), "values are of type <U1"),
    "linspace of parts": (lambda x: x.backend.linspace(0, 1, 2.5), r"shape \(2.5,\) is not made of integers"),
    "linspace of integers": (
        ml.jit(lambda x: x + mnp.linspace(0, 1, 3, dtype="int32")),
        "linspace makes floats, not int32; use arange, or cast the result",
    ),
    "eye": (lambda x: x.backend.eye(2, k=0.5), "eye's k is 0.5, which is no integer"),
    "eye in a trace": (
        ml.jit(lambda x: x @ mnp.eye(3, k=0.5)), "eye's k is 0.5, which is no integer"
    ),
    "-bool": (lambda x: -(x > 1), "op 'negate' needs numbers, not bool; cast it first"),
    "sign": (lambda x: mnp.sign(x > 1), "op 'sign' needs numbers, not bool; cast it first"),
    "bool - bool": (lambda x: (x > 1) - (x > 2), "op 'subtract' needs numbers, not bool"),
    "logaddexp": (lambda x: mnp.logaddexp(x > 1, x > 2), "op 'logaddexp' needs a float dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_those_of_mithril(name: str) -> None:
    call, text = REFUSED[name]
    with pytest.raises(ml.ShapeError, match=f"^{text}"):
        call(ml.NumpyBackend().array(X))


def test_a_mesh_has_a_largest_size() -> None:
    assert ml.Mesh(x=1 << 20).size == 1 << 20
    for axes in ({"x": 10**9}, {"x": 1 << 11, "y": 1 << 11}):
        with pytest.raises(ml.MeshError, match=r"mesh has \d+ devices; at most 1048576 can be"):
            ml.Mesh(axes)
