"""From the user's shardings to one sharding per value and one choice per node.

`layout` says what is given of one tensor, `constraints` of all values of a graph, `candidates`
collects what is possible, `choose` decides exactly, `reshard` finds the cheapest way from one
sharding to another. A search (`search`, `find`) decides what nobody has said, too. Nothing here
knows an op by name.
"""

from mithril.sharding.candidates import Candidates, collect
from mithril.sharding.choose import Choice, choose
from mithril.sharding.constraints import Constraints, find_constraints, list_constrained
from mithril.sharding.find import Way, find
from mithril.sharding.layout import FREE, UNSAID, Layout
from mithril.sharding.move_prices import MovePrices
from mithril.sharding.moves import Move
from mithril.sharding.option import Option
from mithril.sharding.reshard import Resharder
from mithril.sharding.said import (
    ExpertProduct,
    find_expert_dimensions,
    find_expert_products,
    find_experts,
    find_sequences,
    say_layouts,
)
from mithril.sharding.search import LATENCY, MEMORY, SEARCHED, SEARCHED_REST, Known, Search
from mithril.sharding.trial import part_sizes
from mithril.sharding.widen import find_confined, find_cuts, find_expandable

__all__ = [
    "FREE", "LATENCY", "MEMORY", "SEARCHED", "SEARCHED_REST", "UNSAID", "Candidates", "Choice",
    "Constraints", "ExpertProduct", "Known", "Layout", "Move", "MovePrices", "Option", "Resharder",
    "Search", "Way", "choose", "collect", "find", "find_confined", "find_constraints", "find_cuts",
    "find_expandable", "find_expert_dimensions", "find_expert_products", "find_experts",
    "find_sequences", "list_constrained", "part_sizes", "say_layouts",
]  # fmt: skip
