"""How parameters start: distributions as plain data.

An initializer only describes; whoever creates the parameters draws the numbers, from a
counter-based generator, so that they are the same on every mesh.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uniform:
    """Numbers spread evenly between -bound and bound."""

    bound: float


@dataclass(frozen=True, slots=True)
class Normal:
    """Numbers with mean 0 and a standard deviation."""

    standard_deviation: float


@dataclass(frozen=True, slots=True)
class Constant:
    """The same number everywhere."""

    value: float


Initializer = Uniform | Normal | Constant


def fan_in_uniform(fan_in: int) -> Uniform:
    """Return PyTorch's default for Linear and Conv2d: uniform within 1 / sqrt(fan_in).

    >>> fan_in_uniform(16)
    Uniform(bound=0.25)
    """
    return Uniform(1.0 / math.sqrt(max(fan_in, 1)))
