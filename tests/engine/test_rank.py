"""A program of one rank, with threads for processes, gives what lockstep gives."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from mithril import ops
from mithril.engine.collectives import EXCHANGES
from mithril.engine.numpy_engine import NUMPY_KERNELS
from mithril.engine.rank import RankExecutable
from mithril.ir import Builder, Op, Tensor
from mithril.mesh import Mesh, P, Sharding
from mithril.ops.collective import AllReduce, AxisIndex
from mithril.plan import Port, Program
from mithril.types import DType, TensorType, as_dtype

from tests.conformance.test_collectives import OVER, program
from tests.engine.programs import execute

LIMIT = 20


class Meeting:
    """Where the threads of a mesh lay down their values and take those of their group."""

    def __init__(self, mesh: Mesh) -> None:
        self._places: list[Any] = [None] * mesh.size
        self._barrier = Barrier(mesh.size, timeout=LIMIT)

    def exchanges(self, rank: int) -> dict[type[Op], Callable[[Any, Mesh], Callable[..., Any]]]:
        return {kind: self._bound(kind, rank) for kind in EXCHANGES}

    def _bound(self, kind: type[Op], rank: int) -> Callable[[Any, Mesh], Callable[..., Any]]:
        def factory(op: Any, mesh: Mesh) -> Callable[..., Any]:
            members = next(group for group in mesh.groups(op.axes) if rank in group)
            index = members.index(rank)

            def run(*operands: Any) -> Any:
                self._places[rank] = operands
                self._barrier.wait()
                values = [self._places[member] for member in members]
                self._barrier.wait()
                types = [TensorType(x.shape, as_dtype(x.dtype)) for x in operands]
                together = EXCHANGES[kind](op, types, np)
                made = together(*(list(column) for column in zip(*values, strict=True)))
                if kind.name in ("all_reduce", "all_gather"):
                    return made
                return tuple(x[index] for x in made) if len(operands) > 1 else made[index]

            return run

        return factory


def on_threads(written: Program, parts: list[np.ndarray]) -> list[dict[str, Any]]:
    meeting, mesh = Meeting(written.mesh), written.mesh

    def run(rank: int) -> dict[str, Any]:
        own = RankExecutable(written, NUMPY_KERNELS, np, rank, meeting.exchanges(rank))
        made = own([[parts[rank]] for _ in written.inputs])
        return {port.name: value[0] for port, value in zip(written.outputs, made, strict=True)}

    with ThreadPoolExecutor(mesh.size) as pool:
        return list(pool.map(run, range(mesh.size)))


@pytest.mark.parametrize(("mesh", "axes"), OVER, ids=str)
def test_every_collective(mesh: Mesh, axes: tuple[str, ...]) -> None:
    written = program(mesh, axes, DType.float32)
    (entering,) = written.inputs
    host = np.random.default_rng(0).standard_normal(entering.type.shape).astype(np.float32)
    parts = np.split(host, mesh.size)
    expected, _ = execute(written, {"x": parts})
    for rank, made in enumerate(on_threads(written, parts)):
        for name, value in made.items():
            np.testing.assert_array_equal(value, expected[name][rank], f"{name} on {rank}")


def test_a_loop_with_collectives() -> None:
    mesh = Mesh(a=2, b=2)
    builder = Builder()
    x = builder.input(TensorType((3,), DType.float32), "x")

    def body(state: Tensor) -> Tensor:
        (total,) = state.builder.apply(AllReduce(("b",), "sum"), state)
        (index,) = state.builder.apply(AxisIndex(("a", "b")))
        return total * 0.5 + ops.cast(index, DType.float32)

    final = ops.repeat(body, x, count=3)
    graph = builder.build({"y": final})
    apart = Sharding.of(mesh, P(("a", "b")), 1)
    port = [Port(name, TensorType((12,), DType.float32), apart) for name in ("x", "y")]
    written = Program(mesh, graph, (port[0],), (port[1],))
    parts = np.split(np.arange(12, dtype=np.float32), 4)
    expected, _ = execute(written, {"x": parts})
    for rank, made in enumerate(on_threads(written, parts)):
        np.testing.assert_array_equal(made["y"], expected["y"][rank])
