"""What compression keeps from step to step, as further inputs and outputs of a program.

Each device keeps its own: what it lost of its terms is nobody else's. An array of the state has a
first dimension for each axis of the mesh, split over it, so that it is saved, loaded and donated
like any other. Those of the axes over which gradients are compressed come first, and then by name:
a mesh that has the same axes in another order takes the state, and one with others refuses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mithril.ir import Builder, Tensor
from mithril.ir.rewrite import Visit, inline
from mithril.mesh import MICRO, Mesh, Sharding, coarse, list_origins
from mithril.plan import Port, Program
from mithril.plan.names import next_of
from mithril.types import DType, Shape, TensorType


class KeptState:
    """Arrays that a program takes, and gives back as the next step takes them.

    Args:
        builder: of the whole program, not of a body in it.
        mesh: its devices.
    """

    def __init__(self, builder: Builder, mesh: Mesh) -> None:
        self.builder = builder
        self._on = coarse(mesh)
        self._mesh = mesh
        self._ports: list[Port] = []
        self._made: dict[str, Tensor] = {}

    def read(self, name: str, shape: Shape, axes: Sequence[str]) -> tuple[str, Tensor]:
        """Add an array; return its name, and what this device has of it: (1, …, 1, *shape).

        Args:
            name: of the array; a number follows where that is taken.
            shape: of an entry.
            axes: over which gradients are compressed.
        """
        taken = {port.name for port in self._ports}
        while name in taken:
            stem, _, number = name.partition("#")
            name = f"{stem}#{int(number or 1) + 1}"
        order = self._order_axes(list_origins(self._mesh, axes))
        lies = Sharding(self._on, (*((axis,) for axis in order), *(() for _ in shape)))
        whole = (*(self._on.sizes[axis] for axis in order), *shape)
        self._ports.append(Port(name, TensorType(whole, DType.float32), lies))
        own = TensorType(lies.local_shape(whole), DType.float32)
        return name, self.builder.input(own, name)

    def _order_axes(self, first: Sequence[str]) -> list[str]:
        """Return the axes along which devices have entries, some of them first."""
        axes = (axis.name for axis in self._on.axes if axis.name != MICRO and axis.size > 1)
        return sorted(axes, key=lambda name: (name not in first, name))

    def write(self, name: str, x: Tensor) -> None:
        """Say what becomes of an array; x is as `read` returned it."""
        self._made[name] = x

    def add_to(self, program: Program, outputs: dict[str, Tensor]) -> Program:
        """Return the program that takes and gives the arrays.

        Args:
            program: as it was.
            outputs: what it computes now.
        """
        made = {next_of(port.name): self._made[port.name] for port in self._ports}
        leaving = (replace(port, name=next_of(port.name)) for port in self._ports)
        return replace(
            program,
            graph=self.builder.build({**outputs, **made}),
            inputs=(*program.inputs, *self._ports),
            outputs=(*program.outputs, *leaving),
        )


def rewrite_with_state(program: Program, visit: Visit, state: KeptState) -> Program:
    """Return a program with other nodes in the place of some, which may keep a state.

    Args:
        program: as it is.
        visit: as of `mithril.ir.rewrite.rewrite`.
        state: in whose builder the program is written anew.
    """
    builder = state.builder
    given = [builder.input(value.type, value.name) for value in program.graph.inputs]
    return state.add_to(program, inline(program.graph, builder, given, visit))
