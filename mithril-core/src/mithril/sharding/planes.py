"""Where some planes are highest together: a linear program of very few variables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

Plane = tuple[float, ...]
"""A height at 0, and the slope along each variable."""
SINGULAR = 1e-12
"""Planes with a determinant of such a part of their slopes are taken to be parallel."""


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
    largest = np.maximum(np.abs(systems).max(axis=2), np.finfo(float).tiny)
    solvable = np.abs(np.linalg.det(systems)) > SINGULAR * np.prod(largest, axis=1)
    met = np.linalg.solve(systems[solvable], sides[solvable][..., None])[:, :-1, 0]
    # Points outside are brought to the border, and all are measured, so that rounding spoils none.
    points = np.clip(np.concatenate([np.zeros((1, count)), met]), 0.0, 1.0)
    if is_share:
        points /= np.maximum(points.sum(axis=1, keepdims=True), 1.0)
    slopes = np.array([plane[1:] for plane in planes]) * most
    heights = (points @ slopes.T + [plane[0] for plane in planes]).min(axis=1)
    best = int(heights.argmax())
    return [float(u) * most for u in points[best]], float(heights[best])
