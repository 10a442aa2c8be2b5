"""What differs between two arrays: types exactly, numbers within the table of tolerances."""

from __future__ import annotations

import numpy as np

from mithril.errors import kind_of
from mithril.testing.tolerances import TOLERANCE
from mithril.types import DType, as_dtype


def describe_difference(found: object, expected: np.ndarray, dtype: DType | None = None) -> str:
    """Return how far an array is from what it should be; empty if it is equal.

    Args:
        found: what a backend made: an array of NumPy, if it is right.
        expected: what is right.
        dtype: whose tolerance holds, by default that of `expected`; integers and bools are equal or
            they are not.

    >>> describe_difference(np.float32([1, 3]), np.float32([1, 2]))
    'off by 1 at [1]: 3, not 2'
    >>> describe_difference(np.ones(2), np.float32([1, 1]))
    'dtype float64, not float32'
    """
    if not isinstance(found, np.ndarray | np.generic):
        return f"{kind_of(found)}, not an array of NumPy"
    if found.dtype != expected.dtype:
        return f"dtype {found.dtype}, not {expected.dtype}"
    if found.shape != expected.shape:
        return f"shape {list(found.shape)}, not {list(expected.shape)}"
    return _describe_values(np.asarray(found), expected, dtype or as_dtype(expected.dtype))


def _describe_values(found: np.ndarray, expected: np.ndarray, dtype: DType) -> str:
    rtol, atol = TOLERANCE.get(str(dtype), (0.0, 0.0))
    if as_dtype(expected.dtype).is_float:
        found, expected = found.astype(np.float64), expected.astype(np.float64)
        wrong = ~np.isclose(found, expected, rtol=rtol, atol=atol, equal_nan=True)
    else:
        wrong = found != expected
    if not wrong.any():
        return ""
    with np.errstate(all="ignore"):
        distance = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    distance = np.where(wrong, np.where(np.isnan(distance), np.inf, distance), -1.0)
    worst = np.unravel_index(int(distance.argmax()), found.shape)
    place = f" at {[int(i) for i in worst]}" if worst else ""
    much = f"off by {distance[worst]:.3g}" if np.isfinite(distance[worst]) else "wrong"
    return f"{much}{place}: {', not '.join(write_apart(found[worst], expected[worst]))}"


def write_apart(found: object, expected: object) -> tuple[str, str]:
    """Return two numbers with six digits, or with as many more as tell them apart.

    >>> write_apart(1 / 3, 0.5), write_apart(1 / 3, 1 / 3 + 1e-8)
    (('0.333333', '0.5'), ('0.33333333', '0.33333334'))
    """
    for digits in range(6, 18):
        texts = f"{found:.{digits}g}", f"{expected:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts
