"""Pictures of meshes, plans, arrays and profiles: as figures, and as text in the terminal.

Each `plot_…` returns a matplotlib Figure, and saves it where `path=` is given; no window is opened,
and nothing of `matplotlib.pyplot` is touched. matplotlib is an extra, `pip install
"mithril-core[plot]"`. Each `print_…` prints the same in the terminal, with rich, and needs nothing
else. Devices that are equal are drawn once, so that 512 of them can be read.

>>> import mithril as ml
>>> ml.visualize.sharding(ml.NumpyBackend(ml.Mesh(data=2)).ones(4, sharding=ml.P("data")))
Array float32[4] P('data') on Mesh(data=2)
┌───────────────┬─────┬─────┐
│ dimension 0 → │ 0:2 │ 2:4 │
├───────────────┼─────┼─────┤
│ devices       │ 0   │ 1   │
└───────────────┴─────┴─────┘
each device holds (2,)
[1., 1., 1., 1.]
"""

from mithril.visualize.communication import plot_communication_graph, print_communication_graph
from mithril.visualize.memory import plot_memory, print_memory
from mithril.visualize.meshes import plot_mesh, print_mesh
from mithril.visualize.partition import plot_partition_map, print_partition_map
from mithril.visualize.schedules import plot_schedule, print_schedule
from mithril.visualize.shardings import plot_sharding, sharding
from mithril.visualize.timelines import plot_timeline, print_timeline
from mithril.visualize.tradeoff import plot_memory_tradeoff, print_memory_tradeoff
from mithril.visualize.utilization import plot_device_utilization, print_device_utilization

__all__ = [
    "plot_communication_graph", "plot_device_utilization", "plot_memory", "plot_memory_tradeoff",
    "plot_mesh", "plot_partition_map", "plot_schedule", "plot_sharding", "plot_timeline",
    "print_communication_graph", "print_device_utilization", "print_memory",
    "print_memory_tradeoff", "print_mesh", "print_partition_map", "print_schedule",
    "print_timeline", "sharding",
]  # fmt: skip
