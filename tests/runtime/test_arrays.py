"""Arrays: how they lie on a mesh, and eager computation with them."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril import P

from tests.tolerances import TOLERANCE


def shapes_of(x: ml.Array) -> list[tuple[int, ...]]:
    return [shard.data.shape for shard in x.addressable_shards]


@pytest.fixture
def grid() -> ml.Backend:
    return ml.NumpyBackend(device_mesh=(2, 4))


PLACEMENTS = [
    ({}, (8, 12)),
    ({"device_mesh": (2,)}, (4, 12)),
    ({"device_mesh": 2}, (4, 12)),
    ({"device_mesh": (2, 4)}, (4, 3)),
    ({"device_mesh": (1, 4)}, (8, 3)),
    ({"device_mesh": (2, 1), "tensor_split": (1, None)}, (8, 6)),
    ({"device_mesh": (1, 4), "tensor_split": (None, 0)}, (2, 12)),
    ({"tensor_split": (0,)}, (4, 12)),
    ({"tensor_split": (0, 0)}, (1, 12)),
    ({"tensor_split": (-1,)}, (8, 6)),
    ({"sharding": P("model", "data")}, (2, 6)),
    ({"sharding": P(("model", "data"))}, (1, 12)),
]


@pytest.mark.parametrize(("placement", "local"), PLACEMENTS, ids=str)
def test_placement(grid: ml.Backend, placement: dict[str, object], local: tuple[int, ...]) -> None:
    values = np.arange(96, dtype=np.float32).reshape(8, 12)
    x = grid.array(values, **placement)
    assert set(shapes_of(x)) == {local}
    assert len(x.addressable_shards) == 8
    np.testing.assert_array_equal(x.numpy(), values)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, values[shard.index])


def test_order_of_axes_is_major_first(grid: ml.Backend) -> None:
    x = grid.array(np.arange(8), sharding=P(("model", "data")))
    assert [int(shard.data[0]) for shard in x.addressable_shards] == [0, 2, 4, 6, 1, 3, 5, 7]


def test_default_split_is_clipped_to_the_rank(grid: ml.Backend) -> None:
    assert set(shapes_of(grid.ones(8, device_mesh=(2, 4)))) == {(4,)}


def test_dtypes() -> None:
    backend = ml.NumpyBackend()
    assert backend.array([1.5]).dtype == "float32"
    assert backend.array([1]).dtype == "int32"
    assert backend.array([2**40]).dtype == "int64"
    assert backend.array(np.ones(1, np.float16)).dtype == "float16"
    assert backend.array([1.5], dtype="float64").dtype == "float64"
    assert backend.array([True]).dtype == "bool"
    assert backend.arange(3).dtype == "int32"
    assert backend.mean(backend.array([True, False])).item() == 0.5
    assert backend.argmax(backend.array([1, 3, 2])).dtype == "int32"


def test_scalars_format_and_convert() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    x = backend.mean(backend.arange(4, tensor_split=(0,)))
    assert f"{x:.2f}" == "1.50"
    assert float(x) == 1.5
    assert isinstance(backend.to_numpy(x), np.floating)
    assert "float32[]" in repr(x)


def test_operators_and_indexing(grid: ml.Backend) -> None:
    a = np.arange(96, dtype=np.float32).reshape(8, 12)
    x = grid.array(a, device_mesh=(2, 4))
    np.testing.assert_array_equal((2 * x - 1).numpy(), 2 * a - 1)
    np.testing.assert_array_equal((-x + x / 2).numpy(), -a + a / 2)
    np.testing.assert_array_equal((x > 40).numpy(), a > 40)
    np.testing.assert_array_equal((x == 7).numpy(), a == 7)
    np.testing.assert_array_equal(x[1:5, ::3].numpy(), a[1:5, ::3])
    np.testing.assert_array_equal(x[-1].numpy(), a[-1])
    np.testing.assert_array_equal((x.T @ x).numpy(), a.T @ a)
    np.testing.assert_array_equal(x.reshape(4, 24).sum(1).numpy(), a.reshape(4, 24).sum(1))


def test_elementwise_results_stay_sharded(grid: ml.Backend) -> None:
    x = grid.ones(8, 12, device_mesh=(2, 4))
    y = grid.ones(12, sharding=P("model"))
    assert (x + y).sharding.spec == P("data", "model")
    assert (x - 0.1 * x).sharding.spec == P("data", "model")


def test_reductions_over_a_split_dimension_are_complete(grid: ml.Backend) -> None:
    x = grid.array(np.arange(96.0).reshape(8, 12), device_mesh=(2, 4))
    assert x.sum().item() == 95 * 96 / 2
    assert grid.max(x).item() == 95
    assert grid.min(x).item() == 0
    assert not x.sum().sharding.partial


def test_random_arrays_do_not_depend_on_the_mesh() -> None:
    def draw(shape: tuple[int, ...]) -> list[np.ndarray]:
        backend = ml.NumpyBackend(device_mesh=shape or None)
        split = {"tensor_split": (0,)} if shape else {}
        return [
            backend.randn(16, 6, **split).numpy(),
            backend.randn(16, 6, **split).numpy(),
            backend.rand((16, 6), **split).numpy(),
            backend.randint(0, 10, (16,), **split).numpy(),
            backend.randn(16, 6, seed=3).numpy(),
        ]

    expected = draw(())
    assert not np.array_equal(expected[0], expected[1]), "every call draws anew"
    for other in (draw((4,)), draw((2, 2))):
        for a, b in zip(expected, other, strict=True):
            np.testing.assert_array_equal(a, b)


SPECS = [P(), P("data"), P("model"), P(None, "data"), P("data", "model"), P(("data", "model"))]


@given(
    st.sampled_from(SPECS),
    st.sampled_from(SPECS),
    st.sampled_from(["add", "multiply", "matmul", "maximum", "divide"]),
)
def test_eager_functions_agree_with_numpy_for_any_sharding(left: P, right: P, name: str) -> None:
    backend = ml.NumpyBackend(device_mesh=(2, 2))
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 2, (2, 8, 8)).astype(np.float32)
    found = getattr(backend, name)(
        backend.array(a, sharding=left), backend.array(b, sharding=right)
    )
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found.numpy(), getattr(np, name)(a, b), rtol=rtol, atol=atol)


def test_arrays_share_no_memory_with_the_user() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    values = np.arange(4, dtype=np.float32)
    x = backend.array(values, tensor_split=(0,))
    values[:] = 7
    np.testing.assert_array_equal(x.numpy(), np.arange(4))
    with pytest.raises(ValueError, match="read-only"):
        x.addressable_shards[0].data[0] = 1
    x.numpy()[:] = 9
    np.testing.assert_array_equal(x.numpy(), np.arange(4))
