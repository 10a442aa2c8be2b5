"""Training: the step as one plan."""

from mithril.runtime.training.state import Metrics, TrainState
from mithril.runtime.training.step import TrainStep, train_step

__all__ = ["Metrics", "TrainState", "TrainStep", "train_step"]
