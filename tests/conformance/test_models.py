"""Layers and random models on every installed backend equal NumPy's on one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.mesh import Mesh, Sharding

from tests.conformance.engines import BACKENDS, opened
from tests.models.layer_cases import CASES, Case
from tests.models.test_every_layer import SPLIT, agree, on, results
from tests.runtime.test_random_models import compare
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_batch_over_an_uneven_number_of_devices(backend: str, case: Case) -> None:
    agree(results(case, opened(backend, data=3)), on(case, None))


@pytest.mark.parametrize(("case", "spec"), SPLIT, ids=str)
def test_split_weights(backend: str, case: Case, spec: P) -> None:
    agree(results(case, opened(backend, data=2, tensor=2), spec), on(case, None))


@settings(max_examples=15)
@given(st.data())
def test_random_models_on_random_meshes(backend: str, data: st.DataObject) -> None:
    compare(data, backend)


@settings(max_examples=25)
@given(st.data())
def test_reshard_there_and_back(backend: str, data: st.DataObject) -> None:
    mesh = data.draw(st.sampled_from([{"a": 2, "b": 2}, {"a": 4, "b": 2}, {"a": 3}]))
    on_mesh = opened(backend, **mesh)
    shape = data.draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    places = [*mesh, None]
    first, second = (
        data.draw(st.permutations(places)).index(None) for _ in "12"
    )  # how many axes split the first dimension
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    start = P(tuple(mesh)[:first] or None, tuple(mesh)[first:] or None)
    end = P(tuple(mesh)[second:] or None, tuple(mesh)[:second] or None)
    x = on_mesh.array(host, sharding=start)
    moved = on_mesh.reshard(x, end)
    np.testing.assert_array_equal(moved.numpy(), host)
    back = on_mesh.reshard(moved, start)
    assert back.sharding == x.sharding
    np.testing.assert_array_equal(back.numpy(), host)


def test_initial_parameters_are_equal_bit_for_bit(backend: str) -> None:
    def weights(on: ml.Backend) -> dict[str, np.ndarray]:
        model = ml.Linear(6, sharding={"weight": P("a", None)})
        params = ml.compile(model, on, shapes={"input": (2, 10)}).randomize_params(7)
        return {name: x.numpy() for name, x in params.items()}

    expected = weights(ml.NumpyBackend())
    for mesh in ({}, {"a": 4}):
        for name, found in weights(opened(backend, **mesh)).items():
            np.testing.assert_array_equal(found, expected[name])


def test_dropout_masks_are_those_of_numpy(backend: str) -> None:
    def dropped(on: ml.Backend) -> np.ndarray:
        compiled = ml.compile(ml.Dropout(rate=0.5), on)
        split = P("a") if on.mesh.size > 1 else P()
        x = on.array(np.ones((10, 7), np.float32), sharding=split)
        return compiled.evaluate({}, {"input": x}, seed=3)["output"].numpy()

    expected = dropped(ml.NumpyBackend())
    assert 0 < (expected == 0).sum() < expected.size
    for mesh in ({}, {"a": 4}):
        np.testing.assert_array_equal(dropped(opened(backend, **mesh)), expected)


def test_bfloat16_compute_agrees(backend: str) -> None:
    def loss(on: str) -> tuple[np.ndarray, np.ndarray]:
        device = ml.open_backend(on, Mesh(data=2), compute_dtype="bfloat16")
        compiled = ml.compile(ml.FeedForward(32), device)
        x = np.random.default_rng(0).standard_normal((4, 3, 8)).astype(np.float32)
        inputs = {"input": device.array(x, sharding=P("data"))}
        outputs, slopes = compiled.evaluate(
            compiled.randomize_params(), inputs, {"output": np.ones_like(x)}
        )
        return outputs["output"].numpy(), slopes["up.weight"].numpy()

    rtol, atol = TOLERANCE["bfloat16"]
    for found, expected in zip(loss(backend), loss("numpy"), strict=True):
        assert found.dtype == expected.dtype
        wide = (x.astype(np.float32) for x in (found, expected))
        np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)


def test_a_users_op_runs_by_its_own_kernel_or_its_expansion(backend: str) -> None:
    namespace = {"jax": "jax.numpy"}[backend]

    def soft(x):
        from importlib import import_module

        xp = import_module(namespace)
        return x / (1 + xp.abs(x))

    softsign = ml.define_op(
        "conformance_softsign",
        shapes=lambda x: x,
        rule="i j -> i j",
        kernels={backend: soft, "numpy": lambda x: x / (1 + np.abs(x))},
    )
    x = np.linspace(-3, 3, 12, dtype=np.float32).reshape(4, 3)
    device = opened(backend, a=2, b=2)
    found = softsign(device.array(x, sharding=P("a")))
    np.testing.assert_allclose(found.numpy(), x / (1 + np.abs(x)), rtol=1e-6)
    assert found.sharding == Sharding.of(device.mesh, P("a"), 2)


def test_scalars_booleans_and_small_integers(backend: str) -> None:
    device = opened(backend, a=2, b=2)
    flags = device.array([True, False, True, True], sharding=P("a"))
    assert device.sum(flags).item() == 3
    assert device.mean(flags).item() == pytest.approx(0.75)
    bytes_ = device.array(np.array([250, 10, 3, 7], np.uint8), sharding=P("b"))
    assert (bytes_ + 10).numpy().tolist() == [4, 20, 13, 17]
    assert (device.array(5) // 2).item() == 2
    empty = device.ones(0, 4, sharding=P("a"))
    assert device.sum(empty).item() == 0
    assert (empty @ device.ones(4, 3)).shape == (0, 3)
