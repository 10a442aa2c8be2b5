"""Run a program as one device of a mesh whose other devices are other processes.

The program is turned into the same straight-line Python as in lockstep; its collectives are
functions of the engine that exchange data with the other processes. Generic over the array
namespace and the kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from mithril.engine.checks import KernelChecks
from mithril.engine.kernels import Kernel
from mithril.engine.lockstep import Writer
from mithril.engine.marks import Marks
from mithril.engine.protocol import Observer
from mithril.engine.variables import Axes, Variables
from mithril.ir import Graph, Node, Op, Value
from mithril.ir.start import join_starts
from mithril.mesh import Mesh
from mithril.ops.collective import AxisIndex
from mithril.plan import Program

Exchange = Callable[[Any, Mesh], Callable[..., Any]]
"""From a collective and the mesh to the function of this device's operands that carries it out."""


class RankExecutable:
    """A program lowered for one device; inputs and outputs are lists of this device's one array.

    Args:
        program: what runs.
        kernels: kernel factories by op name.
        xp: the array namespace.
        rank: flat index of the device.
        exchanges: how each collective is carried out.
        marks: what takes the time between its segments, if it is measured.
        checks: whose kernels they are, for messages.
    """

    def __init__(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        xp: ModuleType,
        rank: int,
        exchanges: Mapping[type[Op], Exchange],
        marks: Marks | None = None,
        checks: KernelChecks | None = None,
    ) -> None:
        graph = join_starts(program.graph)
        writer = _RankWriter(
            program.mesh, graph, kernels, xp, "run", rank, exchanges, marks, checks
        )
        self.source = writer.write_program(program.inputs)
        self._run = writer.load(self.source, f"<rank {rank} {id(self)}>")

    def __call__(
        self, inputs: Sequence[Sequence[Any]], observe: Observer | None = None
    ) -> list[list[Any]]:
        """Run once; see `Executable`."""
        return self._run(inputs, observe)


class _RankWriter(Writer):
    """Writes a graph for one device: no value varies, and collectives are calls."""

    def __init__(
        self,
        mesh: Mesh,
        graph: Graph,
        kernels: Mapping[str, Kernel],
        xp: ModuleType,
        name: str,
        rank: int,
        exchanges: Mapping[type[Op], Exchange],
        marks: Marks | None,
        checks: KernelChecks | None,
    ) -> None:
        super().__init__(mesh, graph, kernels, xp, name, marks, checks=checks)
        self._variables = _RankVariables(mesh)
        self._rank = rank
        self._exchanges = exchanges

    def _within(self, node: Node, body: Graph, name: str) -> Writer:
        marks = None if self._marks is None else self._marks.within(name)
        own = (self._rank, self._exchanges, marks, self._checks)
        return _RankWriter(self._mesh, body, self._kernels, self._xp, name, *own)

    def _axis_index(self, node: Node, op: AxisIndex) -> Iterator[str]:
        (value,) = node.outputs
        self._variables.declare(value, ())
        index = self._mesh.index_over(self._rank, op.axes)
        self.constants[f"i{index}"] = self._xp.asarray(np.asarray(index, np.int32))
        yield f"{self._variables.names[value]} = i{index}"

    def _collective(self, node: Node, function: str, inherited: Axes) -> Iterator[str]:
        self.constants[function] = self._exchanges[type(node.op)](node.op, self._mesh)
        for value in node.outputs:
            self._variables.declare(value, ())
        yield self._observation(node, function)
        targets = ", ".join(self._variables.names[value] for value in node.outputs)
        operands = ", ".join(self._variables.names[value] for value in node.inputs)
        yield f"{targets} = {function}({operands})"


class _RankVariables(Variables):
    """No value varies: this process has the variables of one device."""

    def declare(self, value: Value, axes: Axes) -> None:
        super().declare(value, ())

    def by_device(self, value: Value) -> list[str]:
        return [self.names[value]]
