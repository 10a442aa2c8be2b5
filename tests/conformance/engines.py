"""Runs graphs on the engines of the installed backends, to compare them with the numpy kernels."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.engine import Engine
from mithril.ir import Graph, Op
from mithril.mesh import Mesh, Sharding
from mithril.plan import Plan, Port, Program
from mithril.types import DType, TensorType

LOCKSTEP = "torch in lockstep"
LARGEST_POOL = 4  # each worker is a process; larger meshes run in lockstep
PACKAGES = {
    "jax": "mithril_jax", "torch": "mithril_torch", LOCKSTEP: "mithril_torch", "mlx": "mithril_mlx",
}  # fmt: skip


def _backend(name: str, *marks: pytest.MarkDecorator) -> Any:
    package = PACKAGES[name]
    is_missing = importlib.util.find_spec(package) is None
    missing = pytest.mark.skipif(is_missing, reason=f"{package} is not installed")
    return pytest.param(name, marks=[missing, *marks])


BACKENDS = [_backend(name) for name in PACKAGES]
"""Every backend but numpy, which is what they are compared with."""
ON_ONE_DEVICE = [
    _backend(name, *([pytest.mark.slow] if name == LOCKSTEP else [])) for name in PACKAGES
]
"""The same where no devices meet: in lockstep torch runs the very text that it runs anyway."""
IN_ONE_PROCESS = [_backend(name) for name in PACKAGES if name != "torch"]
"""The same on meshes larger than a pool of workers may be."""


@cache
def opened(backend: str, **axes: int) -> ml.Backend:
    """Return a backend on a mesh, opened once."""
    mesh = Mesh(axes)
    if backend == "torch" and mesh.size > LARGEST_POOL:
        backend = LOCKSTEP
    return ml.open_backend(name_of(backend), mesh, **options_of(backend))


def opened_here(backend: str, **axes: int) -> ml.Backend:
    """Return a backend all of whose devices belong to this process, as kernels of users need."""
    return opened(LOCKSTEP if backend == "torch" else backend, **axes)


def name_of(backend: str) -> str:
    """Return the name by which a backend is opened."""
    return "torch" if backend == LOCKSTEP else backend


def options_of(backend: str) -> dict[str, str]:
    """Return the options that a backend is opened with."""
    return {"executor": "lockstep"} if backend == LOCKSTEP else {}


def narrowed(array: np.ndarray, engine: Engine) -> np.ndarray:
    """Return an array in the dtype that the engine has instead of one it lacks."""
    name = array.dtype.name
    if DType(name) in engine.dtypes:
        return array
    return array.astype(name.replace("64", "32"))


def exact(backend: str) -> AbstractContextManager[object]:
    """Return a context in which a backend has float64, and is held to its tolerance."""
    if backend != "jax":
        return nullcontext()
    import jax

    context: AbstractContextManager[object] = jax.enable_x64(True)
    return context


def held(op: Op, engine: Engine) -> Op:
    """Return an op that makes a dtype the engine has."""
    dtype = getattr(op, "dtype", None)
    if dtype is None or DType(dtype) in engine.dtypes:
        return op
    return replace(op, dtype=DType(dtype.replace("64", "32")))  # type: ignore[call-arg]


def run(engine: Engine, graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a graph on one device of an engine."""
    mesh = engine.mesh
    ports = [_port(mesh, value.name, value.type) for value in graph.inputs]
    leaving = [_port(mesh, name, value.type) for name, value in graph.outputs.items()]
    program = Program(mesh, graph, tuple(ports), tuple(leaving))
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box].copy())
        for port in ports
    ]
    results = engine.lower(program)(handles)
    return {
        port.name: engine.shard(handle, port.sharding, 0)
        for port, handle in zip(leaving, results, strict=True)
    }


def run_plan(engine: Engine, plan: Plan, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a plan of one stage, inputs by name, and return the whole outputs."""
    (stage,) = plan.stages
    program = stage.program
    handles = [
        engine.put(port.type, port.sharding, lambda box, name=port.name: values[name][box].copy())
        for port in program.inputs
    ]
    results = engine.lower(program)(handles)
    return {
        port.name: _whole(engine, port, handle)
        for port, handle in zip(program.outputs, results, strict=True)
    }


def _whole(engine: Engine, port: Port, handle: object) -> np.ndarray:
    whole = np.empty(port.type.shape, port.type.dtype.numpy)
    for device in range(engine.mesh.size):
        box = port.sharding.box(device, port.type.shape)
        held = engine.shard(handle, port.sharding, device)
        whole[box] = held[tuple(slice(cut.stop - cut.start) for cut in box)]
    return whole


def _port(mesh: Mesh, name: str, type: TensorType) -> Port:
    return Port(name, type, Sharding.replicated(mesh, type.rank))
