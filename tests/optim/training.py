"""A small problem that every optimiser trains a hundred steps, here and in the oracles."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import opened

STEPS = 100
SHAPES = {"wide": (6, 8), "tall": (12, 4), "bias": (5,), "stack": (2, 4, 6)}
SPECS = {
    "wide": P("data", "tensor"), "tall": P(None, "data"), "bias": P("data"), "stack": P(None, "tensor"),
}  # fmt: skip
"""`bias` does not divide."""

Values = dict[str, np.ndarray]


def draw_params() -> Values:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}


def draw_noise() -> list[Values]:
    rng = np.random.default_rng(1)
    return [
        {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
        for _ in range(STEPS)
    ]


@cache
def open_backend(is_split: bool) -> ml.Backend:
    return ml.NumpyBackend(ml.Mesh(data=2, tensor=2)) if is_split else ml.NumpyBackend()


def train(
    optimizer: ml.optim.Transformation,
    *,
    is_split: bool = False,
    steps: int = STEPS,
    dtype: str = "float32",
) -> tuple[Values, object]:
    """Return parameters and state after so many steps with the gradient `p - noise`."""
    backend = open_backend(is_split)

    def step(params: dict, state: object, noise: dict) -> tuple:
        gradients = {name: params[name] - noise[name] for name in params}
        return optimizer.apply(gradients, state, params)

    specs = SPECS if is_split else None
    run = ml.jit(
        step, backend=backend, in_shardings=(specs, None, None), out_shardings=(specs, None)
    )
    params = {
        name: backend.array(x, dtype=dtype, sharding=SPECS[name] if is_split else None)
        for name, x in draw_params().items()
    }
    state = optimizer.init(params)
    for noise in draw_noise()[:steps]:
        params, state = run(params, state, noise)
    return {name: x.numpy() for name, x in params.items()}, state


def open_jax() -> None:
    """Start JAX with as many devices as tests of other files need, which come after."""
    opened("jax", x=1)


def train_torch(make: Callable, *, dtype: str = "float32") -> Values:
    """Return what an optimiser of PyTorch makes of the same."""
    torch = pytest.importorskip("torch")
    params = {
        name: torch.nn.Parameter(torch.tensor(x.astype(dtype))) for name, x in draw_params().items()
    }
    optimizer = make(params.values())
    for noise in draw_noise():
        for name, p in params.items():
            p.grad = p.detach() - torch.tensor(noise[name])
        optimizer.step()
    return {name: p.detach().numpy() for name, p in params.items()}


def train_optax(optimizer: object, *, is_transposed: bool = False) -> Values:
    """Return what an optimiser of optax makes of the same; its matrices may be [in, out]."""
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")
    open_jax()

    def turn(values: dict) -> dict:
        return {n: x.T if is_transposed and x.ndim == 2 else x for n, x in values.items()}

    @jax.jit
    def step(params: dict, state: object, noise: dict) -> tuple:
        gradients = {name: params[name] - noise[name] for name in params}
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params = turn(draw_params())
    state = optimizer.init(params)
    for noise in draw_noise():
        params, state = step(params, state, turn(noise))
    return {name: np.asarray(x) for name, x in turn(params).items()}
