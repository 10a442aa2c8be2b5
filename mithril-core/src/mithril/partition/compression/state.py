"""What compression keeps from step to step, as further inputs and outputs of a program.

Each device keeps its own: what it lost of its terms is nobody else's. An array of the state has a
first dimension with an entry for each device, split over all axes of the mesh, so that it is saved,
loaded and donated like any other.
"""

from __future__ import annotations

from dataclasses import replace

from mithril.ir import Builder, Tensor
from mithril.ir.rewrite import Visit, inline
from mithril.mesh import MICRO, Mesh, Sharding, coarse
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
        axes = (axis for axis in self._on.axes if axis.name != MICRO and axis.size > 1)
        self._axes = tuple(axis.name for axis in axes)
        self._ports: list[Port] = []
        self._made: dict[str, Tensor] = {}

    def read(self, name: str, shape: Shape) -> tuple[str, Tensor]:
        """Add an array; return its name, and what this device has of it: (1, *shape).

        Args:
            name: of the array; a number follows where that is taken.
            shape: of an entry.
        """
        taken = {port.name for port in self._ports}
        while name in taken:
            stem, _, number = name.partition("#")
            name = f"{stem}#{int(number or 1) + 1}"
        count = self._on.product(self._axes)
        lies = Sharding(self._on, (self._axes, *(() for _ in shape)))
        self._ports.append(Port(name, TensorType((count, *shape), DType.float32), lies))
        return name, self.builder.input(TensorType((1, *shape), DType.float32), name)

    def write(self, name: str, x: Tensor) -> None:
        """Say what becomes of an array: (1, *shape)."""
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
