"""Marks: lines of a program in lockstep, or of one rank, that take the time between its segments.

A segment is what stands together and belongs to one layer and phase, or is one collective. In an
array namespace that computes later, what a segment has made is computed before the time is taken.
A program that counts memory also tells of every array it makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mithril.engine.recording import Segment, segment_of
from mithril.ir import Node
from mithril.mesh import Mesh
from mithril.plan.issued import issue_node


@dataclass
class Marks:
    """Writes the marks of one function.

    Args:
        settles: whether values have to be computed first, by the function `settle`.
        counts_memory: whether the arrays that are made are counted.
        name: what names of constants begin with.
        constants: what the lines refer to.
    """

    settles: bool = False
    counts_memory: bool = False
    name: str = "run"
    constants: dict[str, Any] = field(default_factory=dict)
    _key: object = None
    _open: str = ""
    _made: dict[str, None] = field(default_factory=dict)
    _nodes: int = 0
    _kernels: int = 0
    _count: int = 0

    def within(self, name: str) -> Marks:
        """Return the marks of the body of a loop, whose constants have names of their own."""
        return Marks(self.settles, self.counts_memory, name)

    def enter(self, node: Node, mesh: Mesh) -> Iterator[str]:
        """Write what begins a segment, if the node belongs to another one than those before."""
        is_apart = node.op.is_collective or bool(node.op.bodies)
        key = node if is_apart else (node.phase, node.scope)
        if key == self._key:
            return
        yield from self._close()
        self._key, self._open = key, f"{self.name}_s{self._count}"
        self._count += 1
        issued = issue_node(node, mesh) if node.op.is_collective else None
        self.constants[self._open] = segment_of(node, issued)
        yield self.resume()

    def note(self, kernels: int, made: Sequence[str]) -> None:
        """Take note of a node: of its kernels for all devices, and the variables it has made."""
        self._nodes += 1
        self._kernels += kernels
        self._made.update(dict.fromkeys(made))

    def forget(self, names: Sequence[str]) -> None:
        """Take note of variables that are deleted."""
        for name in names:
            self._made.pop(name, None)

    def resume(self) -> str:
        """Return the line that goes on with the segment, after a loop's body has had its own."""
        return f"observe.mark({self._open})"

    def hold(self, mesh: Mesh, where: Mapping[str, int], name: str) -> str:
        """Return the line that counts a variable on the devices at some coordinates."""
        at = "_".join(f"{axis}{index}" for axis, index in where.items()).replace(".", "_")
        devices = f"{self.name}_on_{at}"
        if devices not in self.constants:
            self.constants[devices] = _devices_at(mesh, where)
        return f"observe.hold({devices}, {name})"

    def leave(self) -> Iterator[str]:
        """Write what ends the last segment."""
        yield from self._close()
        yield "observe.mark(None)"

    def _close(self) -> Iterator[str]:
        """Write what has a segment computed; a device works in its share of the kernels."""
        if self._open:
            segment: Segment = self.constants[self._open]
            share = self._nodes / self._kernels if self._kernels else 1.0
            self.constants[self._open] = replace(segment, share=min(1.0, share))
        if self.settles and self._made:
            yield f"settle([{', '.join(self._made)}])"
        self._made.clear()
        self._nodes = self._kernels = 0


def _devices_at(mesh: Mesh, where: Mapping[str, int]) -> tuple[int, ...]:
    """Return the flat indices in the whole of the devices at some coordinates."""
    return tuple(
        mesh.in_whole(device)
        for device in range(mesh.size)
        if where.items() <= mesh.coordinates(device).items()
    )
