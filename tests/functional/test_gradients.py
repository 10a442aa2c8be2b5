"""grad and value_and_grad: against slopes, through trees, nested, and around jitted functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P, ops

from tests.functional.backends import close, every_backend, floats, opened
from tests.tolerances import DIFFERENCES


def slopes(f: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Return the gradient from central differences."""
    found = np.empty_like(x)
    for index in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(float(f(moved)))
        found[index] = (ends[0] - ends[1]) / (2 * step)
    return found


def loss(p: dict, x: object, y: object) -> object:
    hidden = mnp.tanh(x @ p["w"][0] + p["b"])
    return mnp.mean((hidden @ p["w"][1] - y) ** 2)


@pytest.mark.slow
def test_gradients_are_slopes() -> None:
    backend = opened("numpy", x=2, y=2)
    rng = np.random.default_rng(0)
    host = {"w": [rng.normal(size=(4, 6)), rng.normal(size=(6, 2))], "b": rng.normal(size=6)}
    x, y = rng.normal(size=(8, 4)), rng.normal(size=(8, 2))

    def array(values: np.ndarray, spec: P | None = None) -> ml.Array:
        return backend.array(values, dtype="float64", sharding=spec or P())

    specs = {"w": [P("x", "y"), P("y")], "b": P(("x", "y"))}
    params = {
        "w": [array(v, s) for v, s in zip(host["w"], specs["w"], strict=True)],
        "b": array(host["b"], specs["b"]),
    }
    given = array(x, P("x")), array(y, P("x"))
    value, found = ml.value_and_grad(loss)(params, *given)
    for name, at in (("w", 0), ("w", 1), ("b", None)):

        def moved(v: np.ndarray, name: str = name, at: int | None = at) -> float:
            changed = {"w": list(params["w"]), "b": params["b"]}
            if at is None:
                changed[name] = array(v)
            else:
                changed[name][at] = array(v)
            return float(ml.jit(loss)(changed, *given))

        gradient = found[name] if at is None else found[name][at]
        spec = specs[name] if at is None else specs[name][at]
        expected = slopes(moved, host[name] if at is None else host[name][at])
        rtol, atol = DIFFERENCES
        np.testing.assert_allclose(gradient.numpy(), expected, rtol=rtol, atol=atol)
        assert gradient.sharding == (params[name] if at is None else params[name][at]).sharding
        assert gradient.sharding.spec == spec
    assert value.sharding.is_replicated


@every_backend
def test_a_training_step_is_one_plan(name: str) -> None:
    backend = opened(name, x=8)
    x, y = floats(32, 16), floats(32, 10, seed=1)
    p = {"w": floats(16, 10, seed=2), "b": np.zeros(10, np.float32)}

    def error(p: dict, x: object, y: object) -> object:
        return mnp.mean((x @ p["w"] + p["b"] - y) ** 2)

    def step(p: dict, x: object, y: object, lr: float) -> tuple:
        value, g = ml.value_and_grad(error)(p, x, y)
        return {k: p[k] - lr * g[k] for k in p}, value, g

    spec = {"w": P("x"), "b": P()}
    train = ml.jit(
        step, backend=backend, in_shardings=(spec, P(), P(), P()), out_shardings=(spec, P(), None)
    )
    new, value, g = train(p, x, y, 0.1)
    residual = x @ p["w"] - y
    slope = 2 * x.T @ residual / residual.size
    close(value, (residual**2).mean())
    close(new["w"], p["w"] - 0.1 * slope)
    close(g["w"], slope)
    assert g["w"].sharding.spec == P("x")
    assert g["b"].sharding.is_replicated
    new, second, _ = train(new, x, y, 0.1)
    assert float(second) < float(value)
    assert train.recompiles == 1


def test_gradients_of_several_arguments_and_more_results() -> None:
    backend = opened("numpy", x=2)
    a, b = backend.array(floats(3)), backend.array(floats(3, seed=1))

    def f(a: object, b: dict, k: float = 3.0) -> tuple:
        return (a * b["x"]).sum() * k, {"product": a * b["x"], "name": "f"}

    both, aux = ml.grad(f, argnums=(0, 1), has_aux=True)(a, {"x": b})
    close(both[0], 3 * floats(3, seed=1))
    close(both[1]["x"], 3 * floats(3))
    close(aux["product"], floats(3) * floats(3, seed=1))
    (value, _), second = ml.value_and_grad(f, argnums=1, has_aux=True)(a, {"x": b}, k=2.0)
    close(value, 2 * (floats(3) * floats(3, seed=1)).sum())
    close(second["x"], 2 * floats(3))


def test_values_of_python_stay_what_they_are() -> None:
    x = opened("numpy", x=2).array([1.0, -2.0])

    def f(x: object, kind: str, is_squared: bool, reduce: Callable) -> object:
        return reduce(mnp.abs(x) if kind == "abs" else x**2 if is_squared else x)

    gradient = ml.grad(f)
    close(gradient(x, "abs", False, mnp.sum), [1, -1])
    close(gradient(x, "any", True, mnp.sum), [2, -4])
    close(gradient(x, "any", False, lambda x: x.mean()), [0.5, 0.5])


def test_gradients_on_arrays_are_planned_once() -> None:
    calls = []

    def f(x: object) -> object:
        calls.append(x)
        return (x * x).sum()

    gradient, backend = ml.grad(f), ml.NumpyBackend(ml.Mesh(x=2))
    for function in (gradient, gradient, ml.grad(f)):
        close(function(backend.array([1.0, 2.0])), [2, 4])
    assert (len(calls), len(backend.retraced)) == (3, 1)


@every_backend
def test_what_a_function_uses_from_around_it_is_that_of_the_call(name: str) -> None:
    backend = opened(name, x=2)
    x, batch = backend.array([1.0, 2.0]), [backend.array(1.0), 1.0]

    def f(x: Any) -> Any:
        return {"loss": (x * x * batch[0] * batch[1]).sum()}["loss"], batch[0]

    gradient = ml.grad(f, has_aux=True)
    for number in (2.0, 3.0, 2.0):
        batch[0] = backend.array(number)
        slope, around = gradient(x)
        close(slope, [2 * number, 4 * number])
        close(around, number)
    batch[1] = 10.0
    close(gradient(x)[0], [40, 80])


@every_backend
def test_second_derivatives(name: str) -> None:
    x = opened(name, x=8).array([0.5, 1.0, 2.0], sharding=P("x"))
    slope = ml.grad(lambda x: (mnp.sin(x) * x).sum())
    host = np.asarray([0.5, 1, 2])
    expected = 2 * np.cos(host) - host * np.sin(host)
    for second in (ml.grad(lambda x: slope(x).sum()), ml.jit(ml.grad(lambda x: slope(x).sum()))):
        close(second(x), expected)
        assert second(x).sharding.spec == P("x")
    third = ml.grad(lambda x: ml.grad(lambda x: slope(x).sum())(x).sum())
    close(third(x), -3 * np.sin(host) - host * np.cos(host))


def test_around_and_inside_jitted_functions() -> None:
    backend = opened("numpy", x=4)
    w = backend.array(floats(8, 4), sharding=P("x"))
    product = ml.jit(lambda w, x: x @ w, in_shardings=(P("x"), P(None, "x")), out_shardings=P())
    f = ml.jit(lambda w, x: (product(w, x) ** 2).sum())
    x = floats(2, 8, seed=1)
    expected = 2 * x.T @ (x @ floats(8, 4))
    for gradient in (ml.grad(f), ml.jit(ml.grad(f)), ml.grad(ml.jit(f))):
        close(gradient(w, x), expected)
        assert gradient(w, x).sharding.spec == P("x")


def test_closures_over_traced_values_and_inner_gradients_of_them() -> None:
    backend = opened("numpy", x=2)

    def f(x: object, s: object) -> object:
        inner = ml.grad(lambda y: (y * y * s * x).sum())(x)  # 2 y s x at y = x
        return (inner * s).sum()

    x, s = backend.array([1.0, 2.0]), backend.array(3.0)
    gx, gs = ml.grad(f, argnums=(0, 1))(x, s)
    close(gx, 4 * 9 * np.asarray([1.0, 2.0]))
    close(gs, 4 * 3 * 5)


@pytest.mark.parametrize("mesh", [{"x": 1}, {"x": 2}, {"x": 4, "y": 2}])
def test_through_loops_once_and_twice(mesh: dict[str, int]) -> None:
    backend = opened("numpy", **mesh)
    w = backend.array(floats(4, 4) / 2)
    h = backend.array(floats(8, 4, seed=1), sharding=P("x", "y" if "y" in mesh else None))

    def looped(w: object, h: object) -> object:
        return ops.repeat(lambda h: mnp.tanh(h @ w), h, count=3).sum()

    def unrolled(w: object, h: object) -> object:
        for _ in range(3):
            h = mnp.tanh(h @ w)
        return h.sum()

    def twice(f: Callable) -> Callable:
        return ml.grad(lambda w, h: (ml.grad(f)(w, h) ** 2).sum())

    close(ml.grad(looped)(w, h), ml.grad(unrolled)(w, h).numpy())
    close(twice(looped)(w, h), twice(unrolled)(w, h).numpy())


def test_what_does_not_matter_has_a_gradient_of_zeros() -> None:
    x = opened("numpy", x=2).ones(3)
    close(ml.grad(lambda x: x.sum() * 0 + ops.stop_gradient(x).sum())(x), [0, 0, 0])
    close(ml.grad(lambda x: 2.5)(x), [0, 0, 0])
    close(ml.grad(lambda p: p["used"].sum())({"used": x, "not": x})["not"], [0, 0, 0])


def test_numbers_are_differentiated_by_inside_a_function() -> None:
    x = opened("numpy", x=2).array([1.0, 2.0])
    close(ml.jit(lambda x, k: ml.grad(lambda k: (k * k * x).sum())(k))(x, 3.0), 18)


@every_backend
def test_powers_of_zero_have_gradients_of_numbers(name: str) -> None:
    """By x an exponent of 0 has the gradient 0, also where x is 0; as in JAX and PyTorch."""
    device = opened(name)
    x, y = device.array([0.0, -1.0, 2.0]), device.array([2.0, 0.0, 1.0])
    for exponent in (0, 0.0):
        close(ml.grad(lambda v, k=exponent: (v**k).sum())(x), np.zeros(3, np.float32))
    close(ml.grad(lambda v: (v**y).sum())(device.zeros(3)), np.float32([0.0, 0.0, 1.0]))
    slope = ml.grad(lambda v: (v**1).sum())
    close(ml.grad(lambda v: slope(v).sum())(x), np.zeros(3, np.float32))


@every_backend
def test_arrays_meet_what_is_traced_around_a_gradient(name: str) -> None:
    backend = opened(name, x=2)
    around = backend.array([3.0, 4.0])

    def scaled(y: object) -> object:
        slope = ml.grad(lambda z: (z * z * y).sum())(around)
        return slope + ml.jit(lambda z: z + y)(around)

    f = ml.jit(scaled)
    for y in ([1.0, 2.0], [5.0, 7.0]):
        close(f(backend.array(y)), np.array([3.0, 4.0]) * (2 * np.array(y) + 1) + y)


def test_plans_of_other_functions_are_not_taken() -> None:
    """What differs is in an op that is defined again, in a kernel, in a number's sign."""
    x, own = ml.NumpyBackend().array([-1.0, 2.0]), {}

    def scale(k: float) -> None:
        own["op"] = ml.define_op(
            "test_scale", shapes=lambda x: x, rule="elementwise", kernels={"numpy": lambda x: x * k},
            gradient=lambda inputs, outputs, cotangents: [cotangents[0] * k],
        )  # fmt: skip

    both = ml.value_and_grad(lambda x: own["op"](x).sum())
    for k in (2.0, 3.0):
        scale(k)
        value, slope = both(x)
        close(value, k)
        close(slope, [k, k])

    curve = ml.value_and_grad(lambda x: mnp.tanh(x).sum())
    before = curve(x)[0].item()
    ml.define_kernel("tanh", backend="numpy")(lambda x: x * 0)
    try:
        assert curve(x)[0].item() == 0.0
    finally:
        ml.remove_kernel("tanh", backend="numpy")
    assert curve(x)[0].item() == before

    signs = [ml.value_and_grad(lambda x: (x * zero).sum())(x)[1].numpy() for zero in (0.0, -0.0)]  # noqa: B023
    assert [np.signbit(s).tolist() for s in signs] == [[False, False], [True, True]]
