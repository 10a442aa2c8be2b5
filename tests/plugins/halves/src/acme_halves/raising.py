"""Raises as it is imported."""

raise RuntimeError("no licence found")
