"""The functional API on JAX: what it computes, what a checkpoint saves, what donation gives up."""

from __future__ import annotations

from functools import partial

import jax
import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.types import TensorType

from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
RNG = np.random.default_rng(0)
MESHES = [ml.Mesh(), ml.Mesh(x=3), ml.Mesh(x=4), ml.Mesh(x=2, y=2)]


def close(found: object, expected: object) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


def loss(params, x, y):
    hidden = mnp.tanh(x @ params["up"]["w"] + params["up"]["b"])
    error = hidden @ params["down"] - y
    return mnp.mean(error * error)


PARAMS = {
    "up": {"w": RNG.standard_normal((6, 10), np.float32), "b": RNG.standard_normal(10, np.float32)},
    "down": RNG.standard_normal((10, 3), np.float32),
}
X, Y = RNG.standard_normal((8, 6), np.float32), RNG.standard_normal((8, 3), np.float32)


def by_jax(params, x, y):
    hidden = jax.numpy.tanh(x @ params["up"]["w"] + params["up"]["b"])
    return ((hidden @ params["down"] - y) ** 2).mean()


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("wrap", [lambda f: f, ml.checkpoint], ids=["kept", "again"])
def test_value_and_gradient(mesh: ml.Mesh, wrap) -> None:
    backend = ml.JaxBackend(mesh)
    spec, columns = (P("x"), P(None, "x")) if mesh.size > 1 else (P(), P())
    step = ml.jit(
        ml.value_and_grad(wrap(loss)),
        backend=backend,
        in_shardings=({"up": {"w": columns, "b": spec}, "down": spec}, P(), P()),
    )
    value, slopes = step(PARAMS, X, Y)
    expected, theirs = jax.value_and_grad(by_jax)(PARAMS, X, Y)
    close(value, expected)
    close(slopes["down"], theirs["down"])
    close(slopes["up"]["w"], theirs["up"]["w"])
    close(slopes["up"]["b"], theirs["up"]["b"])
    if mesh.size > 1:
        assert slopes["down"].sharding.spec == P("x", None)
    again, _ = step(PARAMS, X, Y)
    close(again, expected)
    assert step.recompiles == 1


def test_second_derivatives() -> None:
    backend = ml.JaxBackend(ml.Mesh(x=2))
    cube = ml.grad(ml.grad(lambda x: mnp.sum(x**3)))
    with pytest.raises(ml.GraphError):
        cube(backend.ones(3))
    slope = ml.grad(lambda x: mnp.sum(ml.grad(lambda z: mnp.sum(z**3))(x) * x))
    x = backend.array(X, sharding=P("x"))
    close(slope(x), 9 * X**2)


def zeros_of(type: TensorType, box: tuple[slice, ...]) -> np.ndarray:
    return np.zeros([cut.stop - cut.start for cut in box], type.dtype.numpy)


def temporary_bytes(function, *arguments: object) -> int:
    """Return the memory that XLA takes for a function besides its arguments and results."""
    plan = function.plan(*arguments)
    engine = arguments[-1].backend.engine
    executable = engine.lower(plan.stages[0].program)
    held = [
        engine.put(port.type, port.sharding, partial(zeros_of, port.type))
        for port in executable.program.inputs
    ]
    return executable.memory(held).temp_size_in_bytes


@pytest.mark.slow
def test_a_checkpoint_saves_memory() -> None:
    backend = ml.JaxBackend(ml.Mesh(x=2))
    weights = [backend.array(0.1 * RNG.standard_normal((32, 32), np.float32)) for _ in range(8)]
    x = backend.array(RNG.standard_normal((2048, 32), np.float32), sharding=P("x"))

    def layer(w, x):
        for _ in range(3):
            x = mnp.tanh(mnp.sin(x @ w) + x)
        return x

    def deep(layer):
        def total(weights, x):
            for w in weights:
                x = layer(w, x)
            return mnp.mean(x * x)

        return ml.jit(ml.grad(total))

    kept, again = deep(layer), deep(ml.checkpoint(layer))
    for one, other in zip(kept(weights, x), again(weights, x), strict=True):
        close(one, other)
    assert temporary_bytes(again, weights, x) < temporary_bytes(kept, weights, x) / 2


def test_donated_memory_is_taken() -> None:
    backend = ml.JaxBackend(ml.Mesh(x=2))
    x = backend.array(np.arange(8.0, dtype=np.float32), sharding=P("x"))
    theirs = x.jax()
    result = ml.jit(lambda x: x + 1, donate=0)(x)
    assert theirs.is_deleted()
    close(result, np.arange(8.0) + 1)
    with pytest.raises(ml.BackendError, match="was donated to function"):
        x.numpy()


def test_a_model_takes_the_memory_of_what_it_is_given() -> None:
    model = ml.Model()
    model |= ml.Relu()(input="x", output="y")
    backend = ml.JaxBackend(ml.Mesh(x=2))
    x = backend.array(np.arange(8.0, dtype=np.float32), sharding=P("x"))
    theirs = x.jax()
    y = ml.compile(model, backend, donate="x").evaluate({}, {"x": x})["y"]
    assert theirs.is_deleted()
    close(y, np.arange(8.0))
    other = backend.ones(8, sharding=P("x"))
    theirs = other.jax()
    close(backend.add(other, 1.0, donate=0), np.full(8, 2.0))
    assert theirs.is_deleted()
