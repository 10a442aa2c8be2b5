"""Decomposition: products are computed part by part while other parts of their operands travel."""

from mithril.partition.decompose.choose import (
    Known,
    cut_where_it_pays,
    decompose_all,
    decompose_where_it_pays,
    take_apart,
)
from mithril.partition.decompose.sites import Site, find_sites
from mithril.partition.decompose.write import CHUNKS, RING

__all__ = [
    "CHUNKS",
    "RING",
    "Known",
    "Site",
    "cut_where_it_pays",
    "decompose_all",
    "decompose_where_it_pays",
    "find_sites",
    "take_apart",
]
