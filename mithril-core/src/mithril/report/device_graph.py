"""The graph of communication: how many bytes each device has for each other one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from mithril.ir import Node
from mithril.ir.rewrite import all_nodes
from mithril.ir.start import join_starts
from mithril.mesh import Mesh
from mithril.ops.collective import AllReduce, Permute, collective_of
from mithril.plan import Issued, Plan, Transfer


@dataclass(frozen=True, slots=True, eq=False)
class DeviceGraph:
    """Bytes from device to device.

    Of a collective each device has an equal part for each other one of its group: what it reduces
    for it, and what it gives it of the result. A library may pass them on along a ring or a tree.

    Args:
        mesh: the devices.
        matrix: int64 [devices, devices]: bytes that the device of the row has for that of the
            column.
    """

    mesh: Mesh
    matrix: np.ndarray

    @property
    def total_bytes(self) -> int:
        """The bytes of all devices together."""
        return int(self.matrix.sum())

    def __str__(self) -> str:
        links = np.argwhere(self.matrix)
        lines = [f"{self.mesh!r}: {self.total_bytes} bytes over {len(links)} links"]
        lines += [f"{a} -> {b}: {self.matrix[a, b]} bytes" for a, b in links[:MOST]]
        if len(links) > MOST:
            lines.append(f"and {len(links) - MOST} more")
        return "\n".join(lines)


MOST = 64
"""Links that are printed."""


def build_device_graph(mesh: Mesh, runs: Iterable[tuple[Plan, Iterable[Issued]]]) -> DeviceGraph:
    """Return the graph of what was issued.

    Args:
        mesh: of the backend.
        runs: plans and what was issued in a run of each.
    """
    matrix = np.zeros((mesh.size, mesh.size), np.int64)
    meshes: dict[Node, Mesh] = {}
    seen: set[int] = set()
    for plan, issued in runs:
        if id(plan) not in seen:
            seen.add(id(plan))
            meshes.update(_find_meshes(plan))
        for one, times in Counter(issued).items():
            mesh = plan.stages[0].program.mesh if len(plan.stages) == 1 else plan.mesh
            _add(matrix, one, times, mesh, meshes)
    return DeviceGraph(mesh, matrix)


def _find_meshes(plan: Plan) -> dict[Node, Mesh]:
    """Return the mesh of each collective of a plan, as it is and as engines join its parts."""
    return {
        node: stage.program.mesh
        for stage in plan.stages
        for graph in (stage.program.graph, join_starts(stage.program.graph))
        for node in all_nodes(graph)
        if node.op.is_collective
    }


def _add(
    matrix: np.ndarray, issued: Issued, times: int, whole: Mesh, meshes: Mapping[Node, Mesh]
) -> None:
    origin = issued.origin
    if isinstance(origin, Transfer):
        for piece in origin.chunks:
            if piece.sender != piece.receiver:
                size = piece.size * origin.type.dtype.itemsize
                matrix[piece.sender, piece.receiver] += times * size
        return
    mesh, axes = whole, tuple(issued.axes)
    op = collective_of(origin.op) if isinstance(origin, Node) else None
    if isinstance(origin, Node) and op is not None:
        mesh, axes = meshes.get(origin, whole), op.axes
    if not set(axes) <= set(mesh.names):  # a compiler's own groups, along no axes
        return
    for group in mesh.groups(axes):
        members = np.array([mesh.in_whole(device) for device in group])
        if isinstance(op, Permute):
            for source, target in op.pairs:
                matrix[members[source], members[target]] += times * issued.bytes
            continue
        once = 2 if issued.kind == AllReduce.name else 1
        matrix[np.ix_(members, members)] += times * once * issued.bytes // len(group)
    np.fill_diagonal(matrix, 0)


__all__ = ["DeviceGraph", "build_device_graph"]
