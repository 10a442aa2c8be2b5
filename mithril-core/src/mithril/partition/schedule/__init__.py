"""Pipeline schedules: the known ones, users' tables, and the simulator that checks them all."""

from mithril.partition.schedule.check import check
from mithril.partition.schedule.files import read_file
from mithril.partition.schedule.known import KNOWN, make
from mithril.partition.schedule.simulate import Costs, Timeline, simulate

__all__ = ["KNOWN", "Costs", "Timeline", "check", "make", "read_file", "simulate"]
