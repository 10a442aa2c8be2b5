"""Rematerialisation: which forward values are computed again for the backward, not kept for it."""

from mithril.partition.recompute.residuals import Residual, find_residuals, split_phases
from mithril.partition.recompute.rewrite import recompute, recompute_graph

__all__ = ["Residual", "find_residuals", "recompute", "recompute_graph", "split_phases"]
