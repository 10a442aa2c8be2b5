"""Rematerialisation: which forward values are computed again for the backward, not kept for it."""

from mithril.partition.recompute.asked import Recompute
from mithril.partition.recompute.describe import describe_policy
from mithril.partition.recompute.drop import drop_in_layers
from mithril.partition.recompute.residuals import Residual, find_residuals, split_phases
from mithril.partition.recompute.rewrite import Recomputed, recompute, rewrite_program

__all__ = [
    "Recompute",
    "Recomputed",
    "Residual",
    "describe_policy",
    "drop_in_layers",
    "find_residuals",
    "recompute",
    "rewrite_program",
    "split_phases",
]
