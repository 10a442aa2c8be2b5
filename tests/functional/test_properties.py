"""Random functions, shapes, meshes and shardings: one device and many agree, and so do slopes."""

from __future__ import annotations

from functools import cache

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P

from tests.profiles import scaled
from tests.tolerances import TOLERANCE

MESHES = ({"x": 2}, {"x": 4}, {"x": 8}, {"x": 2, "y": 2}, {"x": 4, "y": 2}, {"x": 2, "y": 3})


@cache
def backend_on(number: int) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(MESHES[number]))


def specs(draw: st.DrawFn, axes: list[str], rank: int) -> P | None:
    """Draw a spec: each axis splits one dimension, or none."""
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    entries: list[list[str]] = [[] for _ in range(rank)]
    for axis in axes:
        place = draw(st.integers(-1, rank - 1))
        if place >= 0:
            entries[place].append(axis)
    return P(*entries)


@st.composite
def problems(draw: st.DrawFn) -> tuple:
    number = draw(st.integers(0, len(MESHES) - 1))
    axes = list(MESHES[number])
    sizes = [draw(st.integers(1, 9)) for _ in range(3)]
    shapes = {"x": sizes[:2], "w": sizes[1:], "b": sizes[2:]}
    given_ = {name: specs(draw, axes, len(shape)) for name, shape in shapes.items()}
    arrive = {name: specs(draw, axes, len(shape)) for name, shape in shapes.items()}
    inner = specs(draw, axes, 2)
    out = specs(draw, axes, 2)
    form = draw(st.sampled_from(["plain", "checkpoint", "constrain", "reshard", "jit"]))
    return number, shapes, given_, arrive, inner, out, form


def body(form: str, inner: P | None) -> object:
    def hidden(p: dict, x: object) -> object:
        return mnp.tanh(x @ p["w"] + p["b"])

    def placed(p: dict, x: object) -> object:
        h = x @ p["w"]
        h = ml.constrain(h, inner) if form == "constrain" else ml.reshard(h, inner)
        return mnp.tanh(h + p["b"])

    if form == "checkpoint":
        return ml.checkpoint(hidden)
    if form == "jit":
        return ml.jit(hidden, out_shardings=inner)
    return hidden if form == "plain" or inner is None else placed


@settings(max_examples=scaled(80))
@given(problems())
def test_functions_agree_with_numpy_however_their_arrays_lie(problem: tuple) -> None:
    number, shapes, wanted, arrive, inner, out, form = problem
    backend = backend_on(number)
    rng = np.random.default_rng(0)
    host = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    x, w, b = host.values()
    h = np.tanh(x @ w + b)
    slope = 2 * h * (1 - h**2)
    expected = {"w": x.T @ slope, "b": slope.sum(0)}

    def array(name: str) -> object:
        spec = arrive[name]
        made = backend.array(host[name], dtype="float64", sharding=spec or P())
        return host[name].astype(np.float32) if spec is None else made

    run = body(form, inner)

    def f(p: dict, x: object) -> tuple:
        def loss(p: dict) -> tuple:
            h = run(p, x)
            return (h * h).sum(), h

        (_, h), g = ml.value_and_grad(loss, has_aux=True)(p)
        return h, g

    p_specs = {"w": wanted["w"], "b": wanted["b"]}
    jitted = ml.jit(
        f, backend=backend, in_shardings=(p_specs, wanted["x"]), out_shardings=(out, None)
    )
    found, g = jitted({"w": array("w"), "b": array("b")}, array("x"))
    exact = all(spec is not None for spec in arrive.values())
    rtol, atol = TOLERANCE["float64" if exact else "float32"]
    np.testing.assert_allclose(found.numpy(), h, rtol=rtol, atol=atol)
    if out is not None:
        assert found.sharding.spec == out
    for name, gradient in g.items():
        np.testing.assert_allclose(gradient.numpy(), expected[name], rtol=rtol, atol=atol)
        lies = arrive[name] if wanted[name] is None else wanted[name]
        if lies is not None:  # otherwise it lies as the plan takes the argument
            assert gradient.sharding.spec == lies
