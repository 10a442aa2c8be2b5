"""Where a group of devices is cut into smaller ones that lie near one another.

Members that share a level of links are near. Where one level links all of a group, its last axis is
near, and an only axis is cut into two factors as close to one another as can be, the larger of them
near; a prime number of devices has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt

from mithril.cost import Hardware
from mithril.mesh import Mesh, coarse, refine


def find_near(mesh: Mesh, axes: Sequence[str], hardware: Hardware) -> int:
    """Return how many members of each group over some axes are near one another; 1 for no such.

    Args:
        mesh: the devices.
        axes: major first; near members follow one another in this order.
        hardware: the profile, whose levels say what is near.

    >>> from mithril.cost import SIMULATED
    >>> [find_near(Mesh(a=n), ["a"], SIMULATED) for n in (4, 6, 7, 8)]
    [2, 3, 1, 4]
    """
    wide = [axis for axis in axes if mesh.sizes[axis] > 1]
    groups, count = mesh.groups(axes), mesh.product(axes)
    for level in reversed(hardware.levels):
        near = 1 if level.devices is None else _share(mesh, groups, level.devices)
        if 1 < near < count:
            return near
    if len(wide) > 1:
        return mesh.sizes[wide[-1]]
    return next((count // n for n in range(isqrt(count), 1, -1) if count % n == 0), 1)


def _share(mesh: Mesh, groups: Iterable[Sequence[int]], unit: int) -> int:
    """Return how many members in a row are in each unit of devices; 1 where that differs."""
    found = set[int]()
    for group in groups:
        units = [mesh.in_whole(device) // unit for device in group]
        runs = [units.count(number) for number in dict.fromkeys(units)]
        is_in_row = units == [n for n in dict.fromkeys(units) for _ in range(units.count(n))]
        found.update(runs if is_in_row else (1,))
    return found.pop() if len(found) == 1 else 1


def refine_for_near(mesh: Mesh, wanted: Iterable[tuple[Sequence[str], int]]) -> Mesh:
    """Return a mesh with axes cut so that near members of groups differ in sub-axes of their own.

    A cut that does not fit with an earlier one is left out.

    Args:
        mesh: the devices.
        wanted: the axes of groups, and how many members are near one another.

    >>> refine_for_near(Mesh(pod=2, data=4), [(["data"], 2), (["pod", "data"], 4)])
    Mesh(pod=2, data.0=2, data.1=2)
    """
    edges: dict[str, set[int]] = {}
    for axes, near in wanted:
        inside = 1
        for axis in reversed(axes):
            size, left = mesh.sizes[axis], near // inside
            if left < size:
                own = edges.setdefault(axis, set())
                fits = size % left == 0 and all(left % e == 0 or e % left == 0 for e in own)
                own.update([left] if left > 1 and fits else ())
                break
            inside *= size
    if not any(edges.values()):
        return mesh
    return refine(coarse(mesh), _list_sizes(mesh, edges))


def _list_sizes(mesh: Mesh, edges: Mapping[str, set[int]]) -> dict[str, list[int]]:
    """Return the sizes of the parts of each axis as the user named it, major first."""
    cuts: dict[str, list[int]] = {}
    for axis in mesh.axes:
        ends = [1, *sorted(edges.get(axis.name, ())), axis.size]
        sizes = [ends[i + 1] // ends[i] for i in reversed(range(len(ends) - 1))]
        cuts.setdefault(axis.origin, []).extend(sizes)
    return cuts


def cut_axes(mesh: Mesh, axes: Sequence[str], near: int) -> tuple[tuple[str, ...], ...]:
    """Return the outer axes of a group and those in which near members differ; all if none do.

    >>> cut_axes(Mesh(pod=2, data=4), ("pod", "data"), 4)
    (('pod',), ('data',))
    """
    for first in range(1, len(axes)):
        if 1 < mesh.product(axes[first:]) == near < mesh.product(axes):
            return tuple(axes[:first]), tuple(axes[first:])
    return (tuple(axes),)


__all__ = ["cut_axes", "find_near", "refine_for_near"]
