"""Placement: which devices run which part of a model, and when."""

from mithril.partition.pipeline.build_timetable import TimetableBuilder
from mithril.partition.pipeline.phases import (
    Local,
    check_microbatch_reductions,
    hoist,
)
from mithril.partition.pipeline.placement import Part, Placement, assign_stages
from mithril.partition.pipeline.split import StageGraphs, split_by_stage
from mithril.partition.pipeline.stage_programs import StageBuilder

__all__ = [
    "Local",
    "Part",
    "Placement",
    "StageBuilder",
    "StageGraphs",
    "TimetableBuilder",
    "assign_stages",
    "check_microbatch_reductions",
    "hoist",
    "split_by_stage",
]
