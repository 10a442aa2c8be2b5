"""Arrays as users meet them: made, moved, and under eager functions, split evenly and unevenly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import permutations, product
from typing import Any

import numpy as np

import mithril as ml
from mithril import P
from mithril.testing.arrays import booleans, floats, integers, positive
from mithril.testing.cases_matrix import definite
from mithril.testing.check import Check, Mismatch, Outcome
from mithril.testing.checks.engine import list_specs, make_values
from mithril.testing.compare import describe_difference
from mithril.testing.levels import Level
from mithril.testing.target import Target, open_oracle
from mithril.types import DType


@dataclass(frozen=True)
class Call:
    """A function of a backend and its arguments; those that are arrays are put on devices."""

    name: str
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, object], ...] = ()

    def run(self, backend: ml.Backend) -> list[np.ndarray]:
        """Return the results, arguments lying split along their first dimensions."""
        arguments = [_place(backend, x) for x in self.arguments]
        made = getattr(backend, self.name)(*arguments, **dict(self.options))
        return [x.numpy() for x in (made if isinstance(made, tuple | list) else (made,))]


def _call(name: str, *arguments: object, **options: object) -> Call:
    return Call(name, arguments, tuple(options.items()))


def _place(backend: ml.Backend, x: object) -> Any:
    if isinstance(x, np.ndarray):
        return backend.array(x, sharding=P(*backend.mesh.names[: x.ndim]))
    return [_place(backend, item) for item in x] if isinstance(x, list) else x


def _f32(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)


X, Y, W = _f32(floats(5, 6)), _f32(positive(5, 6)), _f32(floats(6, 3, seed=1))
ROW, N, TRUTH = _f32(floats(6, seed=2)), integers(5, 6) - 2, booleans(5, 6)
IDS = np.array([3, 0, 2], np.int32)
HEADS = _f32(floats(3, 5, 2, 4))
MATRICES = _f32(definite(3, 3, 3))

CALLS: dict[str, list[Call]] = {
    "arithmetic": [
        *(
            _call(name, X, Y)
            for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum")
        ),
        _call("add", X, ROW),
        _call("power", Y, X),
        _call("floor_divide", N, 3),
        _call("remainder", N, 3),
        _call("where", TRUTH, X, Y),
        *(_call(name, X) for name in ("exp", "tanh", "abs", "sign", "relu", "gelu", "sigmoid")),
        *(_call(name, Y) for name in ("log", "sqrt", "rsqrt")),
        *(_call(name, X, Y) for name in ("less", "greater_equal", "equal")),
    ],
    "reductions": [
        *(
            _call(name, X, axis=axis)
            for name in ("sum", "mean", "max", "min", "prod")
            for axis in (None, 0, 1)
        ),
        *(_call(name, X, axis=1) for name in ("argmax", "argmin", "softmax", "log_softmax")),
        _call("any", TRUTH, axis=0),
        _call("all", TRUTH, axis=1),
        _call("sum", TRUTH),
        _call("cumsum", X, axis=0),
    ],
    "shape": [
        _call("reshape", X, (6, 5)),
        _call("transpose", X),
        _call("concat", [X, Y], axis=0),
        _call("broadcast_to", ROW, (4, 6)),
        _call("flip", X, axis=0),
        _call("take", X, IDS, axis=0),
        _call("take", X, IDS, axis=1),
    ],
    "order": [_call("sort", X, axis=0), _call("argsort", X, axis=1), _call("top_k", X, 2)],
    "products": [
        _call("matmul", X, W),
        _call("attention", HEADS, HEADS * 2, HEADS + 1, causal=True),
        _call("layer_norm", X, ROW, ROW),
        _call("rms_norm", X, ROW),
        _call("cross_entropy", X, integers(5, below=6)),
    ],
    "matrices": [
        _call("cholesky", MATRICES),
        _call("inv", MATRICES),
        _call("solve", MATRICES, _f32(floats(3, 3, 2))),
        _call("det", MATRICES),
    ],
}


def list_array_checks() -> Iterator[Check]:
    """Yield the checks of arrays on the mesh of several devices."""
    yield Check("arrays", "reshard", check_reshard, devices=2)
    yield Check("arrays", "nothing in them", check_empty)
    yield Check("arrays", "integers wrap around", check_integers)
    for name in CALLS:
        yield Check("eager functions", name, partial(check_calls, name))
        split = partial(check_calls, name, is_split=True)
        yield Check("eager functions", f"{name} on a mesh", split, devices=2)


def check_calls(name: str, target: Target, level: Level, is_split: bool = False) -> Outcome:
    """Compare eager functions with NumPy's on one device."""
    backend = target.open_all() if is_split else target.open()
    for call in CALLS[name]:
        for found, expected in zip(call.run(backend), call.run(open_oracle()), strict=True):
            difference = describe_difference(found, expected)
            if difference:
                raise Mismatch(f"{call.name}{_show(call)}: {difference}")
    return Outcome(note=f"{len(CALLS[name])} calls")


def check_reshard(target: Target, level: Level) -> Outcome:
    """Bring a matrix from every layout to every other, and back to the host."""
    backend, tried = target.open_all(), 0
    specs = list_specs(backend.mesh)
    for shape in ((8, 4), (5, 3)) if level is Level.full else ((5, 3),):
        host = make_values(shape, DType.float32)
        for start, goal in permutations(specs, 2):
            moved = backend.reshard(backend.array(host, sharding=start), goal)
            difference = describe_difference(moved.numpy(), host)
            if difference:
                raise Mismatch(f"{list(shape)} from {start} to {goal}: {difference}")
            tried += 1
    return Outcome(note=f"{tried} ways")


def check_empty(target: Target, level: Level) -> Outcome:
    """Reduce, multiply and join arrays without elements."""
    backend = target.open_all()
    empty = backend.ones(0, 4, sharding=P(*backend.mesh.names[:2]))
    found = {
        "sum": backend.sum(empty),
        "sums": backend.sum(empty, axis=0),
        "product": empty @ backend.ones(4, 3),
        "softmax": backend.softmax(empty),
        "joined": backend.concat([empty, backend.ones(2, 4)], axis=0),
    }
    expected = {
        "sum": np.zeros(()),
        "sums": np.zeros(4),
        "product": np.zeros((0, 3)),
        "softmax": np.zeros((0, 4)),
        "joined": np.ones((2, 4)),
    }
    for name, value in expected.items():
        difference = describe_difference(found[name].numpy(), _f32(value))
        if difference:
            raise Mismatch(f"{name}: {difference}")
    return Outcome(note=f"{len(expected)} results")


def check_integers(target: Target, level: Level) -> Outcome:
    """Compare arithmetic beyond the ends of integers with NumPy's, which wraps around."""
    backend, tried = target.open(), 0
    dtypes = [d for d in ("int8", "uint8", "int32", "uint32") if DType(d) in backend.engine.dtypes]
    for dtype, name in product(dtypes, ("add", "subtract", "multiply", "floor_divide")):
        limits = np.iinfo(dtype)
        x = np.array([limits.min, limits.max, 3, 100, limits.max - 1], dtype)
        y = np.array([1, 1, 2, 7, 3], dtype)
        found = getattr(backend, name)(backend.array(x), backend.array(y)).numpy()
        difference = describe_difference(found, getattr(np, name)(x, y))
        if difference:
            raise Mismatch(f"{name} of {dtype} {x.tolist()} and {y.tolist()}: {difference}")
        tried += 1
    return Outcome(note=f"{tried} calls")


def _show(call: Call) -> str:
    shapes = ", ".join(
        str(list(x.shape)) if isinstance(x, np.ndarray) else type(x).__name__
        for x in call.arguments
    )
    more = "".join(f", {key}={value}" for key, value in call.options)
    return f"({shapes}{more})"
