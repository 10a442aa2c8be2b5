"""What people read of a plan: why it moves what it moves, who holds what, and when it runs.

A report reads frozen data, such as a plan or what was chosen, and returns text or plain data. It
stands below what makes plans, because some of what it says becomes notes of a plan.
"""

from mithril.report.device_graph import DeviceGraph
from mithril.report.explain import check_name, explain
from mithril.report.hints import hints
from mithril.report.partition_map import partition_map
from mithril.report.tables import print_collectives, print_shapes
from mithril.report.timeline import draw

__all__ = [
    "DeviceGraph", "check_name", "draw", "explain", "hints", "partition_map", "print_collectives",
    "print_shapes",
]  # fmt: skip
