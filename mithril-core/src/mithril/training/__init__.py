"""The loop that trains: `ml.train`."""

from mithril.training.history import History
from mithril.training.loop import Trained, train

__all__ = ["History", "Trained", "train"]
