"""Strategies: how a model is split and run on a mesh, as data that is kept in files.

`data` is what is said, `files` its JSON, `text` what people read, `apply` what compile makes of it.
"""

from mithril.runtime.strategy.data import OBJECTIVES, Alternative, Findings
from mithril.runtime.strategy.strategy import Strategy

__all__ = ["OBJECTIVES", "Alternative", "Findings", "Strategy"]
