"""Operators that were met before: the same plan runs again, and nothing else is the same."""

from __future__ import annotations

import gc
import operator
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.runtime.backend import Backend
from mithril.types import DType

OPERATORS: list[Callable[..., Any]] = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul,
    operator.mod, operator.floordiv, operator.eq, operator.lt,
]  # fmt: skip
VALUES = [0.0, -0.0, 2, 2.0, -1.5, float("inf"), float("nan")]


@pytest.fixture
def looked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of ops for which a plan was looked for."""
    found: list[str] = []
    run = Backend.run

    def look(self: Backend, op: Any, operands: Any) -> Any:
        found.append(op.name)
        return run(self, op, operands)

    monkeypatch.setattr(Backend, "run", look)
    return found


@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(x=2)], ids=["one device", "two devices"])
@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_the_second_call_gives_what_numpy_gives(
    mesh: ml.Mesh, function: Callable[..., Any], looked_for: list[str]
) -> None:
    rng, backend = np.random.default_rng(0), ml.NumpyBackend(mesh)
    for turn in range(3):
        x, y = (rng.uniform(1, 2, (4, 4)).astype(np.float32) for _ in range(2))
        found = function(backend.array(x), backend.array(y)).numpy()
        np.testing.assert_allclose(found, function(x, y), rtol=1e-6)
        if turn:
            assert looked_for == []
        looked_for.clear()


@pytest.mark.parametrize("value", VALUES)
def test_numbers_that_are_equal_are_told_apart(value: float) -> None:
    backend = ml.NumpyBackend()
    x, n = np.array([1.0, -2.0], np.float32), np.array([1, -2], np.int32)
    mine, whole = backend.array(x), backend.array(n)
    for _ in range(2):
        for other in VALUES:  # others are met in between
            _ = mine * other
        found = (mine * value).numpy()
        np.testing.assert_array_equal(found, x * np.float32(value))
        np.testing.assert_array_equal(np.signbit(found), np.signbit(x * np.float32(value)))
        kind = np.int32 if isinstance(value, int) else np.float32
        assert (whole * value).numpy().dtype == kind


@pytest.mark.parametrize("function", OPERATORS, ids=lambda f: f.__name__)
def test_an_array_that_meets_itself_is_told_from_two(function: Callable[..., Any]) -> None:
    rng, backend = np.random.default_rng(0), ml.NumpyBackend()
    x, y = (rng.uniform(1, 2, (4, 4)).astype(np.float32) for _ in range(2))
    mine, other = backend.array(x), backend.array(y)
    for _ in range(2):
        for one, two, first, second in (
            (mine, mine, x, x),
            (mine, other, x, y),
            (other, mine, y, x),
        ):
            np.testing.assert_allclose(function(one, two).numpy(), function(first, second), 1e-6)


def test_a_number_is_known_again_from_its_second_time_on(looked_for: list[str]) -> None:
    x = ml.NumpyBackend().array(np.ones(2, np.float32))
    for number in (0.25, 0.5, 0.25, 0.25):
        assert (x * number).numpy().tolist() == [number] * 2
    assert looked_for == ["multiply"] * 3


def test_a_place_is_told_from_another_one() -> None:
    x = ml.NumpyBackend().array(np.arange(4.0))
    assert [x[i].item() for i in (0, 1, -1, 0, 1, -1)] == [0, 1, 3, 0, 1, 3]
    with pytest.raises(ml.ShapeError):
        _ = x[4]


def test_what_needs_more_than_one_op_takes_the_whole_way() -> None:
    backend = ml.NumpyBackend()
    x, n = backend.array(np.ones(2, np.float32)), backend.array(np.ones(2, np.int32))
    for _ in range(3):
        assert (n * 0.5).numpy().tolist() == [0.5, 0.5]
        with pytest.raises(ml.ShapeError, match="dtypes"):
            _ = x + n


def test_no_array_lives_longer() -> None:
    backend = ml.NumpyBackend()
    x = backend.array(np.ones(3))
    made = [x + x, x * 2.0, -x]
    seen = [weakref.ref(array.shards[0]) for array in made]
    del made
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3


def test_an_array_that_was_given_up_is_refused() -> None:
    backend = ml.NumpyBackend()
    take = ml.jit(lambda x: x * 3.0, backend=backend, donate="x")
    x = backend.array(np.ones(3, np.float32))
    _ = x * 2.0, x * 2.0
    take(x)
    with pytest.raises(ml.BackendError, match="donated"):
        _ = x * 2.0


def test_a_number_that_was_given_up_is_made_anew() -> None:
    backend = ml.NumpyBackend()
    x = backend.ones(2)
    _ = x * 2.0, x * 2.0
    ml.jit(lambda x: x + 1.0, backend=backend, donate="x")(backend.constant(2.0, DType.float32))
    for _ in range(3):
        assert (x * 2.0).numpy().tolist() == [2, 2]


@pytest.fixture
def taking_turns() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("taking_turns")
def test_threads_may_call_at_once() -> None:
    backend = ml.NumpyBackend()

    def compute(thread: int) -> None:
        for turn in range(300):
            number, shape = float(turn), (1 + turn % 7, 1 + (turn + thread) % 5)
            x = backend.array(np.full(shape, turn, np.float32))
            assert (x * number + number).numpy().tolist() == [[turn * turn + turn] * shape[1]] * (
                shape[0]
            )

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(compute, range(4)))
