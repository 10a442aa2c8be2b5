"""Which levels of links a group of devices crosses, and how many of its members share each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from mithril.mesh import Mesh


@lru_cache(maxsize=4096)
def count_members(
    sizes: tuple[int | None, ...], mesh: Mesh, axes: tuple[str, ...]
) -> tuple[int, ...]:
    """Return for each level that groups over some axes cross how many devices share its links.

    These are the members of a group in a unit of the level below, the fewest of all units that the
    level links; 0 where it links no two. The last level is the first that links whole groups.
    """
    members = _list_members(mesh, axes or mesh.names)
    firsts, lasts = members[:, 0], members[:, -1]
    last = next(
        (n for n, size in enumerate(sizes) if size is None or not _differ(firsts, lasts, size)),
        len(sizes) - 1,
    )
    units = (1, *(size or 1 for size in sizes[:last]))
    return tuple(
        _count_fewest(members, unit, size) for unit, size in zip(units, sizes, strict=False)
    )


def _list_members(mesh: Mesh, axes: Sequence[str]) -> np.ndarray:
    """Return the flat indices of the devices of each group, a group a row, in flat order."""
    members = mesh.group_rows(axes)
    return np.sort(np.asarray(mesh.devices)[members] if mesh.devices else members, axis=1)


def _differ(firsts: np.ndarray, lasts: np.ndarray, size: int) -> bool:
    return bool((firsts // size != lasts // size).any())


def _count_fewest(members: np.ndarray, unit: int, size: int | None) -> int:
    """Return how many of a group are in the unit that has fewest, where a level links units.

    Args:
        members: of each group, in flat order.
        unit: how many devices, in flat order, are one unit.
        size: how many devices the level links; None for any number.
    """
    within = members // unit
    begins = np.ones(members.shape, bool)  # where a row goes on to another unit
    begins[:, 1:] = within[:, 1:] != within[:, :-1]
    rows, columns = np.nonzero(begins)
    counts = np.diff(rows * members.shape[1] + columns, append=members.size)
    areas = np.zeros_like(rows) if size is None else within[begins] * unit // size
    is_next = (rows[1:] == rows[:-1]) & (areas[1:] == areas[:-1])  # units of one row and one area
    links = np.zeros(len(members), bool)
    links[rows[1:][is_next]] = True
    return int(counts[links[rows]].min()) if links.any() else 0


def level_within(sizes: Sequence[int | None], devices: Sequence[int]) -> int:
    """Return the first level that links some devices; the last one links all there are."""
    first, last = min(devices), max(devices)
    inside = (n for n, size in enumerate(sizes) if size is None or first // size == last // size)
    return next(inside, len(sizes) - 1)
