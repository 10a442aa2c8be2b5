"""What an engine has by deriving from `Engine`: everything but what the class leaves abstract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

import mithril as ml
import numpy as np
import pytest
from mithril.cost.liveness import arrange
from mithril.engine import Engine
from mithril.engine.interop import Interop
from mithril.engine.kernels import Kernel
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.moving import move
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.engine.protocol import Produce
from mithril.engine.shards import host_shards
from mithril.errors import BackendError
from mithril.mesh import Mesh, Sharding
from mithril.ops.collective import collectives
from mithril.plan import Program
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType


class Least(Engine):
    """An engine that gives what every engine must, and nothing else."""

    name = "least"

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.donated: list[Collection[int]] = []

    @property
    def platform(self) -> str:
        return "abacus"

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(f"rod {i}" for i in range(self.mesh.size))

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        return NUMPY_KERNELS

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[np.ndarray]:
        return host_shards(type, sharding, produce)

    def shard(self, shards: list[np.ndarray], sharding: Sharding, device: int) -> np.ndarray:
        return np.asarray(shards[device])

    def lower(self, program: Program, donate: Collection[int] = ()) -> LockstepExecutable:
        self.donated.append(donate)
        return LockstepExecutable(program, NUMPY_KERNELS, np)


def test_this_is_what_every_engine_must_give() -> None:
    assert Engine.__abstractmethods__ == {
        "platform", "devices", "put", "shard", "lower",
    }  # fmt: skip
    with pytest.raises(
        BackendError, match=r"^engine of backend 'least' has no table of kernels; giv"
    ):
        Engine.own_kernels.fget(Least(Mesh()))  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="abstract"):
        Engine()  # type: ignore[abstract]


def test_every_member_says_what_it_is() -> None:
    public = {name: x for name, x in vars(Engine).items() if not name.startswith("_")}
    assert [name for name, member in public.items() if not inspect.getdoc(member)] == []
    assert {"name", "mesh"} == set(Engine.__annotations__)


def test_it_trains_a_model() -> None:
    mesh = ml.Mesh(data=2)
    compiled = ml.compile(ml.Linear(3), ml.Backend(Least(mesh)), shapes={"input": (4, 5)})
    x = np.ones((4, 5), np.float32)
    given = {"output": np.ones((4, 3), np.float32)}
    _, gradients = compiled.evaluate(compiled.randomize_params(), {"input": x}, given)
    np.testing.assert_array_equal(gradients["weight"].numpy(), np.full((3, 5), 4.0))


def test_it_has_everything_else() -> None:
    engine = Least(Mesh(a=2, b=2))
    assert engine.local_devices == (0, 1, 2, 3)
    assert engine.capabilities == set(collectives())
    assert engine.dtypes == set(DType)
    assert engine.dtype_remedy(DType.float64) == "use dtype='float32'"
    assert engine.dtype_remedy(DType.int64) == "use dtype='int32'"
    assert engine.transport is None
    assert engine.facts == {}
    assert engine.on(engine.mesh) is engine
    interop = engine.interop
    assert type(interop) is Interop
    assert (interop.array_methods, interop.model_methods) == ({}, {})
    assert interop.adopt(1) is interop.host(1) is None


def test_what_is_given_up_reaches_lower() -> None:
    engine = Least(ml.Mesh(data=2))
    compiled = ml.compile(ml.Relu(), ml.Backend(engine), shapes={"input": (2,)})
    engine.lower_plan(compiled.plan, (0,))
    assert engine.donated[-1] == (0,)


REFUSALS = {
    "a part of the mesh": (
        lambda engine: engine.part(Mesh(a=2).part({"a": 1})),
        ml.BackendError,
        "backend 'least' runs one program on all of its devices, and this model has layers or "
        "stages on some of them; remove device_id and stages, or use another backend",
    ),
    "a move": (
        lambda engine: engine.move([], None),
        ml.BackendError,
        "backend 'least' moves nothing between parts of its mesh; reshard arrays over all of it, "
        "or use another backend",
    ),
    "ranges": (
        lambda engine: engine.with_ranges(),
        ml.OptionError,
        "partition_hooks=True is not available on backend 'least'; its programs have "
        "no ranges for a profiler; leave it out",
    ),
    "an arena": (
        lambda engine: engine.in_arena(arrange),
        ml.OptionError,
        "memory_planning='greedy' is not available on backend 'least'; its programs take memory as "
        "they run; leave it out",
    ),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_it_cannot_do_it_says(what: str) -> None:
    do, kind, text = REFUSALS[what]
    with pytest.raises(kind) as caught:
        do(Least(Mesh(a=2)))
    assert str(caught.value) == text


def placed(engine: Engine) -> np.ndarray:
    """Return what a layer on device 1 makes of ones."""
    model = ml.Model()
    model += ml.Relu(device_id=1)
    model += ml.Relu(device_id=0)
    compiled = ml.compile(model, ml.Backend(engine), shapes={"input": (2,)})
    (found,) = compiled.evaluate({}, {"input": np.array([-1, 2], np.float32)}).values()
    return found.numpy()


def test_stages_need_parts_and_moves_and_nothing_else() -> None:
    class WithParts(Least):
        """An engine that has parts as well."""

        def part(self, mesh: Mesh) -> Self:
            return type(self)(mesh)

        def lower_transfer(self, transfer: Transfer) -> Callable[[Any], Any]:
            return lambda shards: move(shards, transfer, np)

    mesh = ml.Mesh(data=2)
    assert placed(WithParts(mesh)).tolist() == [0, 2]
    with pytest.raises(ml.BackendError, match="'least' runs one program on all of its devices"):
        placed(Least(mesh))


def test_no_remedy_is_the_dtype_that_was_refused() -> None:
    class Few(Least):
        def __init__(self, *held: DType) -> None:
            super().__init__(Mesh())
            self.held = held

        @property
        def dtypes(self) -> frozenset[DType]:
            return frozenset(self.held)

    assert Few(DType.int32).dtype_remedy(DType.float32) == "use dtype='int32'"
    assert Few().dtype_remedy(DType.float32) == "use another backend"
    for dtype in DType:
        assert f"'{dtype}'" not in Few(*(set(DType) - {dtype})).dtype_remedy(dtype)
