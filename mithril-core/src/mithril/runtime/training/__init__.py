"""Training: the step as one plan."""

from mithril.runtime.training.diloco import DilocoState, DilocoStep
from mithril.runtime.training.make_step import train_step
from mithril.runtime.training.state import Metrics, TrainState
from mithril.runtime.training.step import TrainStep

__all__ = ["DilocoState", "DilocoStep", "Metrics", "TrainState", "TrainStep", "train_step"]
