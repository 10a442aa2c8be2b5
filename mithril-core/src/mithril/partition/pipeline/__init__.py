"""Placement: which devices run which part of a model, and when."""

from mithril.partition.pipeline.build_timetable import Assembly
from mithril.partition.pipeline.phases import (
    Class,
    Classified,
    Local,
    When,
    check_joints,
    classify,
)
from mithril.partition.pipeline.placement import Part, Placement, assign
from mithril.partition.pipeline.split import Parted, cut
from mithril.partition.pipeline.stage_programs import Cutter, Piece, Seat

__all__ = [
    "Assembly", "Class", "Classified", "Cutter", "Local", "Part", "Parted", "Piece", "Placement",
    "Seat", "When", "assign", "check_joints", "classify", "cut",
]  # fmt: skip
