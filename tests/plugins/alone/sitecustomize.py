"""Hides this project's own backend packages, whichever are installed: read by Python as it starts.

Tests of other people's plugins then see the same list everywhere.
"""

import importlib.metadata

OWN = {"mithril-jax", "mithril-torch", "mithril-mlx"}
_every = importlib.metadata.entry_points


def entry_points(**wanted):
    """Return the entry points of other packages."""
    others = [e for e in _every(**wanted) if e.dist is None or e.dist.name not in OWN]
    return importlib.metadata.EntryPoints(others)


importlib.metadata.entry_points = entry_points
