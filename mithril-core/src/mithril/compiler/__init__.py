"""The way from a traced graph to a plan, and the translation of the guides' flat options."""

from mithril.compiler.partitioning import COMPUTED_WITH
from mithril.compiler.pipeline import make_plan
from mithril.compiler.request import Request
from mithril.compiler.stages import Batch, check_schedule, placement_of

__all__ = ["COMPUTED_WITH", "Batch", "Request", "check_schedule", "make_plan", "placement_of"]
