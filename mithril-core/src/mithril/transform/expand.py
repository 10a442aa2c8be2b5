"""Replace fused ops by their expansions into smaller ops.

Two reasons to: the engine has no kernel for the op, or a dimension shall be split that only the
expansion can split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from mithril.engine import KernelNames
from mithril.errors import BackendError, listing
from mithril.ir import Builder, Graph, Node, Op, Tensors
from mithril.ir.rewrite import all_nodes, rewrite
from mithril.ops.definition import UserOp

RUN_WITHOUT_KERNEL = frozenset({"axis_index", "checkpoint", "repeat", "wait"})
"""Ops that what runs a program runs itself, or that are taken out before."""


def expand(graph: Graph, kernels: Container[str]) -> Graph:
    """Return the graph in which every op has a kernel.

    Args:
        graph: any graph.
        kernels: names of the ops the engine runs itself.

    Raises:
        BackendError: an op has neither a kernel nor an expansion.
    """

    def is_wanted(node: Node) -> bool:
        return not node.op.bodies and node.op.has_kernel and node.op.name not in kernels

    while any(map(is_wanted, all_nodes(graph))):
        graph = _expand_where(graph, is_wanted, kernels)
    return graph


def expand_local(graph: Graph, kernels: Container[str]) -> Graph:
    """Return a local graph in which every op that can be expanded has a kernel.

    The ops of the partitioner, collectives among them, are every engine's and stay.
    """

    def is_wanted(node: Node) -> bool:
        return node.op.name not in kernels and type(node.op).expand is not Op.expand

    while any(map(is_wanted, all_nodes(graph))):
        graph = _expand_where(graph, is_wanted, kernels)
    return graph


def list_without_kernel(graph: Graph, kernels: Container[str]) -> list[str]:
    """Return the ops of a local graph that need a kernel and have none, collectives left aside."""
    found = {
        node.op.name
        for node in all_nodes(graph)
        if node.op.has_kernel and not (node.op.is_collective or node.op.name in kernels)
    }
    return sorted(found - RUN_WITHOUT_KERNEL)


def expand_nodes(graph: Graph, nodes: Collection[Node], kernels: Container[str]) -> Graph:
    """Return the graph in which some of its nodes are expanded, into ops that have a kernel."""
    return expand(_expand_where(graph, lambda node: node in nodes, kernels), kernels)


def _expand_where(
    graph: Graph, is_wanted: Callable[[Node], bool], kernels: Container[str]
) -> Graph:
    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        return _expand(node, operands, kernels) if is_wanted(node) else None

    return rewrite(graph, visit)


def _expand(node: Node, operands: Tensors, kernels: Container[str]) -> Tensors:
    results = node.op.expand(operands)
    if results is None:
        backend = kernels.backend if isinstance(kernels, KernelNames) else "this one"
        remedy = "add a kernel"
        if isinstance(node.op, UserOp):
            known = listing(node.op.definition.kernels)
            remedy = f"it has kernels for {known}; give define_op one for '{backend}', or expand=…"
        place = f" at {node.where()}" if node.scope or node.source else ""
        raise BackendError(
            f"op '{node.op.name}'{place} has no kernel in backend '{backend}' and no expansion; "
            f"{remedy}"
        )
    return results
