"""Rates by size, and the refusal of figures that no device can have."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise

from mithril.errors import OptionError
from mithril.option_checks import is_number
from mithril.types import DType

Rate = tuple[tuple[float, float], ...]
"""Floating-point operations per second by the size of a product in such operations, rising.

One point is a constant rate; between points it is interpolated over the logarithm of the size.
"""


def interpolate(points: Rate, size: float) -> float:
    """Return the rate at a size: that of the nearest point beyond the first and the last."""
    at = bisect_left(points, (size,))
    if at == 0 or at == len(points):
        return points[min(at, len(points) - 1)][1]
    (small, slow), (large, fast) = points[at - 1], points[at]
    share = math.log(size / small) / math.log(large / small)
    return slow + share * (fast - slow)


def scale(rate: Rate, part: float) -> Rate:
    """Return a rate `part` times as high at each size."""
    return tuple((size, figure * part) for size, figure in rate)


def check_figure(
    what: str, figure: str, number: float, least: float | None = None, most: float | None = None
) -> None:
    """Raise unless a figure is a number above 0, or at least `least`, and finite, or `most`.

    Raises:
        OptionError: it is not.
    """
    is_large = is_number(number) and (number > 0 or number == least)
    if not is_large or math.isnan(number) or (number == math.inf and number != most):
        bound = "above 0" if least is None else f"of at least {least:g}"
        raise OptionError(f"{what} has {figure} {number!r}; give a finite number {bound}")


def check_rate(what: str, points: Rate) -> None:
    """Raise unless sizes rise and figures are numbers above 0.

    Raises:
        OptionError: they are not.
    """
    if not points:
        raise OptionError(f"{what} has no points; give a size and a rate")
    for size, rate in points:
        check_figure(what, "size", size)
        check_figure(what, "rate", rate)
    if any(a[0] >= b[0] for a, b in pairwise(points)):
        raise OptionError(f"{what} has sizes that do not rise; sort its points by size")


def check_peak(dtype: DType, peak: float, rates: Mapping[DType, Rate]) -> None:
    """Raise unless the rates of a dtype stay below its peak.

    Raises:
        OptionError: they do not, or there are none.
    """
    if dtype not in rates:
        raise OptionError(f"peak of {dtype} is given without a rate of {dtype}; give rates, too")
    reached = max(rate for _, rate in rates[dtype])
    if peak < reached:
        raise OptionError(
            f"peak of {dtype} is {peak:.4g} operations a second, and rates reach {reached:.4g}; "
            f"give the most that the device is made for, or leave it out"
        )
