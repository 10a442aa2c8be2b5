"""Copies between a device and the host arena: memory beside the device's own (`engine.host_arena`).

What `to_host` makes lies in the arena, where nobody computes: it is brought back by `from_host`,
handed through a loop as a stack, or kept between programs. The values stay the same, so that any
sharding passes through; the cost is what goes over the link between device and host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from mithril.errors import GraphError
from mithril.ir.graph import Graph, Node, Value
from mithril.ir.op import Cost, Cotangents, Op, Tensors, Types, register
from mithril.ir.operand import apply_one
from mithril.ir.rewrite import all_nodes, regions
from mithril.ir.rule import FactorDims, Rule

ARENAS = ("memory", "file")
"""Where a host arena lies: in memory, or in a file without a name that is mapped into it."""


@register
@dataclass(frozen=True)
class ToHost(Op):
    """Copies a tensor into the host arena.

    Args:
        arena: one of `ARENAS`.
    """

    name: ClassVar[str] = "to_host"
    arena: str = "memory"

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [from_host(cotangents[0])]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _copy_rule(inputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, outputs[0].nbytes)


@register
@dataclass(frozen=True)
class FromHost(Op):
    """Copies a tensor from the host arena, not before the second operand exists if there is one.

    Args:
        is_last: whether nobody reads the copy in the arena after this.
    """

    name: ClassVar[str] = "from_host"
    is_last: bool = False

    def infer(self, inputs: Types) -> Types:
        return [inputs[0]]

    def gradient(self, inputs: Tensors, outputs: Tensors, cotangents: Cotangents) -> Cotangents:
        return [to_host(cotangents[0]), *([None] * (len(inputs) - 1))]

    def rule(self, inputs: Types, outputs: Types) -> Rule:
        return _copy_rule(inputs)

    def cost(self, inputs: Types, outputs: Types) -> Cost:
        return Cost(0, outputs[0].nbytes)


def _copy_rule(inputs: Types) -> Rule:
    """Return the rule of a copy of the first operand; the others are only waited for."""
    sizes = {f"d{i}": size for i, size in enumerate(inputs[0].shape)}
    dims: FactorDims = tuple((name,) if size > 1 else () for name, size in sizes.items())
    unseen: list[FactorDims] = [((),) * type.rank for type in inputs[1:]]
    ignored = frozenset(range(1, len(inputs)))
    return Rule(sizes, (dims, *unseen), (dims,), linear=((0,),), ignored=ignored)


def to_host(x: Any, *, arena: str = "memory") -> Any:
    """Return a copy of x in the host arena, which `from_host` brings back.

    Args:
        x: any tensor.
        arena: `memory`, or `file` for a file without a name that is mapped into memory.

    Returns:
        The elements, shape and dtype of x.

    >>> to_host(backend.array([1, 2])).numpy()
    array([1, 2], dtype=int32)
    """
    return apply_one(ToHost(arena), x)


def from_host(x: Any) -> Any:
    """Return a copy on the device of what lies in the host arena.

    Args:
        x: what `to_host` made.

    Returns:
        The elements, shape and dtype of x.

    >>> from_host(to_host(backend.array([1, 2]))).numpy()
    array([1, 2], dtype=int32)
    """
    return apply_one(FromHost(), x)


# ------------------------------------------------------------------ where values lie


def find_on_host(graph: Graph) -> frozenset[Value]:
    """Return the values of a graph that lie in the host arena; those of bodies are asked by body.

    What copies make lies there, and stacks of it that a loop makes; and what a graph is given only
    to bring it back.

    Args:
        graph: a local one, or the body of a loop.
    """
    if not any(isinstance(node.op, ToHost | FromHost) or node.op.bodies for node in graph.nodes):
        return frozenset()
    uses = graph.uses()
    found = {value for value in graph.inputs if _is_brought_back(value, uses.get(value, ()))}
    for node in graph.nodes:
        if isinstance(node.op, ToHost):
            found.update(node.outputs)
        elif node.op.bodies:
            found.update(_find_made(node))
    return frozenset(found)


def uses_host(graph: Graph) -> bool:
    """Return whether something is copied to the host arena, or from it, in a graph."""
    return any(isinstance(node.op, ToHost | FromHost) for node in all_nodes(graph))


def _find_made(node: Node) -> Iterator[Value]:
    """Yield the results of a loop that are stacks of what its body puts into the arena."""
    for body in node.op.bodies:
        inside = find_on_host(body)
        for result, value in zip(node.outputs, body.outputs.values(), strict=True):
            if value in inside and value not in body.inputs:
                yield result


def _is_brought_back(value: Value, uses: Any) -> bool:
    return bool(uses) and all(_brings_back(node, position) for node, position in uses)


def _brings_back(node: Node, position: int) -> bool:
    """Return whether a node reads an operand as one that lies in the host arena."""
    if isinstance(node.op, FromHost):
        return position == 0
    slices = len(node.op.slices)
    if not node.op.bodies or position < len(node.inputs) - slices:
        return False
    return all(
        _is_brought_back(body.inputs[position], body.uses().get(body.inputs[position], ()))
        for body in node.op.bodies
    )


def verify_host(graph: Graph) -> None:
    """Raise where something computes with a value that lies in the host arena.

    Raises:
        GraphError: it does.
    """
    for region in regions(graph):
        on_host = find_on_host(region.graph)
        for node in region.graph.nodes:
            for position, value in enumerate(node.inputs):
                if value in on_host and not _brings_back(node, position):
                    raise GraphError(
                        f"{node.where()} computes with {value.type}, which lies in the host "
                        f"arena; bring it back with from_host before"
                    )


__all__ = ["FromHost", "ToHost"]
# The functions are not offered to users: a value on the host is no operand of anything else.
