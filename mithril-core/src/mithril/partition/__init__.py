"""From chosen shardings to a plan: local programs with explicit collectives, and why they are there."""

from mithril.partition.buckets import bucket_gradients
from mithril.partition.explain import explain, summarise
from mithril.partition.spmd import localise

__all__ = ["bucket_gradients", "explain", "localise", "summarise"]
