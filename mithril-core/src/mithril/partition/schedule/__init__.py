"""Pipeline schedules: the known ones, users' tables, and the check of them all."""

from mithril.partition.schedule.check import check
from mithril.partition.schedule.files import read_file
from mithril.partition.schedule.known import KNOWN, make

__all__ = ["KNOWN", "check", "make", "read_file"]
