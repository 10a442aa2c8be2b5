"""The way from a traced graph to a plan, and the translation of the guides' flat options."""

from mithril.compiler.pipeline import COMPUTED_WITH, make_plan, partition_graph
from mithril.compiler.request import Request

__all__ = ["COMPUTED_WITH", "Request", "make_plan", "partition_graph"]
