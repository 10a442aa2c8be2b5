"""scan: a loop over trees equals the iterations written out, everywhere and however arrays lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.ir.rewrite import all_nodes

from tests.functional.backends import close, every_backend, floats, opened
from tests.functional.test_properties import MESHES, specs
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

NP = ml.NumpyBackend()


def written_out(
    function: Callable, init: Any, xs: Any, length: int, reverse: bool = False
) -> tuple[Any, Any]:
    """What scan shall be, for trees that are dicts of arrays."""
    carry, rows = init, []
    for i in range(length)[:: -1 if reverse else 1]:
        carry, row = function(carry, {name: x[i] for name, x in xs.items()})
        rows.append(row)
    rows = rows[:: -1 if reverse else 1]
    return carry, {name: mnp.stack([row[name] for row in rows]) for name in rows[0]}


def cell(w: Any, b: Any) -> Callable:
    """A step of a recurrent network with a running sum beside; w and b come from around it."""

    def step(carry: dict, x: dict) -> tuple[dict, dict]:
        hidden = mnp.tanh(x["x"] @ w["in"] + carry["h"] @ w["back"] + b)
        return {"h": hidden, "sum": carry["sum"] + hidden * x["scale"]}, {
            "h": hidden,
            "was": carry["h"],
        }

    return step


@every_backend
@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_its_iterations_written_out(name: str, reverse: bool) -> None:
    """Values and gradients; batch over one axis, features over the other."""
    backend = opened(name, x=2, y=2)
    w = {"in": floats(3, 4, seed=1), "back": floats(4, 4, seed=2) / 2}
    xs, scale, h = floats(5, 6, 3, seed=3), floats(5, seed=4), floats(6, 4, seed=5)

    def loss(loop: Callable) -> Callable:
        def f(w: dict, b: Any, h: Any, xs: dict) -> Any:
            init = {"h": h, "sum": h * 0.0}
            carry, rows = loop(cell(w, b), init, xs, length=5, reverse=reverse)
            return (carry["sum"] ** 2).sum() + (rows["h"] * rows["was"]).sum()

        return ml.jit(ml.value_and_grad(f, (0, 1, 2, 3)))

    specs = {"in": P(None, "y"), "back": P(None, "y")}
    given_ = [
        {n: backend.array(v, sharding=specs[n]) for n, v in w.items()},
        backend.array(floats(4, seed=6), sharding=P("y")),
        backend.array(h, sharding=P("x", "y")),
        {"x": backend.array(xs, sharding=P(None, "x")), "scale": backend.array(scale)},
    ]
    alone = [
        {n: NP.array(v) for n, v in w.items()},
        NP.array(floats(4, seed=6)),
        NP.array(h),
        {"x": NP.array(xs), "scale": NP.array(scale)},
    ]
    looped = loss(ml.scan)
    value, slopes = looped(*given_)
    wanted, expected = loss(written_out)(*alone)
    close(value, wanted.numpy())
    for found, slope in zip(slopes, expected, strict=True):
        for key in slope if isinstance(slope, dict) else [None]:
            pair = (found, slope) if key is None else (found[key], slope[key])
            close(pair[0], pair[1].numpy())
    graph = looped.plan(*given_).stages[0].program.graph
    assert sum(node.op.name == "repeat" for node in all_nodes(graph)) == 2, "one each way"


@every_backend
def test_arrays_are_scanned_at_once(name: str) -> None:
    backend = opened(name, x=2, y=2)
    xs = backend.array(floats(4, 6, 3), sharding=P(None, "x"))
    w = backend.array(floats(3, seed=1))
    total, (before, doubled) = ml.scan(
        lambda c, x: (c + x * w, (c, x * 2.0)), backend.zeros(6, 3), xs
    )
    sums = np.cumsum(floats(4, 6, 3) * floats(3, seed=1), 0)
    close(total, sums[-1])
    close(before[1:], sums[:-1])
    close(doubled, floats(4, 6, 3) * 2)
    assert doubled.sharding.spec == P(None, "x")


def test_what_is_used_from_around_is_what_it_is_now() -> None:
    backend = ml.NumpyBackend()
    x, w = backend.ones(3), backend.array(2.0)

    def step(carry: Any, x: Any) -> Any:
        return carry + x * w, None

    assert ml.scan(step, 0.0, x)[0].item() == 6
    w = backend.array(5.0)
    assert ml.scan(step, 0.0, x)[0].item() == 15


def test_a_loop_met_before_is_not_planned_again() -> None:
    backend = ml.NumpyBackend()
    for _ in range(3):
        for size in (2, 3):
            total, _ = ml.scan(
                lambda c, x: (c * 0.5 + x, None), backend.zeros(()), backend.ones(size)
            )
    assert total.item() == 1.75
    assert len(backend.retraced) == 2


def test_trees_of_every_kind() -> None:
    x = NP.array([1.0, 2.0, 3.0])
    assert ml.scan(lambda c, x: (None, None), None, x) == (None, None)
    none, doubled = ml.scan(lambda c, x: (c, x * 2), None, x, reverse=True)
    assert none is None
    assert doubled.numpy().tolist() == [2, 4, 6]
    step = ml.jit(
        lambda: ml.scan(lambda c, _: ((c[1], c[0] + c[1]), [c[0], {}]), (0, 1), length=7),
        backend=NP,
    )
    (_, last), rows = step()
    assert rows[0].numpy().tolist() == [0, 1, 1, 2, 3, 5, 8]
    assert rows[1] == {}
    assert last.item() == 21


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16"])
def test_a_number_takes_the_dtype_that_it_meets(dtype: str, traced: bool) -> None:
    def total(x: Any) -> Any:
        return ml.scan(lambda c, x: (c + x, c), 0, x)

    run = ml.jit(total) if traced else total
    last, before = run(NP.array([1, 2, 3], dtype=dtype))
    assert str(last.dtype) == str(before.dtype) == dtype
    assert float(last) == 6


def test_integers_and_masks_are_carried_beside_what_has_a_gradient() -> None:
    x, n = NP.array(floats(5, 3)), NP.arange(5)

    def loss(loop: Callable, x: Any) -> Any:
        def step(carry: dict, x: dict) -> tuple[dict, dict]:
            count, seen = carry["count"] + x["n"], carry["seen"] | (x["x"] > 0)
            state = mnp.where(seen, carry["state"] * 0.5, x["x"]) + x["x"] * count.astype("float32")
            return {"count": count, "seen": seen, "state": state}, {"count": count, "y": state}

        init = {"count": 0, "seen": x[0] > 9, "state": x[0] * 2}
        carry, rows = loop(step, init, {"x": x, "n": n}, length=5)
        return (carry["state"] ** 2).sum() + (
            rows["y"] * rows["count"].reshape(5, 1).astype("float32")
        ).sum()

    found, expected = (
        ml.jit(ml.value_and_grad(lambda x, loop=loop: loss(loop, x)))(x)
        for loop in (ml.scan, written_out)
    )
    for one, other in zip(found, expected, strict=True):
        close(one, other.numpy())


def test_no_iteration_leaves_the_carry() -> None:
    for run in (ml.scan, ml.jit(ml.scan, static=("function",))):
        carry, rows = run(lambda c, x: (c + x, c * x), NP.array([5.0, 6.0]), NP.zeros(0, 2))
        assert carry.numpy().tolist() == [5, 6]
        assert rows.shape == (0, 2)


def test_scans_nest_and_are_checkpointed() -> None:
    x = NP.array(floats(3, 4, 2, seed=7))

    def rows(wrap: Callable) -> Callable:
        def inner(c: Any, x: Any) -> Any:
            return mnp.sin(c * x), c.sum()

        def outer(c: Any, x: Any) -> Any:
            return ml.scan(wrap(inner), c, x)

        return ml.grad(lambda x: sum(y.sum() for y in ml.scan(outer, x[0, 0], x)))

    found = rows(lambda f: f)(x)
    close(rows(ml.checkpoint)(x), found.numpy())

    def plain(x: Any) -> Any:
        c, total = x[0, 0], 0.0
        for i in range(3):
            for j in range(4):
                total = total + c.sum()
                c = mnp.sin(c * x[i, j])
        return total + c.sum()

    close(found, ml.grad(plain)(x).numpy())


@ml.layer(parameters=("weight",))
def Smooth(input: Any) -> Any:  # noqa: N802 - a layer
    """Average along a sequence with a learned rate."""
    weight = ml.parameter("weight", input.shape[-1:], ml.Constant(0.5))

    def step(mean: Any, x: Any) -> Any:
        mean = mean * weight + x * (1.0 - weight)
        return mean, mean

    _, means = ml.scan(step, input[:, 0], input.transpose(1, 0, 2))
    return means.transpose(1, 0, 2)


def test_a_layer_scans_with_its_parameters() -> None:
    model = ml.Model()
    model |= Smooth(name="smooth")(input="x", output="y")
    x = floats(4, 5, 3)
    mean, means = x[:, 0], []
    for i in range(5):
        mean = (mean + x[:, i]) / 2
        means.append(mean)
    slopes = []
    for backend in (NP, ml.NumpyBackend(ml.Mesh(data=2)), ml.NumpyBackend(ml.Mesh(data=3))):
        compiled = ml.compile(model, backend)
        given_ = {"x": backend.array(x, sharding=P("data") if backend.mesh.size > 1 else P())}
        params = compiled.randomize_params()
        made, found = compiled.evaluate(params, given_, {"y": np.ones_like(x)})
        close(made["y"], np.stack(means, 1))
        slopes.append(found["smooth.weight"].numpy())
    for slope in slopes[1:]:
        close(slope, slopes[0])


# ------------------------------------------------------------------ random bodies


@cache
def on_mesh(number: int) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(MESHES[number]))


KINDS = ("add", "mix", "norm", "swap", "gate", "count", "square")


def random_body(kinds: list[str], w: Any) -> Callable:
    """A body that carries a matrix and a row, and stacks what it goes through."""

    def step(carry: tuple, x: dict) -> tuple[tuple, dict]:
        state, row = carry
        rows = {}
        for number, kind in enumerate(kinds):
            if kind == "add":
                state = state + x["x"]
            elif kind == "mix":
                state = mnp.tanh(state @ w)
            elif kind == "norm":
                row = mnp.softmax(row + state.mean(0))
            elif kind == "swap":
                state = mnp.sin(state.T @ state) + row
            elif kind == "gate":
                state = state * mnp.sigmoid(row)
            elif kind == "count":
                row = row + x["n"].astype(row.dtype) * 0.1
            else:
                row = row + (state * state).sum(0) * 0.01
            rows[str(number)] = state if number % 2 else row
        return (state, row), rows

    return step


@pytest.mark.slow
@settings(max_examples=scaled(60))
@given(st.data())
def test_random_bodies_equal_their_iterations(data: st.DataObject) -> None:
    draw = data.draw
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    number, size, count = (
        draw(st.integers(0, len(MESHES) - 1)),
        draw(st.integers(1, 7)),
        draw(st.integers(1, 4)),
    )
    reverse, backend = draw(st.booleans()), on_mesh(number)
    rng = np.random.default_rng(0)
    host = {
        "w": rng.normal(size=(size, size)), "state": rng.normal(size=(size, size)),
        "row": rng.normal(size=size), "x": rng.normal(size=(count, size, size)),
    }  # fmt: skip
    n = rng.integers(0, 5, count).astype(np.int32)

    def loss(loop: Callable) -> Callable:
        def f(p: dict, n: Any) -> Any:
            body, xs = random_body(kinds, p["w"]), {"x": p["x"], "n": n}
            (state, row), rows = loop(
                body, (p["state"], p["row"]), xs, length=count, reverse=reverse
            )
            return state.sum() + (row * row).sum() + sum((r * r).sum() for r in rows.values())

        return ml.value_and_grad(f)

    axes = list(MESHES[number])
    lies = {name: specs(draw, axes, v.ndim) or P() for name, v in host.items()}
    placed = {k: backend.array(v, dtype="float64", sharding=lies[k]) for k, v in host.items()}
    alone = {k: NP.array(v, dtype="float64") for k, v in host.items()}
    value, slopes = loss(ml.scan)(placed, backend.array(n))
    wanted, expected = loss(written_out)(alone, NP.array(n))
    rtol, atol = TOLERANCE["float64"]
    np.testing.assert_allclose(value, wanted, rtol, atol)
    for key, slope in expected.items():
        np.testing.assert_allclose(slopes[key], slope, rtol, atol, err_msg=key)


# ------------------------------------------------------------------ mistakes

X, PAIR = NP.array([1.0, 2.0, 3.0]), NP.ones(2)
MISTAKES: dict[str, tuple[Callable, type[Exception], str]] = {
    "no function": (lambda: ml.scan(3, 0.0, X), ml.GraphError, "scan() takes a function, not 3"),
    "no pair": (
        lambda: ml.scan(lambda c, x: c, 0.0, X),
        ml.GraphError,
        "returns no pair; return (next carry, what is stacked)",
    ),
    "other form": (
        lambda: ml.scan(lambda c, x: ((c, c), None), 0.0, X),
        ml.GraphError,
        "gets the carry ['carry'] and returns ['carry.0', 'carry.1']; return the next carry in the form of the one before",
    ),
    "other type": (
        lambda: ml.scan(lambda c, x: ({"h": x}, None), {"h": PAIR}, X),
        ml.ShapeError,
        "scan() carries 'carry.h' into an iteration of function 'lambda' as float32[2] and out of it as float32[]; a carry keeps its shape and dtype",
    ),
    "other lengths": (
        lambda: ml.scan(lambda c, x: (c, None), 0.0, {"a": X, "b": PAIR}),
        ml.ShapeError,
        "has 3 iterations by 'xs.a' and 2 by 'xs.b'; give arrays of the same first size",
    ),
    "another length": (
        lambda: ml.scan(lambda c, x: (c, None), 0.0, X, length=4),
        ml.ShapeError,
        "has 4 iterations by length= and 3 by 'xs'",
    ),
    "no length": (
        lambda: ml.scan(lambda c, x: (c, None), PAIR),
        ml.GraphError,
        "scan() of function 'lambda' runs None times; give xs, or an integer length= of 0 or more",
    ),
    "a scalar": (
        lambda: ml.scan(lambda c, x: (c, None), 0.0, NP.array(1.0)),
        ml.ShapeError,
        "goes along the first dimension of 'xs', and that is a scalar; give [length, ...]",
    ),
    "no array": (
        lambda: ml.scan(lambda c, x: (c, "a"), 0.0, X),
        ml.GraphError,
        "result of function 'lambda' is a str, which is no array",
    ),
    "no backend": (
        lambda: ml.scan(lambda c, x: (c, None), 0.0, np.ones(3)),
        ml.BackendError,
        "function 'lambda' is called without an array of a backend and knows none; pass backend.array",
    ),
    "unknown option": (
        lambda: ml.scan(lambda c, x: (c, None), 0.0, X, unroll=2),  # type: ignore[call-arg]
        ml.OptionError,
        "scan() has no option 'unroll'",
    ),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_answered(case: str) -> None:
    make, error, text = MISTAKES[case]
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)


@every_backend
def test_arrays_of_numpy_meet_those_of_a_backend(name: str) -> None:
    backend = opened(name, x=2)
    zeros, rows = np.zeros(2, np.float32), floats(3, 2)
    for init, xs in ((zeros, backend.array(rows)), (backend.array(zeros), rows)):
        total, before = ml.scan(lambda c, x: (c + x, c + np.ones(2)), init, xs)
        close(total, rows.sum(0))
        close(before, np.cumsum(rows, 0) - rows + 1)
