"""Where some planes are highest together: a linear program of very few variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

Plane = tuple[float, ...]
"""A height at 0, and the slope along each variable."""
INSIDE = 1e-7
"""A point is taken to be on the right side of a plane that it misses by such a part of the range."""


def find_highest(
    planes: Sequence[Plane], most: float, *, is_share: bool = False
) -> tuple[list[float], float]:
    """Return the point at which the lowest of some planes is highest, and how high that is.

    The highest point is where as many planes and borders meet as there are variables and heights;
    of few variables all such points can be looked at.

    Args:
        planes: over variables from 0 on.
        most: that a variable may be.
        is_share: whether that is the most that all of them may be together.

    >>> find_highest([(0.0, 1.0), (3.0, -2.0)], 10.0)
    ([1.0], 1.0)
    """
    count = len(planes[0]) - 1
    if not count:
        return [], min(plane[0] for plane in planes)
    # Rows r with r · (u, height) <= limit; variables are in parts of `most`.
    rows = [(*(-slope * most for slope in plane[1:]), 1.0) for plane in planes]
    limits = [plane[0] for plane in planes]
    for at in range(count):
        rows.append(tuple(-1.0 if at == i else 0.0 for i in range(count + 1)))
        limits.append(0.0)
        if not is_share:
            rows.append(tuple(1.0 if at == i else 0.0 for i in range(count + 1)))
            limits.append(1.0)
    if is_share:
        rows.append((*([1.0] * count), 0.0))
        limits.append(1.0)
    a, b = np.array(rows), np.array(limits)
    chosen = np.array(list(itertools.combinations(range(len(b)), count + 1)))
    systems, sides = a[chosen], b[chosen]
    solvable = np.abs(np.linalg.det(systems)) > 1e-12 * np.prod(
        np.maximum(np.abs(systems).max(axis=2), 1e-300), axis=1
    )
    points = np.linalg.solve(systems[solvable], sides[solvable][..., None])[..., 0]
    scale = np.abs(a) @ np.ones(count + 1) + np.abs(b)
    inside = points[((points @ a.T - b) <= INSIDE * scale).all(axis=1)]
    best = inside[inside[:, -1].argmax()]
    return [max(0.0, float(u)) * most for u in best[:-1]], float(best[-1])
