"""What optimisers and schedules are given: numbers in their ranges, others are refused."""

from __future__ import annotations

import math
from numbers import Integral, Real

import numpy as np

from mithril.errors import OptionError


def check_number(
    call: str,
    option: str,
    value: object,
    *,
    least: float = 0.0,
    below: float = math.inf,
    is_open: bool = False,
) -> float:
    """Return the number that an option is given.

    Args:
        call: the function, for messages.
        option: the option, for messages.
        value: what it is given.
        least: the least number it may be.
        below: the number that it has to be less than.
        is_open: whether the least number itself is refused.

    Raises:
        OptionError: it is no number, NaN, infinite, or out of range.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    number = float(value) if isinstance(value, Real) else math.nan
    is_inside = (number > least if is_open else number >= least) and number < below
    if not is_number or not math.isfinite(number) or not is_inside:
        low = f" {'above' if is_open else 'of at least'} {least:g}" if math.isfinite(least) else ""
        high = f" and below {below:g}" if math.isfinite(below) else ""
        raise OptionError(
            f"{call} is given {option}={value!r}, no finite number{low}{high}; give such a one"
        )
    return number


def check_count(call: str, option: str, value: object, *, least: int = 0) -> int:
    """Return the whole number that an option is given.

    Raises:
        OptionError: it is none, or too small.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool | np.bool_)
    if not is_whole or int(value) < least:  # type: ignore[call-overload]
        raise OptionError(
            f"{call} is given {option}={value!r}, no whole number from {least} on; give such a one"
        )
    return int(value)  # type: ignore[call-overload, no-any-return]
