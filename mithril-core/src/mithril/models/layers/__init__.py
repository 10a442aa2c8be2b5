"""The layers Mithril comes with, each a short function over tensors.

A module says in `__all__` which layers it has; `mithril.models` has them all.
"""
