"""Runs graphs and plans on an engine, past the compiler: inputs and outputs are arrays by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from mithril.engine import Engine
from mithril.engine.checks import check_executable
from mithril.errors import listing
from mithril.ir import Graph
from mithril.mesh import Mesh, Sharding
from mithril.plan import Plan, Port, Program
from mithril.runtime.checked_run import check_outputs
from mithril.testing.check import Missing
from mithril.transform.expand import list_without_kernel
from mithril.types import TensorType

Arrays = Mapping[str, np.ndarray]


def run_graph(
    engine: Engine, graph: Graph, values: Arrays, then: Arrays | None = None
) -> dict[str, np.ndarray]:
    """Run a graph on every device of an engine alike, and return what the first one makes.

    Args:
        engine: what runs it.
        graph: a local graph.
        values: of its inputs.
        then: other values, with which it runs once more before results are read: they must stay.
    """
    mesh = engine.mesh
    entering = tuple(_replicate(mesh, value.name, value.type) for value in graph.inputs)
    leaving = tuple(_replicate(mesh, name, value.type) for name, value in graph.outputs.items())
    made = run_program(engine, Program(mesh, graph, entering, leaving), values, then)
    first = engine.local_devices[0]
    return {port.name: engine.shard(made[port.name], port.sharding, first) for port in leaving}


def run_program(
    engine: Engine, program: Program, values: Arrays, then: Arrays | None = None
) -> dict[str, object]:
    """Run a program, and return the engine's handle of each output.

    Args:
        engine: what runs it.
        program: of the engine's mesh.
        values: whole arrays, of which each device is given its box.
        then: other values, with which it runs once more.
    """
    run = check_executable(engine.name, "lower", engine.lower(program))
    made = run([_put(engine, port, values[port.name]) for port in program.inputs])
    check_outputs(engine, program, made)
    if then is not None:
        run([_put(engine, port, then[port.name]) for port in program.inputs])
    return {port.name: handle for port, handle in zip(program.outputs, made, strict=True)}


def require_kernels(engine: Engine, program: Program) -> None:
    """Raise unless an engine has the kernels that a program computes with.

    Args:
        engine: whose kernels.
        program: a local one of primitive ops, written for a check and not by the compiler.

    Raises:
        Missing: it lacks some; all of them are named.
    """
    lacking = list_without_kernel(program.graph, engine.kernels)
    if lacking:
        raise Missing(
            f"not tried: its programs compute with {listing(lacking)}, and backend "
            f"'{engine.name}' has no kernel for that; add one"
        )


def run_plan(engine: Engine, plan: Plan, values: Arrays) -> dict[str, np.ndarray]:
    """Run a plan of one stage, and return the whole outputs."""
    (stage,) = plan.stages
    made = run_program(engine, stage.program, values)
    return {port.name: gather(engine, port, made[port.name]) for port in stage.program.outputs}


def gather(engine: Engine, port: Port, handle: object) -> np.ndarray:
    """Return the whole array that the devices of this process hold parts of."""
    whole = np.empty(port.type.shape, port.type.dtype.numpy)
    for device in engine.local_devices:
        box = port.sharding.box(device, port.type.shape)
        held = engine.shard(handle, port.sharding, device)
        whole[box] = held[tuple(slice(cut.stop - cut.start) for cut in box)]
    return whole


def _put(engine: Engine, port: Port, value: np.ndarray) -> object:
    return engine.put(port.type, port.sharding, lambda box: value[box].copy())


def _replicate(mesh: Mesh, name: str, type: TensorType) -> Port:
    return Port(name, type, Sharding.replicated(mesh, type.rank))
