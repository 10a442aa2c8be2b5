"""Placement: which devices run which part of a model, and when."""

from mithril.partition.placement.assemble import Assembly
from mithril.partition.placement.classes import (
    Class,
    Classified,
    Local,
    When,
    check_joints,
    classify,
)
from mithril.partition.placement.parts import Parted, cut
from mithril.partition.placement.pieces import Cutter, Piece, Seat
from mithril.partition.placement.where import Part, Placement, assign

__all__ = [
    "Assembly", "Class", "Classified", "Cutter", "Local", "Part", "Parted", "Piece", "Placement",
    "Seat", "When", "assign", "check_joints", "classify", "cut",
]  # fmt: skip
