"""Overlap: collectives go on beside what computes, where programs say when each starts and ends."""

from mithril.partition.overlap.asked import AS_IT_PAYS, STRATEGIES, Overlap
from mithril.partition.overlap.place import (
    defer_results,
    keep_collectives,
    place_collectives,
)

__all__ = [
    "AS_IT_PAYS", "STRATEGIES", "Overlap",
    "defer_results", "keep_collectives", "place_collectives",
]  # fmt: skip
