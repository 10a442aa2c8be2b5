"""Which algorithm carries out which kind of collective, over which mesh axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, AllToAll, ReduceScatter

NATIVE, AUTO = "native", "auto"
RING, TREE, DIRECT = "ring", "tree", "direct"
HALVING, HIERARCHICAL = "recursive_halving", "hierarchical"
KNOWN: Mapping[str, tuple[str, ...]] = {
    AllReduce.name: (NATIVE, AUTO, RING, TREE, DIRECT, HALVING, HIERARCHICAL),
    ReduceScatter.name: (NATIVE, AUTO, RING, TREE, DIRECT, HALVING, HIERARCHICAL),
    AllGather.name: (NATIVE, AUTO, RING, TREE, DIRECT, HIERARCHICAL),
    AllToAll.name: (NATIVE, AUTO, RING, DIRECT, HIERARCHICAL),
}
"""The algorithms of each kind of collective that has a choice."""
ALGORITHMS = KNOWN[AllReduce.name]
"""All of them."""


@dataclass(frozen=True, slots=True)
class Algorithms:
    """How collectives are carried out.

    Args:
        of: for each kind the algorithm over each axis of the mesh as the user named it; a kind or
            an axis that is not there is the engine's own, `native`.
        said: the option as it was given; empty where it was not.
    """

    of: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    said: str = ""

    def find(self, kind: str, axis: str, mesh: Mesh) -> str:
        """Return the algorithm of a kind of collective over an axis, or a part of one.

        Args:
            kind: of the collective.
            axis: of the mesh.
            mesh: of a program.

        >>> asked = Algorithms({"all_reduce": {"data": "ring"}})
        >>> asked.find("all_reduce", "data", Mesh(data=2)), asked.find("permute", "data", Mesh())
        ('ring', 'native')
        """
        by_axis = self.of.get(kind)
        if not by_axis:
            return NATIVE
        return by_axis.get(next(a.origin for a in mesh.axes if a.name == axis), NATIVE)


AS_ENGINES_DO = Algorithms()
"""Nothing was asked for: every collective is the engine's own."""
