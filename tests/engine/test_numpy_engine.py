"""The reference engine: placing arrays, reading shards, and what it says it can do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from mithril import ops
from mithril.engine import Engine
from mithril.engine.kernels import KERNELS, kernels_for
from mithril.engine.numpy_engine import NumpyEngine
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import collectives
from mithril.types import DType, TensorType

from tests.engine.programs import f32, graph_of, program_of
from tests.mesh.strategies import shardings
from tests.tolerances import TOLERANCE

CLOSE = dict(zip(("rtol", "atol"), TOLERANCE["float32"], strict=True))

Drawn = tuple[Sharding, tuple[int, ...]]
Box = tuple[slice, ...]


@given(shardings())
def test_put_asks_once_for_each_distinct_box(drawn: Drawn) -> None:
    sharding, shape = drawn
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    asked: list[str] = []

    def produce(box: Box) -> np.ndarray:
        asked.append(str(box))
        return host[box]

    shards = NumpyEngine(sharding.mesh).put(f32(*shape), sharding, produce)
    boxes = [sharding.box(device, shape) for device in range(sharding.mesh.size)]
    assert len(asked) == len(set(asked))
    assert set(asked) == set(map(str, boxes))
    for shard, box in zip(shards, boxes, strict=True):
        np.testing.assert_array_equal(shard, host[box], strict=True)


def test_devices_with_equal_boxes_share_one_array() -> None:
    mesh = Mesh(data=2, tensor=2)
    engine = NumpyEngine(mesh)
    shards = engine.put(f32(4), Sharding.of(mesh, P("data"), 1), lambda box: np.ones(2, np.float32))
    assert shards[0] is shards[1]
    assert shards[2] is shards[3]
    assert shards[0] is not shards[2]


def test_put_converts_to_the_dtype_of_the_type() -> None:
    engine = NumpyEngine(Mesh())
    type = TensorType((2,), DType.bfloat16)
    (shard,) = engine.put(type, Sharding.replicated(Mesh(), 1), lambda box: np.ones(2))
    assert shard.dtype == type.dtype.numpy


@pytest.mark.parametrize("shape", [(2, 2), ()], ids=str)
def test_a_shard_is_read_only_and_shares_memory(shape: tuple[int, ...]) -> None:
    engine = NumpyEngine(Mesh())
    sharding = Sharding.replicated(Mesh(), len(shape))
    shards = engine.put(f32(*shape), sharding, lambda box: np.zeros(shape))
    shard = engine.shard(shards, sharding, 0)
    with pytest.raises(ValueError, match="read-only"):
        shard[...] = 1
    assert shards[0].flags.writeable
    assert np.shares_memory(shard, shards[0])


def test_a_scalar_result_is_read_as_an_array() -> None:
    engine = NumpyEngine(Mesh())
    program = program_of(Mesh(), graph_of(ops.sum, x=f32(3)))
    (shards,) = engine.lower(program)([[np.ones(3, np.float32)]])
    shard = engine.shard(shards, Sharding.replicated(Mesh(), 0), 0)
    assert isinstance(shard, np.ndarray)
    np.testing.assert_array_equal(shard, np.float32(3))
    assert not shard.flags.writeable


def test_running_a_program_leaves_its_inputs_as_they_are() -> None:
    mesh = Mesh(data=2)
    engine = NumpyEngine(mesh)
    given_sharding = Sharding.of(mesh, P("data"), 1)
    program = program_of(mesh, graph_of(lambda x: ops.exp(x) + x, x=f32(2)), {"x": given_sharding})
    shards = engine.put(program.inputs[0].type, given_sharding, lambda box: np.ones(2))
    for shard in shards:
        shard.flags.writeable = False
    (found,) = engine.lower(program)([shards])
    np.testing.assert_allclose(found, np.full((2, 2), np.e + 1), **CLOSE)
    np.testing.assert_array_equal(shards, np.ones((2, 2)))


def test_the_engine_says_what_it_is() -> None:
    mesh = Mesh(data=2)
    engine: Engine = NumpyEngine(mesh)
    assert (engine.name, engine.platform, engine.mesh) == ("numpy", "simulated", mesh)
    assert engine.devices == ("simulated cpu 0", "simulated cpu 1")
    assert engine.capabilities == set(collectives())
    assert engine.kernels == set(kernels_for("numpy", KERNELS))
    assert engine.kernels >= set(KERNELS)
    assert engine.dtypes == set(DType)
