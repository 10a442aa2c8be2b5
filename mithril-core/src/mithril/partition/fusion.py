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
    """

    all_reduces: bool = True
    others: bool = True
    nbytes: int | None = None
    said: str = ""


FUSE_AS_IT_PAYS = Fusion()
"""Nothing was asked for."""
