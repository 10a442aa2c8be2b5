"""Ops that run a graph of their own: a loop, a checkpoint.

Such a graph is a *body*. Passes reach it through `Op.bodies` and put another in its place with
`Op.with_bodies` (`ir.rewrite` does both), so that no pass asks which op it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from mithril.ir.graph import Graph
from mithril.ir.op import Cost, Op, Types


@dataclass(frozen=True)
class Nested(Op):
    """An op with one body.

    Args:
        body: the graph.
    """

    body: Graph

    @property
    def bodies(self) -> tuple[Graph, ...]:  # type: ignore[override]  # one for each op
        """The body."""
        return (self.body,)

    def with_bodies(self, bodies: Sequence[Graph]) -> Self:
        """Return the op with another body."""
        (body,) = bodies
        return replace(self, body=body)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        """Return the work of the body, in all iterations."""
        work = [node.cost() for node in self.body.nodes]
        return Cost(
            self.iterations * sum(cost.flops for cost in work),
            self.iterations * sum(cost.bytes for cost in work),
        )
