"""Arrays on every installed backend: moved, made, of every dtype, empty, and under users' ops."""

from __future__ import annotations

import importlib
from types import ModuleType

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from mithril import P, ops
from mithril.mesh import Mesh, Sharding

from tests.conformance.engines import BACKENDS, name_of, opened, opened_here
from tests.ops.custom_ops import norm_expansion, norm_kernel
from tests.profiles import quick, scaled
from tests.runtime.test_creation import MADE
from tests.sharding.test_reshard import SPECS, Journey, go_there_and_back, journeys
from tests.tolerances import TOLERANCE

pytestmark = pytest.mark.parametrize("backend", BACKENDS)
RTOL, ATOL = TOLERANCE["float32"]


@settings(max_examples=scaled(40))
@given(journey=journeys(Mesh(data=4, tensor=2), Mesh(a=2, b=2, c=2), Mesh(a=2, b=3)))
def test_reshard_there_and_back(backend: str, journey: Journey) -> None:
    go_there_and_back(opened(backend, **journey[0].sizes), journey)


@quick(lambda backend, start: backend != "jax" or start in SPECS[1::4])
@pytest.mark.parametrize("start", SPECS, ids=str)
def test_reshard_to_every_spec(backend: str, start: P) -> None:
    device, host = opened(backend, data=4, tensor=2), np.arange(128).reshape(16, 8)
    x = device.array(host.astype(np.float32), sharding=start)
    for goal in SPECS:
        there = device.reshard(x, goal)
        np.testing.assert_array_equal(there.numpy(), host, f"{start} to {goal}")
        assert there.sharding == Sharding.of(device.mesh, goal, 2)


@pytest.mark.parametrize("name", MADE)
def test_a_new_array_has_its_values_on_an_uneven_mesh(backend: str, name: str) -> None:
    make, values = MADE[name]
    x = make(opened(backend, a=4), sharding=P("a"))
    whole = make(ml.NumpyBackend()).numpy() if values is None else values.astype(np.float32)
    np.testing.assert_allclose(x.numpy(), whole, RTOL, ATOL)
    assert [shard.data.shape[0] for shard in x.addressable_shards] == [2, 2, 2, 0]


@pytest.mark.parametrize("name", ["rand", "randint", "bernoulli"])
def test_random_numbers_are_those_of_numpy_bit_for_bit(backend: str, name: str) -> None:
    def drawn(on: ml.Backend) -> np.ndarray:
        if name == "bernoulli":
            model = ml.Dropout(rate=0.5)
            ones = on.ones(10, 7, sharding=P(*on.mesh.names))
            return ml.compile(model, on).evaluate({}, {"input": ones}, seed=3)["output"].numpy()
        make, _ = MADE[name]
        return make(on, sharding=P(*on.mesh.names)).numpy()

    expected = drawn(ml.NumpyBackend())
    assert len(np.unique(expected)) > 1
    for mesh in ({}, {"a": 4}, {"a": 2, "b": 3}):
        np.testing.assert_array_equal(drawn(opened(backend, **mesh)), expected)


# ------------------------------------------------------------------ dtypes, scalars, nothing


@quick(lambda backend, dtype: backend != "jax" or dtype in {"int8", "uint32"})
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_integers_wrap_around_as_numpys_do(backend: str, dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.min, limits.max, 3, 100, limits.max - 1], dtype)
    y = np.array([1, 1, 2, 7, 3], dtype)
    device = opened(backend, a=2, b=2)
    left, right = device.array(x, sharding=P("a")), device.array(y, sharding=P("b"))
    for name in ("add", "subtract", "multiply", "floor_divide", "remainder", "bitwise_xor"):
        found = getattr(device, name)(left, right)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found.numpy(), getattr(np, name)(x, y), name)
    np.testing.assert_array_equal((left > right).numpy(), x > y)
    assert device.max(left).item() == x.max()


def test_booleans_count_and_select(backend: str) -> None:
    device = opened(backend, a=2, b=2)
    flags = device.array([True, False, True, True, False], sharding=P(("a", "b")))
    assert device.sum(flags).item() == 3
    assert device.mean(flags).item() == pytest.approx(0.6)
    assert device.any(flags).item()
    assert not device.all(flags).item()
    chosen = device.where(flags, device.arange(5), -1)
    assert chosen.numpy().tolist() == [0, -1, 2, 3, -1]


def test_scalars(backend: str) -> None:
    device = opened(backend, a=2, b=2)
    x = device.array(2.5)
    assert (x.shape, (x * 2).item(), f"{x:.2f}") == ((), 5.0, "2.50")
    assert device.exp(x).numpy() == pytest.approx(np.exp(2.5))
    assert device.broadcast_to(x, (3,)).numpy().tolist() == [2.5] * 3
    assert (device.array(5) // 2).item() == 2


def test_arrays_without_elements(backend: str) -> None:
    device = opened(backend, a=2, b=2)
    empty = device.ones(0, 4, sharding=P("a", "b"))
    assert device.sum(empty).item() == 0
    assert device.sum(empty, axis=0).numpy().tolist() == [0] * 4
    assert (empty @ device.ones(4, 3)).shape == (0, 3)
    assert device.softmax(empty).shape == (0, 4)
    assert device.concat([empty, device.ones(2, 4)], axis=0).numpy().sum() == 8
    assert device.reshard(empty, P()).shape == (0, 4)
    assert device.take(device.ones(6, 4), device.zeros(0, dtype="int32")).shape == (0, 4)


@pytest.mark.parametrize("spec", [P(), P("a"), P(None, "a"), P("a", "b"), P(("a", "b"))], ids=str)
def test_an_id_that_names_no_row_is_nan_wherever_the_table_lies(backend: str, spec: P) -> None:
    """A compiled program cannot refuse it; with a table in parts it must not be taken for zero."""
    device, host = opened(backend, a=2, b=2), np.arange(28, dtype=np.float32).reshape(7, 4)
    ids = device.array([6, 7, 0, -1, 3], sharding=P("b"))
    found = device.take(device.array(host, sharding=spec), ids).numpy()
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_array_equal(found[[0, 2, 4]], host[[6, 0, 3]])


def test_nan_and_infinity_pass_through_collectives(backend: str) -> None:
    device = opened(backend, a=3)
    host = np.array([[1, np.nan, 3, -np.inf], [np.inf, 2, 0, 1]], np.float32)
    for spec in (P("a"), P(None, "a")):
        x = device.array(host, sharding=spec)
        for name in ("sum", "max", "min"):
            for axis in (0, 1):
                expected = getattr(np, name)(host, axis)
                np.testing.assert_array_equal(getattr(device, name)(x, axis=axis).numpy(), expected)
        np.testing.assert_array_equal(device.reshard(x, P()).numpy(), host)


# ------------------------------------------------------------------ ops of users


def framework(backend: str) -> ModuleType:
    """Return the functions a kernel for a backend is written with."""
    names = {"jax": "jax.numpy", "torch": "torch", "mlx": "mlx.core"}
    return importlib.import_module(names[name_of(backend)])


def test_a_users_op_runs_by_its_own_kernel(backend: str) -> None:
    called: list[tuple[int, ...]] = []

    def kernel(x, slope):
        called.append(x.shape)
        return x / (1 + slope * framework(backend).abs(x))

    softsign = ml.define_op(
        "conformance.softsign",
        shapes=lambda x: x,
        rule="elementwise",
        attributes={"slope": 1.0},
        kernels={name_of(backend): kernel},
        gradient=lambda inputs, outputs, cotangents, slope: [
            cotangents[0] / ((ops.abs(inputs[0]) * slope + 1.0) ** 2.0)
        ],
    )

    @ml.layer
    def Softsign(input):  # noqa: N802
        return softsign(input, slope=2.0)

    x = np.linspace(-3, 3, 15, dtype=np.float32).reshape(5, 3)
    device = opened_here(backend, a=2, b=2)
    compiled = ml.compile(Softsign(), device, differentiable=["input"])
    inputs = {"input": device.array(x, sharding=P("a"))}
    outputs, slopes = compiled.evaluate({}, inputs, {"output": np.ones_like(x)})
    np.testing.assert_allclose(outputs["output"].numpy(), x / (1 + 2 * abs(x)), RTOL, ATOL)
    np.testing.assert_allclose(slopes["input"].numpy(), 1 / (1 + 2 * abs(x)) ** 2, RTOL, ATOL)
    assert set(called) == {(3, 3)}, "the kernel sees the part of a device"
    assert outputs["output"].sharding == Sharding.of(device.mesh, P("a"), 2)


@pytest.mark.parametrize("spec", [P(), P("a"), P(None, "a"), P("a", "b")], ids=str)
def test_a_users_op_without_a_kernel_runs_by_its_expansion(backend: str, spec: P) -> None:
    norm = ml.define_op(
        "conformance.norm",
        shapes=lambda x, gain: x,
        rule="... n, n -> ... n",
        expandable=["n"],
        attributes={"epsilon": 1e-6},
        kernels={"numpy": norm_kernel},
        expand=norm_expansion,
    )
    rng = np.random.default_rng(0)
    x, gain = rng.standard_normal((5, 6)).astype(np.float32), np.arange(6, dtype=np.float32)
    device = opened(backend, a=2, b=2)
    found = norm(device.array(x, sharding=spec), device.array(gain))
    np.testing.assert_allclose(found.numpy(), norm_kernel(x, gain, 1e-6), RTOL, ATOL)


def test_a_users_op_with_several_results_is_reduced(backend: str) -> None:
    moments = ml.define_op(
        "conformance.moments",
        shapes=lambda x: [x.with_shape(x.shape[:-1])] * 2,
        rule="... n -> ..., ...",
        kernels={name_of(backend): lambda x: (x.sum(-1), (x * x).sum(-1))},
    )
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    device = opened_here(backend, a=2, b=2)
    first, second = moments(device.array(x, sharding=P("a", "b")))
    np.testing.assert_array_equal(first.numpy(), x.sum(-1))
    np.testing.assert_array_equal(second.numpy(), (x * x).sum(-1))
