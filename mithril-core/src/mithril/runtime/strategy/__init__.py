"""Strategies: how a model is split and run on a mesh, as data that is kept in files.

`strategy` is the data, `files` its JSON, `text` what people read, `apply` what compile makes of it.
"""

from mithril.runtime.strategy.strategy import OBJECTIVES, Alternative, Findings, Strategy

__all__ = ["OBJECTIVES", "Alternative", "Findings", "Strategy"]
