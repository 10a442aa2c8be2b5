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


def fit_line(
    points: Sequence[tuple[float, float, float]], scales: Sequence[float] | None = None
) -> Line:
    """Return the line with the least sum of squared relative residuals, neither factor below 0.

    Args:
        points: a, b and the measured seconds of each.
        scales: seconds, above 0, that the residual of each is relative to: those of the measurement
            that it is a part of; by default its own.

    >>> line = fit_line([(1, 1000, 3.0), (1, 2000, 4.0), (1, 4000, 6.0)])
    >>> round(line.first, 6), round(line.second, 6), round(line.error, 6)
    (2.0, 0.001, 0.0)
    """
    scales = scales or [t for *_, t in points]
    rows = [(a / s, b / s) for (a, b, _), s in zip(points, scales, strict=True)]
    times = [t / s for (*_, t), s in zip(points, scales, strict=True)]
    aa, ab, bb = (_dot(rows, i, j) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = (math.fsum(r[i] * t for r, t in zip(rows, times, strict=True)) for i in (0, 1))
    determinant = aa * bb - ab * ab
    first, second = a1 / aa if aa else 0.0, 0.0
    # Columns that are all but parallel say nothing of their parts.
    if determinant > 1e-9 * aa * bb:
        first, second = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if first < 0:
        first, second = 0.0, max(b1 / bb, 0.0)
    if second < 0:
        first, second = max(a1 / aa, 0.0), 0.0
    residuals = [first * a + second * b - t for (a, b), t in zip(rows, times, strict=True)]
    error = math.sqrt(math.fsum(r * r for r in residuals) / len(rows))
    return Line(first, second, error)


def _dot(rows: Sequence[tuple[float, float]], i: int, j: int) -> float:
    return math.fsum(row[i] * row[j] for row in rows)
