"""mithril.numpy: one name for arrays, for NumPy's arrays beside them, and for traced values."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.runtime.functions import EAGER

from tests.conformance.engines import PACKAGES
from tests.functional.backends import close, every_backend, floats, opened
from tests.profiles import quick

X, Y = np.abs(floats(4, 6)) + 0.5, np.abs(floats(4, 6, seed=1)) + 0.5

CALLS = {
    "abs": (lambda np, x, y: np.abs(x - y)),
    "add": (lambda np, x, y: np.add(x, y)),
    "all": (lambda np, x, y: np.all(x > y, axis=1)),
    "arccosh": (lambda np, x, y: np.acosh(1 + x)),
    "arcs": (lambda np, x, y: np.asin(x / 4) + np.acos(y / 4) + np.atan2(x, -y)),
    "arctanh": (lambda np, x, y: np.atanh(x / 4) - np.asinh(y)),
    "argmax": (lambda np, x, y: np.argmax(x, axis=1)),
    "argsort": (lambda np, x, y: np.argsort(x, axis=1)),
    "astype": (lambda np, x, y: np.astype(x, np.int32)),
    "atan": (lambda np, x, y: np.atan(x)),
    "broadcast_to": (lambda np, x, y: np.broadcast_to(x[0], (4, 6))),
    "clip": (lambda np, x, y: np.clip(x, 0.6, 1.0)),
    "concat": (lambda np, x, y: np.concat([x, y], axis=1)),
    "cumulative_sum": (lambda np, x, y: np.cumulative_sum(x, axis=1)),
    "count_nonzero": (lambda np, x, y: np.count_nonzero(np.astype(x, np.int32), axis=1)),
    "diff": (lambda np, x, y: np.diff(x, 2, axis=1, prepend=y[:, :1], append=y[:, 1:3])),
    "einsum": (lambda np, x, y: np.einsum("ij,kj->ik", x, y)),
    "einsum of one": (lambda np, x, y: np.einsum("...ii->i...", (x @ y.T)[None])),
    "einsum of several": (lambda np, x, y: np.einsum("...j,kj,k->k...", x, y, x[:, 0])),
    "exp": (lambda np, x, y: np.exp(x)),
    "expand_dims": (lambda np, x, y: np.expand_dims(x, axis=1)),
    "flip": (lambda np, x, y: np.flip(x, axis=0)),
    "floor_divide": (lambda np, x, y: np.floor_divide(x, y)),
    "hypot": (lambda np, x, y: np.hypot(x, -y[0])),
    "log1p": (lambda np, x, y: np.log1p(x)),
    "log2": (lambda np, x, y: np.log2(x) + np.log10(y)),
    "logaddexp": (lambda np, x, y: np.logaddexp(x, y)),
    "matmul": (lambda np, x, y: np.matmul(x, y.T)),
    "max": (lambda np, x, y: np.max(x, axis=0)),
    "mean": (lambda np, x, y: np.mean(x)),
    "meshgrid": (lambda np, x, y: np.stack(np.meshgrid(x[0], y[:, 0], indexing="ij"))),
    "minimum": (lambda np, x, y: np.minimum(x, y)),
    "moveaxis": (lambda np, x, y: np.moveaxis(x, 0, 1)),
    "negative": (lambda np, x, y: np.negative(x)),
    "outer": (lambda np, x, y: np.outer(x[0], y[0])),
    "permute_dims": (lambda np, x, y: np.permute_dims(x, (1, 0))),
    "pow": (lambda np, x, y: np.pow(x, y)),
    "prod": (lambda np, x, y: np.prod(x, axis=1)),
    "repeat": (lambda np, x, y: np.repeat(x, 3, axis=0) @ np.repeat(y, [1, 0, 2, 1], axis=0).T),
    "reshape": (lambda np, x, y: np.reshape(x, (2, 12))),
    "roll": (lambda np, x, y: np.roll(x, 2, axis=1)),
    "sort": (lambda np, x, y: np.sort(x, axis=1)),
    "stack": (lambda np, x, y: np.stack([x, y])),
    "std": (lambda np, x, y: np.std(x, axis=1)),
    "take": (lambda np, x, y: np.take(x, np.asarray([2, 0, 2]), axis=1)),
    "tile": (lambda np, x, y: np.tile(x, (2, 1))),
    "tril": (lambda np, x, y: np.tril(x)),
    "vecdot": (lambda np, x, y: np.vecdot(x, y)),
    "where": (lambda np, x, y: np.where(x > y, x, y)),
    "operators": (lambda np, x, y: (x + 2 * y - y / x) ** 2 % 3 @ y.T),
    "indices": (lambda np, x, y: x[1:, ::2] + y[:-1, None, 0].reshape(3, 1)),
    "arange": (lambda np, x, y: x[:, :3] + np.arange(3.0, dtype=np.float32)),
    "arange of integers": (lambda np, x, y: np.arange(7, 1, -2)),
    "arange of nothing": (lambda np, x, y: np.arange(3, 1)),
    "eye": (lambda np, x, y: x @ np.eye(6, 3, k=-1, dtype=np.float32)),
    "full": (lambda np, x, y: np.full((4, 1), 2.5, dtype=np.float32) * x),
    "full of bools": (lambda np, x, y: np.full((2,), True)),
    "linspace": (lambda np, x, y: x * np.linspace(0, 1, 6, dtype=np.float32)),
    "linspace without end": (lambda np, x, y: np.linspace(2, 3, 5, endpoint=False)),
    "linspace of one": (lambda np, x, y: np.linspace(2, 3, 1)),
    "like": (lambda np, x, y: np.ones_like(x) + np.zeros_like(y) + np.full_like(x, 3)),
    "zeros": (lambda np, x, y: np.zeros((2, 3)) + np.ones(3)),
    "constants": (lambda np, x, y: x * np.pi + np.e),
    "asarray": (lambda np, x, y: np.asarray([1.0, 2.0, 3.0]) + np.asarray(x)[:, :3]),
}  # fmt: skip


STANDARD = """
abs acos acosh add all any arange argmax argmin argsort asarray asin asinh astype atan atan2 atanh
bitwise_and bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor
broadcast_arrays broadcast_to can_cast ceil clip concat conj copysign cos cosh count_nonzero
cumulative_prod cumulative_sum diff divide empty empty_like equal exp expand_dims expm1 eye finfo
flip floor floor_divide from_dlpack full full_like greater greater_equal hypot iinfo imag isdtype
isfinite isinf isnan less less_equal linspace log log10 log1p log2 logaddexp logical_and logical_not
logical_or logical_xor matmul matrix_transpose max maximum mean meshgrid min minimum moveaxis
multiply negative nextafter nonzero not_equal ones ones_like permute_dims positive pow prod real
reciprocal remainder repeat reshape result_type roll round searchsorted sign signbit sin sinh sort
sqrt square squeeze stack std subtract sum take take_along_axis tan tanh tensordot tile tril triu
trunc unique_all unique_counts unique_inverse unique_values unstack var vecdot where zeros zeros_like
"""
"""Functions of the Python array API standard 2024.12, but those of its extensions."""


def test_the_page_says_which_functions_of_the_standard_there_are_not() -> None:
    page = (Path(__file__).parents[2] / "docs" / "functions.md").read_text(encoding="utf-8")
    said = page.partition("Of the standard's functions it lacks")[2].partition("`repeat` repeats")[
        0
    ]
    lacking = [name for name in STANDARD.split() if name not in mnp.__all__]
    assert sorted(re.findall(r"`(\w+)`", said)) == lacking


def in_quick(case: str, name: str) -> bool:
    """Return whether it is a case's turn on a backend; on NumPy all run."""
    turn = list(PACKAGES)[list(CALLS).index(case) % len(PACKAGES)]
    return name in {"numpy", turn}


@quick(in_quick)
@every_backend
@pytest.mark.parametrize("case", CALLS)
def test_traced_concrete_and_mixed_agree_with_numpy(case: str, name: str) -> None:
    backend, call = opened(name, x=2), CALLS[case]
    expected = call(np, X, Y)
    for first, second in ((backend.array(X), backend.array(Y)), (X, backend.array(Y))):
        found = ml.jit(lambda x, y: call(mnp, x, y), backend=backend)(first, second)
        close(found, expected)
        if expected.dtype.kind in "bi":
            assert found.dtype.is_integer or found.dtype == "bool"
    made = {"arange", "eye", "full", "linspace", "zeros", "asarray", "take"}
    if case.partition(" ")[0] not in made:
        close(call(mnp, backend.array(X), backend.array(Y)), expected)


def test_functions_beside_each_other() -> None:
    x = opened("numpy", x=2).array(X)
    close(mnp.maximum(Y, x), np.maximum(X, Y))
    close(mnp.stack([Y, x]), np.stack([Y, X]))
    close(mnp.where(x > 1, Y, 0.0), np.where(X > 1, Y, 0))
    close(ml.jit(lambda x: mnp.concat([Y, x]))(x), np.concatenate([Y, X]))
    around = opened("numpy", x=2).array(Y)
    close(ml.jit(lambda x: mnp.concat([around, x]))(x), np.concatenate([Y, X]))


def test_arrays_are_made_on_a_backend() -> None:
    backend = opened("numpy", x=2)
    close(mnp.zeros((2, 3), backend=backend), np.zeros((2, 3)))
    close(mnp.ones(3, dtype="int32", backend=backend), np.ones(3))
    close(mnp.full((2,), 1.5, backend=backend), [1.5, 1.5])
    close(mnp.arange(3, backend=backend), [0, 1, 2])
    close(mnp.linspace(0, 1, 3, backend=backend), [0, 0.5, 1])
    close(mnp.eye(2, backend=backend), np.eye(2))
    close(mnp.array([[1, 2]], backend=backend), [[1, 2]])
    assert mnp.empty((2,), backend=backend).shape == (2,)
    x = backend.ones(2)
    assert mnp.asarray(x) is x
    assert str(mnp.array(x, dtype="int32").dtype) == "int32"
    assert str(mnp.zeros_like(x, dtype=mnp.int8).dtype) == "int8"
    close(ml.jit(lambda x: x + mnp.ones(2, backend=backend))(x), [2, 2])


def test_constants_of_a_function_have_the_dtypes_of_a_backend() -> None:
    backend = opened("numpy", x=2)
    makers = {
        "arange": lambda **k: mnp.arange(3, **k),
        "arange of floats": lambda **k: mnp.arange(0.5, 3, **k),
        "eye": lambda **k: mnp.eye(3, **k),
        "full": lambda **k: mnp.full(3, 7, **k),
        "full of floats": lambda **k: mnp.full(3, 7.0, **k),
        "linspace": lambda **k: mnp.linspace(0, 2, 3, **k),
        "ones": lambda **k: mnp.ones(3, **k),
        "array": lambda **k: mnp.array([1, 2], **k),
        "as int8": lambda **k: mnp.ones(3, dtype=mnp.int8, **k),
        "array as float16": lambda **k: mnp.array([1, 2], dtype="float16", **k),
    }
    for case, make in makers.items():
        traced = ml.jit(lambda make=make: make(), backend=backend)()
        concrete = make(backend=backend)
        assert traced.dtype == concrete.dtype, case
        close(traced, concrete.numpy())


def test_every_eager_function_has_a_name_and_a_text() -> None:
    for name in EAGER:
        function = getattr(mnp, name)
        assert function.__name__ == name
        assert function.__doc__
        assert name in mnp.__all__
    for name in mnp.__all__:
        assert hasattr(mnp, name)
    assert dir(mnp) == sorted(mnp.__all__)
    with pytest.raises(AttributeError, match=r"mithril\.numpy has no 'sofmax'; did you mean 'soft"):
        mnp.sofmax  # noqa: B018


@pytest.mark.slow
def test_it_is_there_without_an_import_of_its_own() -> None:
    code = "import mithril as ml; assert 'numpy' not in vars(ml); print(ml.numpy.pi, ml.numpy.sin)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("3.14159")


def test_unknown_options_are_refused_with_the_nearest() -> None:
    backend = opened("numpy", x=2)
    with pytest.raises(
        ml.OptionError, match=r"zeros\(\) has no option 'dtyp'; did you mean 'dtype'"
    ):
        mnp.zeros((3,), dtyp="int32", backend=backend)
    with pytest.raises(ml.OptionError, match=r"mean\(\) has no option 'axs'; did you mean 'axis'"):
        ml.jit(lambda x: mnp.mean(x, axs=0))(backend.ones(2))


def test_messages_name_the_function_called() -> None:
    with pytest.raises(ml.BackendError, match=r"mithril.numpy.zeros knows no backend to make an"):
        mnp.zeros((3,))
    backend = opened("numpy", x=2)
    with pytest.raises(ml.ShapeError, match=r"shape 'a' is not made of integers; write zeros\("):
        mnp.zeros("a", backend=backend)
    with pytest.raises(ml.ShapeError, match=r"write ones\(\(2, 3\)\)"):
        ml.jit(lambda x: x + mnp.ones("a"))(backend.ones(2))
