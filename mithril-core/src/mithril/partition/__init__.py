"""From chosen shardings to a plan: local programs, explicit collectives, and their causes."""

from mithril.partition.buckets import bucket_gradients
from mithril.partition.spmd import localise

__all__ = ["bucket_gradients", "localise"]
