"""The way from a traced graph to a plan, and the translation of the guides' flat options."""

from mithril.compiler.pipeline import CHECKS, GRAPH_PASSES, PROGRAM_PASSES, lay_out, make_plan
from mithril.compiler.request import KEEP_ALL, PlanOptions, Request
from mithril.cost import Target
from mithril.partition.pipeline.model_placement import (
    Batch,
    accumulate_over,
    check_schedule,
    placement_of,
)
from mithril.partition.search import COMPUTED_WITH

__all__ = [
    "CHECKS", "COMPUTED_WITH", "GRAPH_PASSES", "KEEP_ALL", "PROGRAM_PASSES", "Batch", "PlanOptions",
    "Request", "Target", "accumulate_over", "check_schedule", "lay_out", "make_plan",
    "placement_of",
]  # fmt: skip
