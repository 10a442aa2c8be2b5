"""Layers in stages of equal time: `cut` finds where to cut, `balance` is the option of compile."""

from mithril.runtime.balancing.balance import Balancing, Job, balance_stages, read_balancing

__all__ = ["Balancing", "Job", "balance_stages", "read_balancing"]
