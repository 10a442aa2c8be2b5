"""What is asked of the placing of collectives."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, NONE, BUCKET, DECOMPOSE = "auto", "none", "bucket", "decompose"
STRATEGIES = (AUTO, NONE, BUCKET, DECOMPOSE)


@dataclass(frozen=True, slots=True)
class Overlap:
    """How collectives are placed beside what computes.

    Args:
        strategy: `auto` has them start earlier, and takes products apart that they feed, where a
            step is predicted to be shorter then; `bucket` has all that a block needs travel
            together one block ahead, `decompose` takes all such products apart, and `none` has
            every device wait for each at once.
        said: the option as it was given; empty where it was not.
        in_chunks: whether what is large travels in chunks where that is predicted to be faster.
        said_of_chunks: the option that says so, as it was given.
    """

    strategy: str = AUTO
    said: str = ""
    in_chunks: bool = False
    said_of_chunks: str = ""


AS_IT_PAYS = Overlap()
"""Nothing was asked for."""
