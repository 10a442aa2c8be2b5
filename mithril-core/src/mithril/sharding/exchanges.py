"""Axes of a mesh that may be exchanged for one another: whatever goes over them takes as long.

They have one size, and what goes over some axes takes the same links with either of two in it. That
is so for all three of a node's, and for two that both lead out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from itertools import chain, combinations, permutations, product

from mithril.cost import Hardware
from mithril.cost.levels import Link
from mithril.mesh import MICRO, Mesh
from mithril.ops.collective import collectives

MOST = 3
"""So many of the axes that are alike are exchanged; there are six ways for three, 120 for five."""


def list_exchanges(mesh: Mesh, hardware: Hardware) -> list[dict[str, str]]:
    """Return what each axis is exchanged for, in all ways but the one that leaves them.

    Args:
        mesh: the devices.
        hardware: whose links connect them.

    >>> from mithril.cost import SIMULATED
    >>> list_exchanges(Mesh(data=2, tensor=2, pipe=4), SIMULATED)
    [{'data': 'tensor', 'tensor': 'data', 'pipe': 'pipe'}]
    """
    groups = _group_alike(mesh, hardware)
    before = [name for group in groups for name in group]
    same = {name: name for name in mesh.names}
    ways = (
        same | dict(zip(before, chain(*after), strict=True))
        for after in product(*(permutations(group) for group in groups))
    )
    return [way for way in ways if way != same]


def _group_alike(mesh: Mesh, hardware: Hardware) -> list[list[str]]:
    """Return the axes in groups of those that are alike, of each no more than are exchanged."""
    groups: list[list[str]] = []
    links = cache(partial(_find_links, mesh, hardware))
    for axis in mesh.axes:
        if axis.size == 1 or axis.name == MICRO:
            continue
        name = axis.name
        sized = [group for group in groups if mesh.sizes[group[0]] == axis.size]
        found = next((group for group in sized if _are_alike(mesh, links, group[0], name)), None)
        if found is None:
            groups.append([name])
        elif len(found) < MOST:
            found.append(name)
    return groups


def _are_alike(mesh: Mesh, links: Callable[..., list[Link]], one: str, other: str) -> bool:
    """Whether what goes over an axis, and any others, takes as long over another one instead."""
    rest = [name for name in mesh.names if name not in (one, other)]
    return all(
        links(frozenset((one, *some))) == links(frozenset((other, *some)))
        for count in range(len(rest) + 1)
        for some in combinations(rest, count)
    )


def _find_links(mesh: Mesh, hardware: Hardware, axes: frozenset[str]) -> list[Link]:
    """Return the links that each kind of collective takes over some axes."""
    return [hardware.link(mesh, tuple(axes), kind) for kind in collectives()]
