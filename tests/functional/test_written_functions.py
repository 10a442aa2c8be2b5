"""Calls of functions that are written as Python: the trees and arrays of the call before, and no others."""

from __future__ import annotations

import gc
import weakref
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import mithril as ml
import numpy as np
import pytest
from mithril.runtime.functional import function as function_module
from mithril.runtime.functional.written_function import write_function


class Pair(NamedTuple):
    first: Any
    second: Any


@pytest.fixture
def backend() -> ml.Backend:
    return ml.NumpyBackend()


def written(function: Any, *args: Any) -> Any:
    """Call a function twice, and return what the third call runs."""
    for _ in range(2):
        function(*args)
    assert function._written is not None
    found, _ = function._written
    assert found.collect(args) is not None
    return found


def test_trees_are_taken_apart_and_put_together_leaf_by_leaf(backend: ml.Backend) -> None:
    x, y = backend.array([1.0, 2.0]), backend.array([3.0, 4.0])
    function = ml.jit(lambda a, b: {"sum": a["u"] + a["v"][0], "b": (b, None)})
    assert written(function, {"u": x, "v": [y]}, x).source == WRITTEN
    found = function({"u": y, "v": [y]}, x)
    assert list(found) == ["sum", "b"]
    assert found["sum"].numpy().tolist() == [6.0, 8.0]
    assert found["b"][1] is None
    assert found["b"][0].numpy().tolist() == [1.0, 2.0]


WRITTEN = """\
def collect(args):
    if len(args) != 2: return None
    [a0, a1] = args
    if type(a0) is not c0: return None
    if tuple(a0) != c1: return None
    [x0, t1] = a0.values()
    if type(t1) is not c2: return None
    if len(t1) != 1: return None
    [x1] = t1
    x2 = a1
    try:
        if [x0.kind, x1.kind, x2.kind] != kinds: return None
    except AttributeError:
        return None
    return [x0, x1, x2]
def finish(made):
    [y0, y1] = map(new, repeat(Array, 2))
    y0.kind = result_0; y0.shards = made[0]
    y1.kind = result_1; y1.shards = made[1]
    return {'sum': y0, 'b': c4([y1, None])}
"""

OTHERS: dict[str, Any] = {
    "more arguments": lambda x: (({"u": x, "v": [x]}, x, x), TypeError),
    "another key": lambda x: (({"u": x, "w": [x]}, x), KeyError),
    "another order": lambda x: (({"v": [x], "u": x}, x), None),
    "another container": lambda x: (({"u": x, "v": (x,)}, x), None),
    "a longer list": lambda x: (({"u": x, "v": [x, x]}, x), None),
    "a container for an array": lambda x: (({"u": [x], "v": [x]}, x), Exception),
    "an array for a container": lambda x: ((x, x), Exception),
    "a number": lambda x: (({"u": x, "v": [2.0]}, x), None),
    "values of NumPy": lambda x: (({"u": x, "v": [np.ones(2, np.float32)]}, x), None),
    "another shape": lambda x: (({"u": x, "v": [x[:1]]}, x), None),
    "another dtype": lambda x: (({"u": x, "v": [x]}, x.astype("int32")), None),
    "nothing": lambda x: (({"u": x, "v": [None]}, x), Exception),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_arguments_go_the_general_way(name: str, backend: ml.Backend) -> None:
    x = backend.array([1.0, 2.0])

    def add(a: Any, b: Any) -> Any:
        return Pair(a["u"] + a["v"][0], b)

    function = ml.jit(add, backend=backend)
    written(function, {"u": x, "v": [x]}, x)
    args, refused = OTHERS[name](x)
    assert function._written[0].collect(args) is None
    if refused:
        with pytest.raises(refused):
            function(*args)
        return
    found, expected = function(*args), add(*args)
    assert type(found) is Pair
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))


def test_classes_of_containers_and_values_come_back(backend: ml.Backend) -> None:
    x = backend.array([1.0])
    function = ml.jit(
        lambda pair: [Pair(pair.second, None), OrderedDict(a=pair.first), {3: (pair.first,)}]
    )
    written(function, Pair(x, 2.0 * x))
    first, second, third = function(Pair(x, 2.0 * x))
    assert (type(first), first.second, first.first.item()) == (Pair, None, 2.0)
    assert (type(second), [*second]) == (OrderedDict, ["a"])
    assert third[3][0].item() == 1.0


def test_what_is_given_up_is_lost(backend: ml.Backend) -> None:
    step = ml.jit(lambda state, x: {"w": state["w"] + x}, donate="state")
    x, state = backend.ones(2), {"w": backend.ones(2)}
    for _ in range(4):
        before, state = state, step(state, x)
    assert state["w"].numpy().tolist() == [5.0, 5.0]
    with pytest.raises(ml.BackendError, match="was donated to"):
        before["w"].numpy()
    with pytest.raises(ml.BackendError, match="was donated"):
        step(before, x)
    with pytest.raises(ml.BackendError, match="also passed"):
        step({"w": x}, x)


def test_arrays_from_around_are_taken_along(backend: ml.Backend) -> None:
    around = backend.array([1.0, 2.0])
    function = ml.jit(lambda x: x * around)
    written(function, around)
    assert function(around + 1.0).numpy().tolist() == [2.0, 6.0]


def test_within_another_function_it_is_a_part_of_that(backend: ml.Backend) -> None:
    x = backend.array([1.0, 2.0])
    inner = ml.jit(lambda x: x * 3.0)
    written(inner, x)
    outer = ml.jit(lambda x: inner(x) + inner(x))
    assert outer(x).numpy().tolist() == [6.0, 12.0]


def test_a_function_with_values_is_not_written(backend: ml.Backend) -> None:
    x = backend.ones(2)
    function = ml.jit(lambda x, scale: x * scale, static="scale")
    for _ in range(3):
        assert function(x, 2).numpy().tolist() == [2.0, 2.0]
    assert function._written is None


@pytest.mark.parametrize("call", [
    lambda function, x: function(tree={"x": x}),
    lambda function, x: function(defaultdict(list, x=x)),
])  # fmt: skip
def test_what_is_not_recognised_is_written_once(backend: ml.Backend, call: Any) -> None:
    x = backend.ones(2)
    function = ml.jit(lambda tree: tree["x"] * 2.0)
    found = []
    for _ in range(4):
        assert call(function, x).numpy().tolist() == [2.0, 2.0]
        found.append(function._written)
    assert found[1][0] is found[3][0]


@pytest.mark.parametrize("args", [(), ({},), (None,), ([(), {}],)])
def test_a_function_may_be_given_no_array(backend: ml.Backend, args: tuple[Any, ...]) -> None:
    around = backend.array([1.0, 2.0])
    function = ml.jit(lambda *nothing: around * 2.0, backend=backend)
    written(function, *args)
    assert function(*args).numpy().tolist() == [2.0, 4.0]
    with pytest.raises((ml.MithrilError, TypeError)):
        function("text")


def test_each_kind_of_arguments_is_written_once(
    backend: ml.Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def tell(*given: Any) -> Any:
        made.append(given)
        return write_function(*given)

    monkeypatch.setattr(function_module, "write_function", tell)
    function = ml.jit(lambda x: x * 2.0)
    short, long = backend.ones(2), backend.ones(3)
    for x in [short, short, long, long] * 5 + [short, long] * 5:
        assert function(x).numpy().tolist() == [2.0] * len(x)
    assert len(made) == 2


def test_nothing_that_is_written_keeps_a_function_alive(backend: ml.Backend) -> None:
    function = ml.jit(lambda x: x * 2.0)
    alive = weakref.ref(written(function, backend.ones(2)).collect)
    gc.collect()
    gc.disable()
    try:
        del function
        assert alive() is None
    finally:
        gc.enable()
