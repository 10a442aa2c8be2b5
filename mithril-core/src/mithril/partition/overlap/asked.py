"""What is asked of the placing of collectives."""

from __future__ import annotations

from dataclasses import dataclass

AUTO, NONE, BUCKET = "auto", "none", "bucket"
STRATEGIES = (AUTO, NONE, BUCKET)


@dataclass(frozen=True, slots=True)
class Overlap:
    """How collectives are placed beside what computes.

    Args:
        strategy: `auto` has them start earlier where a step is predicted to be shorter then,
            `bucket` has all that a block needs travel together one block ahead, and `none` has
            every device wait for each at once.
        said: the option as it was given; empty where it was not.
    """

    strategy: str = AUTO
    said: str = ""


AS_IT_PAYS = Overlap()
"""Nothing was asked for."""
