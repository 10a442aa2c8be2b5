"""Every eager function of a backend, on sharded arrays, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.ops.elementwise import FloatOnly
from mithril.runtime import backend as backend_module
from mithril.runtime.functions import ALIASES, NOT_EAGER
from mithril.testing.cases import CASES as OPS_CASES
from mithril.types import DType

from tests.ops.oracles import ORACLES
from tests.profiles import quick
from tests.tolerances import TOLERANCE

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (4, 6)).astype(np.float32)
Y = RNG.uniform(0.5, 2, (4, 6)).astype(np.float32)
W = RNG.uniform(-1, 1, (6, 4)).astype(np.float32)
V = RNG.uniform(-1, 1, 4).astype(np.float32)
N = RNG.integers(-5, 5, (4, 6)).astype(np.int32)
B, C = X > 0, Y > 1
IDS = np.array([3, 0, 2, 5], np.int32)
QKV = RNG.uniform(-1, 1, (3, 4, 6, 2, 2)).astype(np.float32)
IMAGE = RNG.uniform(-1, 1, (4, 2, 6)).astype(np.float32)
ERF = np.vectorize(math.erf)
ODD = np.array([[1.0, np.inf], [np.nan, -np.inf]], np.float32)
PLACES = RNG.integers(0, 6, (4, 2)).astype(np.int32)
Case = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    scores = np.einsum("bshd,bthd->bhst", q, k) / math.sqrt(q.shape[-1])
    return np.einsum("bhst,bthd->bshd", softmax(scores), v)


def layer_norm(x: np.ndarray, gain: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * gain + bias


def cross_entropy(x: np.ndarray, ids: np.ndarray) -> np.ndarray:
    return -np.log(softmax(x))[np.arange(len(ids)), ids]


def rope(x: np.ndarray) -> np.ndarray:
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def top_k(x: np.ndarray, k: int, axis: int) -> list[np.ndarray]:
    order = np.argsort(-x, axis, stable=True)
    places = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, places, axis), places]


def conv_transpose(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    total = np.zeros((len(x), w.shape[1], x.shape[2] + w.shape[2] - 1), x.dtype)
    for k in range(w.shape[2]):
        total[:, :, k : k + x.shape[2]] += np.einsum("bit,io->bot", x, w[:, :, k])
    return total


def convolution(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2], axis=2)
    return np.einsum("bitk,oik->bot", windows, w)


MATRICES = (RNG.uniform(-1, 1, (2, 3, 3)) + 3 * np.eye(3)).astype(np.float32)
SYMMETRIC = MATRICES + MATRICES.swapaxes(-1, -2)
SIDES = RNG.uniform(-1, 1, (2, 3, 2)).astype(np.float32)


def with_signs(factorise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the largest number of each column of the first factor positive, as Mithril has it."""

    def function(x: np.ndarray) -> list[np.ndarray]:
        *others, last = factorise(x)
        basis = last if factorise is np.linalg.eigh else others[0]
        at = np.abs(basis).argmax(-2, keepdims=True)
        signs = np.sign(np.take_along_axis(basis, at, -2))
        if factorise is np.linalg.eigh:
            return [*others, last * signs]
        return [basis * signs, *others[1:], last * signs.swapaxes(-1, -2)]

    return function


def positive_qr(x: np.ndarray) -> list[np.ndarray]:
    q, r = np.linalg.qr(x)
    signs = np.sign(np.diagonal(r, 0, -2, -1))
    return [q * signs[..., None, :], r * signs[..., None]]


def replaced(x: np.ndarray, update: np.ndarray, starts: tuple[int, ...]) -> np.ndarray:
    x = x.copy()
    x[tuple(slice(s, s + n) for s, n in zip(starts, update.shape, strict=True))] = update
    return x


ADAMW = ops.AdamWStep(0.9, 0.999, 1e-8, 0.1)

CASES: list[Case] = [
    (
        "adamw_step",
        lambda *arrays, **decay: list(ORACLES["adamw_step"](ADAMW, *arrays)),
        (X, X + Y, X * Y, Y, 0.1, 3),
        {"weight_decay": 0.1},
    ),
    ("cholesky", np.linalg.cholesky, (SYMMETRIC,), {}),
    ("cumprod", np.cumprod, (X,), {"axis": 1}),
    ("cumulative_prod", np.cumprod, (X,), {"axis": 0}),
    ("det", np.linalg.det, (MATRICES,), {}),
    ("dynamic_slice", lambda x, s, n: x[1:3, 2:6], (X, (1, 2), (2, 4)), {}),
    ("dynamic_slice", lambda x, s, n, axis: x[:, 2:6], (X, 9, 4), {"axis": 1}),
    ("dynamic_update_slice", replaced, (X, Y[:2, :3], (1, 2)), {}),
    ("dynamic_update_slice", lambda x, y, s, axis: replaced(x, y, (0, 2)), (X, Y[:, :3], 2), {"axis": 1}),
    ("eigh", with_signs(np.linalg.eigh), (SYMMETRIC,), {}),
    ("inv", np.linalg.inv, (MATRICES,), {}),
    ("qr", positive_qr, (MATRICES,), {}),
    ("solve", np.linalg.solve, (MATRICES, SIDES), {}),
    ("solve", np.linalg.solve, (MATRICES, V[:3]), {}),
    ("svd", with_signs(partial(np.linalg.svd, full_matrices=False)), (MATRICES,), {}),
    ("triangular_solve", lambda a, b: np.linalg.solve(np.tril(a), b), (MATRICES, SIDES), {}),
    ("abs", np.abs, (X,), {}),
    ("add", np.add, (X, Y), {}),
    ("add", np.add, (N, 3), {}),
    ("all", np.all, (B,), {"axis": 0}),
    ("any", np.any, (B,), {"axis": 1}),
    ("argmax", np.argmax, (X,), {"axis": 1}),
    ("argmin", np.argmin, (X,), {"axis": 0}),
    ("attention", attention, (QKV[0], QKV[1], QKV[2]), {}),
    ("broadcast_arrays", np.broadcast_arrays, (X, V[:, None]), {}),
    ("broadcast_to", np.broadcast_to, (X, (3, 4, 6)), {}),
    ("cast", lambda x, d: x.astype(d), (N, "float32"), {}),
    ("astype", lambda x, d: x.astype(d), (X, "int32"), {}),
    ("concatenate", np.concatenate, ([X, Y],), {"axis": 1}),
    ("concat", np.concatenate, ([X, Y],), {"axis": 0}),
    ("convolution", convolution, (IMAGE, RNG.uniform(-1, 1, (4, 2, 3)).astype(np.float32)), {}),
    ("cos", np.cos, (X,), {}),
    ("cross_entropy", cross_entropy, (X, IDS), {}),
    ("divide", np.divide, (X, Y), {}),
    ("einsum", np.einsum, ("ab,bc->ca", X, W), {}),
    ("equal", np.equal, (N, N[::-1]), {}),
    ("erf", ERF, (X,), {}),
    ("exp", np.exp, (X,), {}),
    ("expand_dims", np.expand_dims, (X,), {"axis": (0, -1)}),
    ("gelu", lambda x: x * 0.5 * (1 + ERF(x / math.sqrt(2))), (X,), {}),
    ("greater", np.greater, (X, Y), {}),
    ("greater_equal", np.greater_equal, (N, 0), {}),
    ("layer_norm", layer_norm, (X, Y[0], X[0]), {}),
    ("less", np.less, (X, Y), {}),
    ("less_equal", np.less_equal, (N, 0), {}),
    ("log", np.log, (Y,), {}),
    ("log_softmax", lambda x: np.log(softmax(x)), (X,), {}),
    ("logaddexp", np.logaddexp, (X * 40, Y), {}),
    ("logical_and", np.logical_and, (B, C), {}),
    ("logical_not", np.logical_not, (B,), {}),
    ("logical_or", np.logical_or, (B, C), {}),
    ("matmul", np.matmul, (X, W), {}),
    ("matrix_transpose", lambda x: x.swapaxes(-1, -2), (QKV[0, 0],), {}),
    ("max", np.max, (X,), {"axis": 0}),
    ("max_pool", lambda x, *_: np.maximum(x[..., ::2], x[..., 1::2]), (IMAGE, (2,)), {}),
    ("maximum", np.maximum, (X, Y), {}),
    ("mean", np.mean, (X,), {"axis": 0, "keepdims": True}),
    ("min", np.min, (X,), {"axis": 1}),
    ("minimum", np.minimum, (X, 0.5), {}),
    ("moveaxis", np.moveaxis, (QKV[0], (0, 2), (-1, 0)), {}),
    ("multiply", np.multiply, (X, Y), {}),
    ("leaky_relu", lambda x, slope: np.where(x > 0, x, x * slope), (X, 0.2), {}),
    ("elu", lambda x: np.where(x > 0, x, np.expm1(x)), (X,), {}),
    ("softplus", lambda x, beta: np.log1p(np.exp(x * beta)) / beta, (X, 2.0), {}),
    ("mish", lambda x: x * np.tanh(np.log1p(np.exp(x))), (X,), {}),
    ("hard_swish", lambda x: x * np.clip(x + 3, 0, 6) / 6, (4 * X,), {}),
    ("glu", lambda x, axis: x[:2] / (1 + np.exp(-x[2:])), (X,), {"axis": 0}),
    ("conv_transpose", conv_transpose, (IMAGE, QKV[0, 0, :2, :, :1] * np.ones(3, np.float32)), {}),
    ("negate", np.negative, (X,), {}),
    ("negative", np.negative, (N,), {}),
    ("not_equal", np.not_equal, (N, 0), {}),
    ("one_hot", lambda i, n: np.eye(n)[i], (IDS, 6), {}),
    ("outer", np.outer, (V, Y[0]), {}),
    ("permute_dims", np.transpose, (QKV[0], (2, 0, 3, 1)), {}),
    ("positive", np.positive, (X,), {}),
    ("pow", np.power, (Y, 2.5), {}),
    ("power", np.power, (Y, X), {}),
    ("relu", lambda x: np.maximum(x, 0), (X,), {}),
    ("reshape", np.reshape, (X, (2, 12)), {}),
    (
        "rms_norm",
        lambda x, g: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        (X, Y[0], 1e-5),
        {},
    ),
    ("roll", np.roll, (X, 2), {"axis": 1}),
    ("roll", np.roll, (X, -1), {"axis": 0}),
    ("rope", rope, (QKV[0],), {}),
    ("rsqrt", lambda x: 1 / np.sqrt(x), (Y,), {}),
    ("sign", np.sign, (X,), {}),
    ("silu", lambda x: x / (1 + np.exp(-x)), (X,), {}),
    ("sin", np.sin, (X,), {}),
    ("softmax", softmax, (X,), {"axis": 0}),
    ("sqrt", np.sqrt, (Y,), {}),
    ("ravel", np.ravel, (X,), {}),
    ("split", np.split, (X, 2), {"axis": 1}),
    ("split", np.split, (X, [1, 3]), {}),
    ("stop_gradient", lambda x: x, (X,), {}),
    ("swapaxes", np.swapaxes, (X, 0, -1), {}),
    ("squeeze", np.squeeze, (X[:, None, :, None],), {}),
    ("squeeze", np.squeeze, (X[:, None, :, None],), {"axis": 1}),
    ("stack", np.stack, ([X, Y],), {"axis": -1}),
    ("subtract", np.subtract, (X, Y), {}),
    ("pad", np.pad, (X, ((1, 0), (0, 2))), {}),
    ("pad", lambda x, w, v: np.pad(x, w, constant_values=v), (ODD, ((1, 0), (0, 2)), 3.0), {}),
    ("sum", np.sum, (X,), {"axis": (0, 1)}),
    ("take", lambda x, i: x[i], (W, IDS), {}),
    ("tanh", np.tanh, (X,), {}),
    ("tensordot", np.tensordot, (QKV[0], QKV[1], ((1, 0), (1, 0))), {}),
    ("tensordot", np.tensordot, (X, W, 1), {}),
    ("tile", np.tile, (X, (2, 1, 3)), {}),
    ("trace", np.trace, (X,), {}),
    ("transpose", np.transpose, (QKV[0],), {}),
    ("tril", np.tril, (X, -1), {}),
    ("triu", np.triu, (N, 1), {}),
    ("unstack", lambda x, axis: list(np.moveaxis(x, axis, 0)), (X,), {"axis": 1}),
    ("vecdot", lambda x, y: (x * y).sum(-1), (X, Y), {}),
    ("where", np.where, (B, X, Y), {}),
    ("where", np.where, (B, X, 0.0), {}),
    ("atan", np.arctan, (X,), {}),
    *((name, np.arccos, (X / 4,), {}) for name in ("acos", "arccos")),
    *((name, np.arccosh, (Y + 1,), {}) for name in ("acosh", "arccosh")),
    *((name, np.arcsin, (X / 4,), {}) for name in ("asin", "arcsin")),
    *((name, np.arcsinh, (X,), {}) for name in ("asinh", "arcsinh")),
    *((name, np.arctan2, (X, Y), {}) for name in ("atan2", "arctan2")),
    *((name, np.arctanh, (X / 4,), {}) for name in ("atanh", "arctanh")),
    *((name, np.repeat, (X, 3), {"axis": 1}) for name in ("repeat", "repeat_elements")),
    ("repeat", np.repeat, (X, 2), {}),
    ("repeat", np.repeat, (X, [0, 3, 1, 2]), {"axis": 0}),
    ("count_nonzero", lambda x, axis: np.count_nonzero(x, axis).astype(np.int32), (N, 1), {}),
    ("diff", np.diff, (X,), {}),
    ("diff", np.diff, (X, 2), {"axis": 0}),
    ("hypot", np.hypot, (X, Y), {}),
    ("log2", np.log2, (Y,), {}),
    ("log10", np.log10, (Y,), {}),
    ("meshgrid", np.meshgrid, (X[0], Y[0], V), {}),
    ("argsort", lambda x, axis: np.argsort(x, axis, stable=True), (N,), {"axis": 0}),
    ("avg_pool", lambda x, _: (x[..., ::2] + x[..., 1::2]) / 2, (IMAGE, (2,)), {}),
    ("bitwise_and", np.bitwise_and, (N, 6), {}),
    ("bitwise_invert", np.bitwise_invert, (N,), {}),
    ("bitwise_left_shift", np.bitwise_left_shift, (N, 2), {}),
    ("bitwise_or", np.bitwise_or, (N, N[::-1].copy()), {}),
    ("bitwise_right_shift", np.bitwise_right_shift, (N, 1), {}),
    ("bitwise_xor", np.bitwise_xor, (N, N[::-1].copy()), {}),
    ("ceil", np.ceil, (X,), {}),
    ("clip", np.clip, (X, -0.5, 1.0), {}),
    ("cumsum", np.cumsum, (X,), {"axis": 1}),
    ("cumulative_sum", np.cumsum, (X,), {"axis": 0}),
    ("flip", np.flip, (X,), {"axis": 1}),
    ("floor", np.floor, (X,), {}),
    ("floor_divide", np.floor_divide, (N, 3), {}),
    ("isfinite", np.isfinite, (ODD,), {}),
    ("isinf", np.isinf, (ODD,), {}),
    ("isnan", np.isnan, (ODD,), {}),
    ("logical_xor", np.logical_xor, (B, C), {}),
    ("prod", np.prod, (X,), {"axis": 0}),
    ("reciprocal", np.reciprocal, (Y,), {}),
    ("remainder", np.remainder, (N, 3), {}),
    ("round", np.round, (X,), {}),
    ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), (X,), {}),
    ("sort", np.sort, (X,), {"axis": 0}),
    ("square", np.square, (X,), {}),
    ("std", np.std, (X,), {"axis": 1}),
    ("take_along", np.take_along_axis, (X, PLACES, 1), {}),
    ("take_along_axis", np.take_along_axis, (X, PLACES), {"axis": 1}),
    ("top_k", top_k, (X, 2), {"axis": 0}),
    ("trunc", np.trunc, (X,), {}),
    ("var", np.var, (X,), {"axis": (0, 1)}),
]  # fmt: skip
HERE = {case[0] for case in CASES}
CASES += [
    (name, partial(ORACLES[name], case.op), (case.arrays[0].astype(np.float32),), {})
    for name, case in {case.op.name: case for case in OPS_CASES}.items()
    if isinstance(case.op, FloatOnly) and name in ml.Backend.functions and name not in HERE
]
"""A function of one number without a case above has that of its op."""
ORACLE_ARGUMENTS = {"rms_norm": 2}  # how many of them the oracle takes; all unless said
SPECS = {0: P(), 1: P("data"), 2: P("data", "model"), 3: P("data"), 4: P("data", None, "model")}


def on_mesh(backend: ml.Backend, x: Any) -> Any:
    """Return NumPy arrays as sharded arrays, in lists too."""
    if isinstance(x, list):
        return [on_mesh(backend, item) for item in x]
    if not isinstance(x, np.ndarray):
        return x
    return backend.array(x, sharding=SPECS[x.ndim])


def check(found: Any, expected: Any) -> None:
    if isinstance(found, tuple | list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
        return
    rtol, atol = TOLERANCE["float32"]
    assert found.shape == np.shape(expected)
    assert found.dtype.numpy.kind == np.asarray(expected).dtype.kind
    np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=atol)


@quick(lambda shape: shape == (3, 4))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("shape", [(), (2, 2), (3, 4)], ids=str)
def test_an_eager_function_is_that_of_numpy(shape: tuple[int, ...], case: Case) -> None:
    name, oracle, arguments, options = case
    backend = ml.NumpyBackend(device_mesh=shape or (1, 1))
    found = getattr(backend, name)(*(on_mesh(backend, x) for x in arguments), **options)
    check(found, oracle(*arguments[: ORACLE_ARGUMENTS.get(name)], **options))


def test_every_eager_function_is_tested() -> None:
    assert {case[0] for case in CASES} == set(ml.Backend.functions)


def test_backends_show_every_function_of_the_ops() -> None:
    public = {
        name
        for name, value in vars(ops).items()
        if isinstance(value, FunctionType) and value.__module__.startswith("mithril.ops.")
    }
    shown = {*ml.Backend.functions} - {*ALIASES} | {*ALIASES.values()}
    assert public - {*NOT_EAGER} == shown
    assert public >= {*NOT_EAGER}, "what is no function needs no reason"


def test_numpy_arrays_are_taken_along() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    x = backend.array(X, tensor_split=(0,))
    for found in (backend.add(x, Y), backend.add(X, y := backend.array(Y)), X + y, x + Y):
        np.testing.assert_array_equal(found.numpy(), X + Y)
    np.testing.assert_array_equal(backend.concat([x, Y]).numpy(), np.concatenate([X, Y]))
    np.testing.assert_allclose((X @ backend.array(W)).numpy(), X @ W, *TOLERANCE["float32"])


def test_functions_are_listed_and_say_what_they_do() -> None:
    backend = ml.NumpyBackend()
    assert {"permute_dims", "argmax"} <= set(dir(backend))
    assert backend.permute_dims.__name__ == "permute_dims"
    assert "another order" in (backend.permute_dims.__doc__ or "")


def test_plans_of_single_ops_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "EAGER_PLANS", 3)
    backend = ml.NumpyBackend()
    planned: list[str] = []
    bind = backend._bind_op
    monkeypatch.setattr(
        backend, "_bind_op", lambda op, kinds: (planned.append(op.name), bind(op, kinds))[1]
    )
    x = backend.ones(2)
    for function in (backend.exp, backend.sin, backend.cos, backend.exp, backend.tanh):
        function(x)
    assert len(backend._eager) == 3
    assert planned == ["exp", "sin", "cos", "tanh"]
    backend.exp(x)  # used more recently than sin, so still there
    assert planned == ["exp", "sin", "cos", "tanh"]
    backend.sin(x)
    assert planned[-1] == "sin"


HAVE_THEIR_OWN = ("cast", "astype", "one_hot")
"""Functions whose dtype is an argument."""


def in_dtype(x: Any, dtype: str) -> Any:
    """Return float arrays, in lists too, rounded to a dtype."""
    if isinstance(x, list):
        return [in_dtype(item, dtype) for item in x]
    is_float = isinstance(x, np.ndarray) and x.dtype == np.float32
    return x.astype(DType(dtype).numpy) if is_float else x


def widened(x: Any) -> Any:
    if isinstance(x, list):
        return [widened(item) for item in x]
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind in "fV" else x


@quick(lambda dtype: dtype == "bfloat16")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_an_eager_function_is_right_in_other_float_dtypes(dtype: str, case: Case) -> None:
    name, oracle, arguments, options = case
    backend = ml.NumpyBackend(device_mesh=(2, 2), dtype=dtype)
    given = [in_dtype(x, dtype) for x in arguments]
    found = getattr(backend, name)(*(on_mesh(backend, x) for x in given), **options)
    exact = oracle(*map(widened, given[: ORACLE_ARGUMENTS.get(name)]), **options)
    rtol, atol = TOLERANCE[dtype]
    several = isinstance(found, tuple | list)
    for one, other in zip(
        found if several else [found], exact if several else [exact], strict=True
    ):
        assert one.dtype == dtype or not one.dtype.is_float or name in HAVE_THEIR_OWN
        np.testing.assert_allclose(one.numpy().astype(np.float64), other, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_logaddexp_of_16_bit_floats_is_rounded_once(dtype: str) -> None:
    backend = ml.NumpyBackend()
    drawn = np.random.default_rng(1).uniform(-8, 8, (2, 500)).astype(np.float32)
    x, y = in_dtype(drawn, dtype)
    found = backend.logaddexp(backend.array(x), backend.array(y)).numpy()
    exact = np.logaddexp(x.astype(np.float32), y.astype(np.float32)).astype(found.dtype)
    assert (found == exact).mean() > 0.99  # float32 may lie on the other side of a middle
    np.testing.assert_allclose(found.astype(float), exact.astype(float), rtol=2.0**-7)


def test_logaddexp_of_equal_infinities() -> None:
    x = np.array([-np.inf, np.inf], np.float32)
    backend = ml.NumpyBackend()
    np.testing.assert_array_equal(backend.logaddexp(backend.array(x), backend.array(x)), x)
