"""Checks of what layers with windows over spatial dimensions take as sizes and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mithril.models.definition import Check
from mithril.ops.windows import PADDING_WORDS

COUNTS = {1: "one", 2: "two", 3: "three"}


def _is_integer(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_sizes(value: Any, rank: int, least: int) -> bool:
    are_several = isinstance(value, tuple | list) and rank > 1 and len(value) == rank
    return all(_is_integer(item, least) for item in (value if are_several else [value]))


def sizes(rank: int) -> Check:
    """Return the check of a size, or one for each of `rank` dimensions."""
    many = "" if rank == 1 else f" or {COUNTS[rank]} of them"
    return Check(f"a positive integer{many}", lambda value: _are_sizes(value, rank, 1))


def sizes_or_none(rank: int) -> Check:
    """Return the check of sizes that may be left out."""
    many = "" if rank == 1 else f", {COUNTS[rank]} of them"
    return Check(
        f"a positive integer{many}, or None",
        lambda value: value is None or _are_sizes(value, rank, 1),
    )


def widths(rank: int) -> Check:
    """Return the check of widths from 0."""
    many = "" if rank == 1 else f" or {COUNTS[rank]} of them"
    return Check(f"an integer from 0{many}", lambda value: _are_sizes(value, rank, 0))


def _is_padding(value: Any, rank: int, words: Sequence[str]) -> bool:
    if isinstance(value, str):
        return value in words
    if not isinstance(value, tuple | list):
        return _is_integer(value, 0)
    return len(value) == rank and all(
        _is_integer(side, 0)
        or (isinstance(side, tuple | list) and len(side) == 2 and _are_sizes(side, 2, 0))
        for side in value
    )


def paddings(rank: int, words: Sequence[str] = PADDING_WORDS) -> Check:
    """Return the check of a padding: words, a number, or one or two numbers for each dimension."""
    example = ", ".join(["(1, 0)", *["2"] * (rank - 1)])
    shown = "".join(f", '{word}'" for word in words)
    return Check(
        f"an integer from 0{shown}, or for each dimension an integer or (before, after), such as "
        f"({example}{',' * (rank == 1)})",
        lambda value: _is_padding(value, rank, words),
    )
