"""Compression of gradients where devices add them up: a rewrite of local programs."""

from mithril.partition.compression.asked import PLAIN, Compression
from mithril.partition.compression.insert import compress_gradients
from mithril.partition.compression.mark import mark_gradients

__all__ = ["PLAIN", "Compression", "compress_gradients", "mark_gradients"]
