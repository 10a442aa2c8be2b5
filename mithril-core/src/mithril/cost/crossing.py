"""Which levels of links a group of devices crosses, and how many of its members share each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from mithril.mesh import Mesh


@lru_cache(maxsize=4096)
def count_members(
    sizes: tuple[int | None, ...], mesh: Mesh, axes: tuple[str, ...]
) -> tuple[int, ...]:
    """Return for each level that groups over some axes cross how many devices share its links.

    These are the members of a group in a unit of the level below, the fewest of all units that the
    level links; 0 where it links no two. The last level is the first that links whole groups.
    """
    groups = mesh.groups(axes or mesh.names)
    members = [[mesh.in_whole(device) for device in group] for group in groups]
    last = max(level_within(sizes, group) for group in members)
    units = (1, *(size or 1 for size in sizes[:last]))
    return tuple(
        min(filter(None, (_count_in_units(group, unit, size) for group in members)), default=0)
        for unit, size in zip(units, sizes, strict=False)
    )


def _count_in_units(group: Sequence[int], unit: int, size: int | None) -> int:
    """Return how many of a group are in each unit of so many devices, where a level links units.

    Args:
        group: flat indices of its devices.
        unit: how many devices, in flat order, are one unit.
        size: how many devices the level links; None for any number.
    """
    counts = Counter(device // unit for device in group)
    linked = Counter(0 if size is None else first * unit // size for first in counts)
    return min(counts.values()) if max(linked.values()) > 1 else 0


def level_within(sizes: Sequence[int | None], devices: Sequence[int]) -> int:
    """Return the first level that links some devices; the last one links all there are."""
    first, last = min(devices), max(devices)
    inside = (n for n, size in enumerate(sizes) if size is None or first // size == last // size)
    return next(inside, len(sizes) - 1)
