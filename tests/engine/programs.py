"""Programs written by hand, and running them on simulated devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from mithril.engine.kernels import Kernel
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.ir import Builder, Graph, Op, Tensor
from mithril.ir.verify import verify
from mithril.mesh import Mesh, P, Sharding
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

Row = tuple[str, tuple[str, ...], int]


def everywhere(mesh: Mesh, rank: int) -> Sharding:
    """Return a sharding of a value that may differ on all devices: partial over all axes."""
    return Sharding(mesh, ((),) * rank, tuple((axis, "sum") for axis in mesh.names))


def program_of(mesh: Mesh, graph: Graph, inputs: Mapping[str, Sharding] | None = None) -> Program:
    """Return a program of a local graph; inputs without a sharding are replicated."""
    given = inputs or {}
    ports = []
    for value in graph.inputs:
        sharding = given.get(value.name, Sharding.replicated(mesh, value.type.rank))
        whole = tuple(n * sharding.shards_along(d) for d, n in enumerate(value.type.shape))
        ports.append(Port(value.name, value.type.with_shape(whole), sharding))
    outputs = [
        Port(name, value.type, everywhere(mesh, value.type.rank))
        for name, value in graph.outputs.items()
    ]
    return Program(mesh, verify(graph), tuple(ports), tuple(outputs))


def execute(
    program: Program,
    inputs: Mapping[str, list[np.ndarray]],
    kernels: Mapping[str, Kernel] = NUMPY_KERNELS,
    xp: ModuleType = np,
) -> tuple[dict[str, list[Any]], list[Row]]:
    """Run a program on lists by device; return outputs by name, and the collectives."""
    executable = LockstepExecutable(program, kernels, xp)
    rows: list[Row] = []
    found = executable(
        [inputs[port.name] for port in program.inputs], lambda told: rows.append(told.row)
    )
    return {port.name: v for port, v in zip(program.outputs, found, strict=True)}, rows


def on_one(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run a graph on one device."""
    found, _ = execute(program_of(Mesh(), graph), {name: [v] for name, v in values.items()})
    return {name: np.asarray(parts[0]) for name, parts in found.items()}


def graph_of(function: Callable[..., Tensor | tuple[Tensor, ...]], **types: TensorType) -> Graph:
    """Return the graph of a function of named inputs; its results are `y`, or `y0`, `y1`, …."""
    builder = Builder()
    made = function(*(builder.input(t, name) for name, t in types.items()))
    if isinstance(made, tuple):
        return builder.build({f"y{number}": tensor for number, tensor in enumerate(made)})
    return builder.build({"y": made})


def apply_op(op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
    """Append an op that has no function of its own, such as a collective."""
    return operands[0].builder.apply(op, *operands)


def f32(*shape: int) -> TensorType:
    return TensorType(shape, DType.float32)


def f64(*shape: int) -> TensorType:
    return TensorType(shape, DType.float64)


def i32(*shape: int) -> TensorType:
    return TensorType(shape, DType.int32)


__all__ = [
    "P", "Row", "apply_op", "everywhere", "execute", "f32", "f64", "graph_of", "i32", "on_one",
    "program_of",
]  # fmt: skip
