"""Tuning: the best strategy for a model on some devices, whether they are there or not.

`space` lists configurations, `bound` says what each costs at least and about, `recipes` how tensors
are split then, `price` plans them, `search` chooses, and `measure` runs the best few.
"""

from mithril.tuning.tune import auto_tune

__all__ = ["auto_tune"]
