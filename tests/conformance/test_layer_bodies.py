"""Layers with constants, and with layers inside, on every backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril import P
from mithril.ir import Tensor

from tests.conformance.engines import BACKENDS, opened
from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 6)).astype(np.float32)
TABLE = RNG.normal(size=(8, 8))
COLUMN = RNG.normal(size=(4, 1))
FLAGS = np.array([True, False] * 4)


@ml.layer
def Body(x: Tensor) -> Tensor:  # noqa: N802
    rows, features = x.shape
    hidden = ml.Linear(8, name="up")(x) @ TABLE
    hidden = mnp.where(FLAGS, hidden, [0.5] * 8) + mnp.arange(0.0, 8.0) * COLUMN
    hidden = hidden + mnp.eye(rows, 8) + mnp.linspace(0, 1, 8) + mnp.full((8,), 0.25)
    return mnp.tanh(ml.Linear(features)(hidden))


@ml.layer
def Loss(x: Tensor) -> Tensor:  # noqa: N802
    return (x * x.stop_gradient() + x).mean()


def model() -> ml.Model:
    made = ml.Model()
    made |= Body(name="body")(x="x", output="y")
    made |= Loss()(x="y", output="loss")
    made.shard({"body.up.weight": P("tensor")})
    return made


def evaluated(backend: ml.Backend, x: Any) -> tuple[Any, dict[str, np.ndarray]]:
    compiled = ml.compile(model(), backend)
    params = compiled.randomize_params(seed=1)
    outputs, gradients = compiled.evaluate(params, {"x": x}, {"loss": 1.0})
    return outputs["loss"].numpy(), {n: g.numpy() for n, g in gradients.items()}


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=RTOL, atol=ATOL)


@pytest.fixture(scope="module")
def oracle() -> tuple[Any, dict[str, np.ndarray]]:
    return evaluated(ml.NumpyBackend(ml.Mesh(data=1, tensor=1)), X)


@pytest.mark.parametrize("axes", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_bodies_are_those_of_numpy(backend: str, axes: tuple[int, int], oracle: Any) -> None:
    here = opened(backend, data=axes[0], tensor=axes[1])
    loss, gradients = evaluated(here, here.array(X, sharding=P("data")))
    close(loss, oracle[0])
    for name, expected in oracle[1].items():
        close(gradients[name], expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_captured_arrays_of_the_backend(backend: str) -> None:
    here = opened(backend, data=2, tensor=2)
    column = here.array(COLUMN.astype(np.float32), sharding=P("data"))

    @ml.layer
    def Scaled(x: Tensor) -> Tensor:  # noqa: N802
        return x * column

    compiled = ml.compile(Scaled(), here)
    close(compiled.evaluate({}, {"x": X})["output"].numpy(), X * COLUMN)
    close(ml.jit(lambda x: x * column)(here.array(X)).numpy(), X * COLUMN)


def test_constants_in_a_function_of_jax(oracle: Any) -> None:
    jax = pytest.importorskip("jax")
    compiled = ml.compile(
        model(), opened("jax", data=2, tensor=2),
        shapes={"x": ml.TensorSpec(X.shape, sharding=P("data"))},
    )  # fmt: skip
    params = {n: p.jax() for n, p in compiled.randomize_params(seed=1).items()}
    pure = compiled.as_jax()
    close(pure(params, {"x": X})["loss"], oracle[0])
    slopes = jax.jit(jax.grad(lambda p: pure(p, {"x": X})["loss"]))(params)
    for name, expected in oracle[1].items():
        close(slopes[name], expected)


@pytest.mark.parametrize("backend", [b for b in BACKENDS if "torch" in str(b.values[0])])
def test_constants_in_a_module_of_torch(backend: str, oracle: Any) -> None:
    torch = pytest.importorskip("torch")
    compiled = ml.compile(model(), opened(backend, data=2, tensor=2), shapes={"x": X.shape})
    module = compiled.as_module(compiled.randomize_params(seed=1))
    loss = module(torch.tensor(X))
    loss.backward()
    close(loss.detach(), oracle[0])
    for name, parameter in module.named_parameters():
        close(parameter.grad, oracle[1][name])


@pytest.mark.slow
def test_constants_in_an_ejected_file(tmp_path: Path, oracle: Any) -> None:
    torch = pytest.importorskip("torch")
    large = RNG.normal(size=(6, 100_000)).astype(np.float32)
    for name, made, seen in (("small", model(), oracle[0]), ("large", _large(large), None)):
        compiled = ml.compile(made, ml.TorchBackend(executor="lockstep"), shapes={"x": X.shape},
                              inference=True)  # fmt: skip
        params = compiled.randomize_params(seed=1)
        file = compiled.eject(tmp_path / f"{name}.py")
        assert file.stat().st_size < 100_000
        tensors = {"x": torch.tensor(X)} | {n: torch.tensor(p.numpy()) for n, p in params.items()}
        torch.save(tensors, tmp_path / "in.pt")
        command = [sys.executable, str(file), "--tensors", str(tmp_path / "in.pt")]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if seen is not None:
            close(float(run.stdout.split()[1]), seen)
            continue
        assert (
            "constant 'captured.0' is too large for this file; give it by --tensors" in run.stderr
        )
        torch.save({**tensors, "captured.0": torch.tensor(large)}, tmp_path / "in.pt")
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        close(float(run.stdout.split()[1]), (X @ large).sum())


def _large(values: np.ndarray) -> ml.Layer:
    @ml.layer
    def Large(x: Tensor) -> Tensor:  # noqa: N802
        return (x @ values).sum()

    return Large()
