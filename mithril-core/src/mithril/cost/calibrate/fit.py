"""Least-squares fits of measured times, in which every time counts by its relative error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds as `first * a + second * b`.

    Args:
        first: seconds for each unit of a.
        second: seconds for each unit of b.
        error: root mean square of the relative residuals.
    """

    first: float
    second: float
    error: float

    def at(self, a: float, b: float) -> float:
        """Return the seconds of a point."""
        return self.first * a + self.second * b


def fit_line(points: Sequence[tuple[float, float, float]]) -> Line:
    """Return the line with the least sum of squared relative residuals, neither factor below 0.

    Args:
        points: a, b and the measured seconds, above 0, of each.

    >>> line = fit_line([(1, 1000, 3.0), (1, 2000, 4.0), (1, 4000, 6.0)])
    >>> round(line.first, 6), round(line.second, 6), round(line.error, 6)
    (2.0, 0.001, 0.0)
    """
    rows = [(a / t, b / t) for a, b, t in points]
    aa, ab, bb = (_dot(rows, i, j) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (math.fsum(row[i] for row in rows) for i in (0, 1))
    determinant = aa * bb - ab * ab
    first, second = a1 / aa if aa else 0.0, 0.0
    # Columns that are all but parallel say nothing of their parts.
    if determinant > 1e-9 * aa * bb:
        first, second = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if first < 0:
        first, second = 0.0, b1 / bb
    if second < 0:
        first, second = a1 / aa, 0.0
    residuals = [first * a + second * b - 1 for a, b in rows]
    error = math.sqrt(math.fsum(r * r for r in residuals) / len(rows))
    return Line(first, second, error)


def _dot(rows: Sequence[tuple[float, float]], i: int, j: int) -> float:
    return math.fsum(row[i] * row[j] for row in rows)
