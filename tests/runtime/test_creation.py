"""Creation functions: values, dtypes and placements, equal on every mesh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.engine.interop import Adopted, Interop
from mithril.types import DType

from tests.functional.backends import every_backend, opened
from tests.profiles import quick

MADE: dict[str, tuple[Callable[..., ml.Array], np.ndarray | None]] = {
    "array": (lambda b, **o: b.array(np.arange(24.0).reshape(6, 4), **o), np.arange(24.0).reshape(6, 4)),
    "zeros": (lambda b, **o: b.zeros(6, 4, **o), np.zeros((6, 4))),
    "ones": (lambda b, **o: b.ones((6, 4), **o), np.ones((6, 4))),
    "full": (lambda b, **o: b.full((6, 4), 2.5, **o), np.full((6, 4), 2.5)),
    "zeros_like": (lambda b, **o: b.zeros_like(b.ones(6, 4), **o), np.zeros((6, 4))),
    "ones_like": (lambda b, **o: b.ones_like(b.zeros(6, 4), **o), np.ones((6, 4))),
    "full_like": (lambda b, **o: b.full_like(b.zeros(6, 4), 7, **o), np.full((6, 4), 7)),
    "arange": (lambda b, **o: b.arange(0.0, 6.0, **o), np.arange(6.0)),
    "linspace": (lambda b, **o: b.linspace(-1, 1, 6, **o), np.linspace(-1, 1, 6)),
    "eye": (lambda b, **o: b.eye(6, 4, k=-1, **o), np.eye(6, 4, -1)),
    "rand": (lambda b, **o: b.rand(6, 4, seed=1, **o), None),
    "randn": (lambda b, **o: b.randn(6, 4, seed=1, **o), None),
    "randint": (lambda b, **o: b.randint(0, 9, (6, 4), seed=1, **o), None),
}  # fmt: skip
PLACEMENTS: list[tuple[dict[str, Any], int]] = [
    ({}, 6),
    ({"device_mesh": (2, 1)}, 3),
    ({"tensor_split": (None, 0)}, 3),
    ({"sharding": P("data")}, 3),
    ({"sharding": P(("data", "model"))}, 2),
]


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("placement", "rows"), PLACEMENTS, ids=str)
def test_a_new_array_has_its_values_wherever_it_lies(
    name: str, placement: dict[str, Any], rows: int
) -> None:
    make, values = MADE[name]
    x = make(ml.NumpyBackend(device_mesh=(2, 2)), **placement)
    assert x.addressable_shards[0].data.shape[0] == rows
    whole = make(ml.NumpyBackend()).numpy() if values is None else values.astype(np.float32)
    np.testing.assert_array_equal(x.numpy(), whole)
    for shard in x.addressable_shards:
        np.testing.assert_array_equal(shard.data, whole[shard.index])


@quick(lambda dtype: dtype == "bfloat16")
@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int16"])
def test_a_new_array_has_the_dtype_asked_for(name: str, dtype: str) -> None:
    make, values = MADE[name]
    if dtype == "int16" and name == "full":
        with pytest.raises(ml.ShapeError, match=r"number is 2\.5, which is no int16"):
            make(ml.NumpyBackend(), dtype=dtype)
        return
    if dtype == "int16" and name in ("rand", "randn", "linspace"):
        with pytest.raises(ml.ShapeError, match=f"{name} makes floats, not int16"):
            make(ml.NumpyBackend(), dtype=dtype)
        return
    x = make(ml.NumpyBackend(), dtype=dtype)
    assert x.dtype == dtype
    if values is not None and dtype != "int16":
        np.testing.assert_array_equal(x.numpy(), values.astype(DType(dtype).numpy))


@quick(lambda dtype: dtype == "bfloat16")
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", sorted({*MADE} - {"randint", "zeros_like"}))
def test_the_dtype_of_a_backend_is_the_default(name: str, dtype: str) -> None:
    assert MADE[name][0](ml.NumpyBackend(dtype=dtype)).dtype == dtype


def test_other_dtypes_are_kept_under_a_default() -> None:
    backend = ml.NumpyBackend(dtype="float64")
    assert backend.array(np.ones(2, np.float32)).dtype == "float32"
    assert backend.array([1, 2]).dtype == "int32"
    assert backend.array(np.ones(2)).dtype == "float64"
    assert backend.full((2,), 3).dtype == "int32"
    assert backend.full((2,), True).dtype == "bool"


@pytest.mark.parametrize("name", MADE)
def test_two_forms_of_placement_are_refused(name: str) -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    with pytest.raises(ml.OptionError, match="sharding= is given together with device_mesh="):
        MADE[name][0](backend, sharding=P("data"), device_mesh=(2,))


def test_like_follows_dtype_and_sharding_unless_told() -> None:
    backend = ml.NumpyBackend(device_mesh=(2, 2))
    x = backend.ones(6, 4, dtype="float16", sharding=P("data", "model"))
    same = backend.full_like(x, 3)
    assert (same.dtype, same.sharding) == (x.dtype, x.sharding)
    other = backend.zeros_like(x, dtype="int32", sharding=P("model"))
    assert other.dtype == "int32"
    assert other.sharding.spec == P("model")


def test_uneven_parts_make_up_the_whole() -> None:
    backend = ml.NumpyBackend(device_mesh=(4,))
    for x in (backend.eye(6, tensor_split=(0,)), backend.linspace(0, 1, 7, tensor_split=(0,))):
        parts = [shard.data for shard in x.addressable_shards]
        np.testing.assert_array_equal(np.concatenate(parts), x.numpy())
    np.testing.assert_array_equal(backend.eye(6, tensor_split=(0,)).numpy(), np.eye(6))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_uniform_numbers_stay_below_one(dtype: str) -> None:
    x = ml.NumpyBackend().rand(20000, dtype=dtype).numpy().astype(np.float64)
    assert 0 <= x.min() < 0.01
    assert 0.99 < x.max() < 1


def test_linspace_with_and_without_its_end() -> None:
    backend = ml.NumpyBackend()
    np.testing.assert_array_equal(
        backend.linspace(0, 1, 4, endpoint=False).numpy(), [0, 0.25, 0.5, 0.75]
    )
    assert backend.linspace(3, 4, 1).numpy().tolist() == [3]
    assert backend.linspace(3, 4, 0).shape == (0,)


def test_local_shards_make_an_array() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    parts = [[[1.0]], [[2.0]], [[3.0]], [[4.0]]]
    x = backend.from_local_shards(parts, sharding=P("data", "tensor"))
    assert x.numpy().tolist() == [[1, 2], [3, 4]]
    assert x.sharding.spec == P("data", "tensor")
    uneven = backend.from_local_shards(
        [[1.0, 2.0], [1.0, 2.0], [3.0], [3.0]], shape=(3,), sharding=P("data")
    )
    assert uneven.numpy().tolist() == [1, 2, 3]


def test_local_shards_that_do_not_fit_are_refused() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    with pytest.raises(ml.ShapeError, match=r"is given 1 parts; this process has 2 devices"):
        backend.from_local_shards([[1.0]], sharding=P("data"))
    with pytest.raises(
        ml.ShapeError,
        match=r"is given \(1,\) for device 1, which holds \(2,\) of \(4,\); pass shape=",
    ):
        backend.from_local_shards([[1.0, 2.0], [3.0]], sharding=P("data"))


@every_backend
@pytest.mark.parametrize("size", [1, 2])
def test_local_shards_are_copied(name: str, size: int) -> None:
    parts = [np.ones(2, np.float32) for _ in range(size)]
    x = opened(name, x=size).from_local_shards(parts, sharding=P("x"))
    for part in parts:
        part[:] = 7
    assert x.numpy().tolist() == [1.0, 1.0] * size


@pytest.mark.parametrize("second", [[3.7, 4], [2**40, 4]])
def test_local_shards_have_one_dtype(second: list[float]) -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    found = backend.array(second).dtype
    with pytest.raises(
        ml.ShapeError,
        match=f"is given int32 for device 0 and {found} for device 1; pass dtype= for all of them",
    ):
        backend.from_local_shards([[1, 2], second], sharding=P("data"))
    whole = backend.from_local_shards([[1, 2], second], dtype=found, sharding=P("data"))
    np.testing.assert_array_equal(whole.numpy(), np.asarray([1, 2, *second], found))


def test_local_shards_beyond_the_dtype_asked_for_are_refused() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    with pytest.raises(ml.ShapeError, match="values reach from 3 to 300, int8 from -128 to 127"):
        backend.from_local_shards([[1, 2], [3, 300]], dtype="int8", sharding=P("data"))


class OfAFramework:
    """An array that a framework holds on its devices."""


class Foreign(Interop):
    """Takes in such an array, without its values being on the host."""

    def __init__(self, x: ml.Array) -> None:
        self._x = x

    def adopt(self, x: object) -> Adopted | None:
        x_, is_foreign = self._x, isinstance(x, OfAFramework)
        return Adopted(x_.type, x_.sharding, x_.shards) if is_foreign else None


def test_uneven_parts_are_refused_wherever_a_placement_is_given() -> None:
    backend = ml.NumpyBackend(ml.Mesh(x=2), uneven="error")
    x = backend.ones(3)
    backend.interop = Foreign(x)
    for place in (
        lambda: backend.ones(3, sharding=P("x")),
        lambda: backend.reshard(x, P("x")),
        lambda: ml.reshard(x, P("x")),
        lambda: backend.array(OfAFramework(), sharding=P("x")),
        lambda: backend.from_local_shards([[1, 2], [3]], shape=(3,), sharding=P("x")),
    ):
        with pytest.raises(
            ml.ShardingError, match=r"cannot split dimension 0 \(3\) of tensor over"
        ):
            place()
    assert backend.array(OfAFramework()).shape == (3,)
    assert backend.reshard(backend.ones(4), P("x")).sharding.spec == P("x")


def test_parts_that_are_to_be_the_same_may_not_differ() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    assert backend.from_local_shards([[1], [1]]).numpy().tolist() == [1]
    with pytest.raises(ml.ShapeError) as caught:
        backend.from_local_shards([[1], [2]])
    assert str(caught.value) == (
        "from_local_shards is given other values for device 1 than for one that holds the same part; "
        "give both the same, or a sharding that splits it"
    )
