"""Bytes, seconds and shares, as people read them."""

from __future__ import annotations

from bisect import bisect_right

BYTES = ((1, "B"), (2**10, "KiB"), (2**20, "MiB"), (2**30, "GiB"), (2**40, "TiB"))
SECONDS = ((1e-6, "µs"), (1e-3, "ms"), (1.0, "s"))

Unit = tuple[float, str]


def choose_unit(largest: float, units: tuple[Unit, ...]) -> Unit:
    """Return the largest unit that is not above a number, with its size; the smallest for less.

    >>> choose_unit(3000, BYTES), choose_unit(0.002, SECONDS)
    ((1024, 'KiB'), (0.001, 'ms'))
    """
    return units[max(bisect_right([size for size, _ in units], largest) - 1, 0)]


def format_in(number: float, units: tuple[Unit, ...]) -> str:
    """Return a number in the unit that suits it, with three digits.

    >>> format_in(96, BYTES), format_in(1.5 * 2**20, BYTES), format_in(0.0123, SECONDS)
    ('96 B', '1.5 MiB', '12.3 ms')
    """
    size, name = choose_unit(abs(number), units)
    scaled = number / size
    return f"{round(scaled) if abs(scaled) >= 100 else f'{scaled:.3g}'} {name}"


def format_bytes(number: float) -> str:
    """Return a number of bytes with a binary unit."""
    return format_in(number, BYTES)


def format_seconds(number: float) -> str:
    """Return a time in µs, ms or s."""
    return format_in(number, SECONDS)
