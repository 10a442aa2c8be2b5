"""Layers in stages of equal time: `cut` finds where to cut, the rest are options of compile."""

from mithril.runtime.balancing.balance import Balancing, Job, balance_stages, read_balancing
from mithril.runtime.balancing.stage_search import search_stages

__all__ = ["Balancing", "Job", "balance_stages", "read_balancing", "search_stages"]
