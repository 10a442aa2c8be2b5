"""Algorithms of collectives: an all_reduce as a ring of permutes, a tree, a hierarchy."""

from mithril.partition.algorithms.asked import (
    ALGORITHMS,
    AS_ENGINES_DO,
    KNOWN,
    NATIVE,
    Algorithms,
)
from mithril.partition.algorithms.rewrite import carry_out

__all__ = ["ALGORITHMS", "AS_ENGINES_DO", "KNOWN", "NATIVE", "Algorithms", "carry_out"]
