"""Placement: which devices run which part of a model, and when."""

from mithril.partition.pipeline.build_timetable import TimetableBuilder
from mithril.partition.pipeline.phases import (
    ExecutionPhase,
    Local,
    PhasedProgram,
    When,
    check_microbatch_reductions,
    hoist,
)
from mithril.partition.pipeline.placement import Part, Placement, assign_stages
from mithril.partition.pipeline.split import StageGraphs, split_by_stage
from mithril.partition.pipeline.stage_programs import SlotRef, StageBuilder, StageProgram

__all__ = [
    "ExecutionPhase",
    "Local",
    "Part",
    "PhasedProgram",
    "Placement",
    "SlotRef",
    "StageBuilder",
    "StageGraphs",
    "StageProgram",
    "TimetableBuilder",
    "When",
    "assign_stages",
    "check_microbatch_reductions",
    "hoist",
    "split_by_stage",
]
