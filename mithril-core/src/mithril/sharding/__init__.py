"""From the user's shardings to one sharding per value and one choice per node.

`candidates` collects what is possible, `choose` decides exactly, `reshard` finds the cheapest way
from one sharding to another. Nothing here knows an op by name.
"""

from mithril.sharding.candidates import Candidates, Constraints, collect
from mithril.sharding.choose import Choice, choose
from mithril.sharding.option import Option
from mithril.sharding.reshard import Move, Resharder
from mithril.sharding.trial import exchanges, part_sizes, seconds_of

__all__ = [
    "Candidates", "Choice", "Constraints", "Move", "Option", "Resharder", "choose", "collect",
    "exchanges", "part_sizes", "seconds_of",
]  # fmt: skip
