"""The options of overlap: what they mean together, and which of them do not go together."""

from __future__ import annotations

from dataclasses import replace

from mithril.errors import OptionError
from mithril.option_checks import check_choice, check_flag
from mithril.partition.overlap import AS_IT_PAYS, STRATEGIES, Overlap
from mithril.partition.overlap.asked import AUTO, BUCKET, NONE

FLAG, STRATEGY = "overlap_communication", "communication_overlap_strategy"
CHUNKS = "pipeline_communication"
WITHOUT_CHUNKS = {
    NONE: "nothing goes on beside chunks",
    BUCKET: "all that a block needs travels at once",
}
"""Strategies with which nothing travels in chunks, and why."""


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
        OptionError: a value is unknown, or the two differ.

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


def read_chunks(given: object, overlap: Overlap, default: Overlap = AS_IT_PAYS) -> Overlap:
    """Return how collectives are to be placed, and whether what is large travels in chunks.

    Args:
        given: `pipeline_communication=`; None where it is not given.
        overlap: how they are to be placed.
        default: what holds where it is not given, unless the strategy says the opposite.

    Raises:
        OptionError: it is neither True nor False, or the strategy says the opposite.

    >>> read_chunks(True, AS_IT_PAYS).in_chunks
    True
    """
    why = WITHOUT_CHUNKS.get(overlap.strategy)
    if given is None:
        if why is not None:
            return replace(overlap, in_chunks=False, said_of_chunks="")
        return replace(overlap, in_chunks=default.in_chunks, said_of_chunks=default.said_of_chunks)
    is_on = check_flag(CHUNKS, given)
    if is_on and why is not None:
        raise OptionError(
            f"{CHUNKS}=True is given together with {overlap.said}, by which {why}; leave one of "
            f"them out"
        )
    return replace(overlap, in_chunks=is_on, said_of_chunks=f"{CHUNKS}={is_on}" if is_on else "")


__all__ = ["CHUNKS", "FLAG", "STRATEGY", "read_chunks", "read_overlap"]
