"""Batches of data on the devices of a mesh: `ml.data.batches`."""

from mithril.data.loader import Batches, batches

__all__ = ["Batches", "batches"]
