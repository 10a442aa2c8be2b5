"""Mesh axes that may be exchanged: with other names for them each move takes as long as before."""

from __future__ import annotations

import itertools

from mithril.cost import Hardware
from mithril.mesh import MICRO, Mesh
from mithril.ops.collective import AllGather, AllReduce, AllToAll, Permute, ReduceScatter
from mithril.sharding.moves import list_subsets

MOST_AXES = 6
"""Of a mesh with more of them none is compared with others."""
MOST_EXCHANGED = 4
"""So many axes that are alike may be in any order; of more, others stay as they are."""
KINDS = tuple(kind.name for kind in (AllGather, AllReduce, AllToAll, Permute, ReduceScatter))

Renaming = dict[str, str]
"""Another name for each axis of a mesh, which is the name of one that is like it."""


def list_renamings(mesh: Mesh, hardware: Hardware) -> tuple[Renaming, ...]:
    """Return all ways to exchange axes of a mesh, without the one that leaves all as they are.

    Args:
        mesh: the devices.
        hardware: the profile that says over which links they exchange data.
    """
    names = [name for name in mesh.names if mesh.sizes[name] > 1 and name != MICRO]
    groups = _group_alike(names, mesh, hardware) if len(names) <= MOST_AXES else []
    orders = (itertools.permutations(group[:MOST_EXCHANGED]) for group in groups)
    renamings = [
        {name: name for name in mesh.names}
        | {old: new for pairs in map(zip, groups, order) for old, new in pairs}
        for order in itertools.product(*orders)
    ]
    return tuple(one for one in renamings if any(old != new for old, new in one.items()))


def _group_alike(names: list[str], mesh: Mesh, hardware: Hardware) -> list[list[str]]:
    """Return some axes in groups of which all members may be exchanged."""
    groups: list[list[str]] = []
    for name in names:
        group = next((g for g in groups if _are_alike((g[0], name), names, mesh, hardware)), None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _are_alike(pair: tuple[str, str], names: list[str], mesh: Mesh, hardware: Hardware) -> bool:
    """Whether axes are of one size and whatever goes over one of them may go over the other."""
    one, other = pair
    return mesh.sizes[one] == mesh.sizes[other] and all(
        hardware.link(mesh, (one, *rest), kind) == hardware.link(mesh, (other, *rest), kind)
        for rest in [(), *list_subsets([name for name in names if name not in pair])]
        for kind in KINDS
    )


__all__ = ["Renaming", "list_renamings"]
