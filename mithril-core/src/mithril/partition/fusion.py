"""What is asked of the fusing of collectives into buckets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fusion:
    """Which collectives travel together, and how many bytes at most.

    Args:
        all_reduces: whether those do that reduce whole values.
        others: whether the rest does.
        nbytes: the most that a buffer holds, unless one value is larger; None for as much as is
            predicted to pay.
        said: the option as it was given; empty where it was not.
        by_time: whether the time model cuts what is gathered and scattered, as it does sums;
            otherwise a buffer makes its start-up a small part of its time.
    """

    all_reduces: bool = True
    others: bool = True
    nbytes: int | None = None
    said: str = ""
    by_time: bool = False


FUSE_AS_IT_PAYS = Fusion()
"""Nothing was asked for."""
