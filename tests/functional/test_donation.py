"""Donation: what is given up cannot be used again, on any backend."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.functional.backends import close, every_backend, floats, opened


def update(p: dict, g: object) -> dict:
    return {name: x - 0.5 * g for name, x in p.items()}


@every_backend
@pytest.mark.parametrize("donate", ["p", 0, ("p",), [0]])
def test_a_donated_array_is_gone(name: str, donate: object) -> None:
    backend = opened(name, x=8)
    step = ml.jit(update, donate=donate)
    p, g = {"w": backend.array(floats(8, 2), sharding=P("x"))}, backend.ones(8, 2)
    new = step(p, g)
    close(new["w"], floats(8, 2) - 0.5)
    assert repr(p["w"]) == "DonatedArray(float32[8, 2], P('x', None))"
    assert p["w"].shape == (8, 2)
    for use in (lambda x: x + 1, np.asarray, lambda x: step({"w": x}, g), ml.Array.numpy):
        with pytest.raises(ml.BackendError, match=r"donated to function 'update' as 'p\.w' and h"):
            use(p["w"])
    close(g, np.ones((8, 2)))
    close(step(new, g)["w"], floats(8, 2) - 1)
    assert step.recompiles == 1


def test_the_engine_is_told_which_inputs_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from mithril.engine import Engine

    seen = []
    lower = Engine.lower_plan
    monkeypatch.setattr(
        Engine,
        "lower_plan",
        lambda engine, plan, donate=(): seen.append(donate) or lower(engine, plan),
    )
    backend = opened("numpy", x=2)
    f = ml.jit(lambda a, b, c: (a + c, b["x"] + b["y"]), donate=("b", 2))
    one = [backend.ones(2) for _ in range(4)]
    f(one[0], {"x": one[1], "y": one[2]}, one[3])
    assert seen == [[1, 2, 3]]


def test_an_array_is_donated_once_and_for_nothing_else() -> None:
    x = opened("numpy", x=2).ones(2)
    add = ml.jit(lambda a, b: a + b, donate="a")
    with pytest.raises(ml.BackendError, match=r"donated as 'a' and also passed as 'b'; donate a c"):
        add(x, x)
    with pytest.raises(ml.BackendError, match=r"donated as 'a' and also passed as 'captured\.0"):
        ml.jit(lambda a: a + x, donate="a")(x)
    close(x, [1, 1])


def test_a_donated_array_in_a_closure_is_missed() -> None:
    backend = opened("numpy", x=2)
    around = backend.ones(2)
    f = ml.jit(lambda x: x + around)
    f(backend.ones(2))
    ml.jit(lambda x: x * 2, donate=0)(around)
    with pytest.raises(ml.BackendError, match="was donated to function 'lambda' as 'x'"):
        f(backend.ones(2))


def test_nothing_is_given_up_when_the_call_fails_or_is_traced() -> None:
    backend = opened("numpy", x=2)
    x = backend.ones(2)
    f = ml.jit(lambda x, y: x @ y, donate="x")
    with pytest.raises(ml.ShapeError):
        f(x, backend.ones(3))
    close(x, [1, 1])
    half = ml.jit(lambda x: x / 2, donate="x")
    close(ml.jit(lambda x: half(x) + x)(x), [1.5, 1.5])
    close(x, [1, 1])


def total(*xs: object, **named: object) -> object:
    return sum((*xs, *named.values()))


@pytest.mark.parametrize(
    ("donate", "gone"), [("xs", "ab"), ("named", "cd"), (("xs", "c"), "abc"), (1, "b"), ("d", "d")]
)
def test_arguments_in_any_number_are_donated_together_or_one_by_one(
    donate: object, gone: str
) -> None:
    backend = ml.NumpyBackend()
    arrays = {name: backend.ones(2) for name in "abcd"}
    a, b, c, d = arrays.values()
    close(ml.jit(total, donate=donate)(a, b, c=c, d=d), np.full(2, 4.0))
    assert "".join(n for n, x in arrays.items() if repr(x).startswith("Donated")) == gone


def test_a_function_inside_another_gives_nothing_up() -> None:
    backend = ml.NumpyBackend()
    x, around = backend.ones(2), backend.ones(2)
    double = ml.jit(lambda x: x * 2, donate=0)
    double(backend.ones(2))
    outer = ml.jit(lambda y: double(around) + double(y))
    for _ in range(2):
        close(outer(x), np.full(2, 4.0))
    close(around + x, np.full(2, 2.0))


def test_keywords_with_dots_are_no_places() -> None:
    backend = ml.NumpyBackend()
    x, y = backend.ones(2), backend.ones(2)
    ml.jit(total, donate="xs")(x, **{"a.b": y})
    assert [type(z).__name__ for z in (x, y)] == ["DonatedArray", "Array"]
    ml.jit(total, donate="named")(**{"a.b": y})
    assert type(y).__name__ == "DonatedArray"
