"""The options of overlap: what they mean together, and which of them do not go together."""

from __future__ import annotations

from mithril.errors import OptionError
from mithril.options import check_choice, check_flag
from mithril.partition.overlap import AS_IT_PAYS, STRATEGIES, Overlap
from mithril.partition.overlap.asked import AUTO, NONE

FLAG, STRATEGY = "overlap_communication", "communication_overlap_strategy"


def read_overlap(
    overlap: object, strategy: object, default: Overlap = AS_IT_PAYS, flag: str = FLAG
) -> Overlap:
    """Return how collectives are to be placed.

    Args:
        overlap: `overlap_communication=`; None where it is not given.
        strategy: `communication_overlap_strategy=`; None where it is not given.
        default: what holds where neither is.
        flag: what the first is called, for messages.

    Raises:
        OptionError: a value is unknown or not available yet, or the two differ.

    >>> read_overlap(False, None).strategy
    'none'
    """
    if overlap is None and strategy is None:
        return default
    if strategy is not None:
        check_choice(STRATEGY, strategy, STRATEGIES)
    if overlap is None:
        return Overlap(str(strategy), f"{STRATEGY}={strategy!r}")
    is_on = check_flag(flag, overlap)
    if strategy is None:
        return Overlap(AUTO if is_on else NONE, f"{flag}={is_on}")
    if is_on == (strategy == NONE):
        raise OptionError(
            f"{flag}={is_on} is given together with {STRATEGY}={strategy!r}, which says the "
            f"opposite; leave one of them out"
        )
    return Overlap(str(strategy), f"{STRATEGY}={strategy!r}")


__all__ = ["FLAG", "STRATEGY", "read_overlap"]
