"""Replace fused ops by their expansions into smaller ops.

Two reasons to: the engine has no kernel for the op, or a dimension shall be split that only the
expansion can split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container
from dataclasses import replace

from mithril.engine import KernelNames
from mithril.errors import BackendError, listing
from mithril.ir import Builder, Checkpoint, Graph, Node, Op, Repeat, Tensor, Tensors, Value
from mithril.ir.repeat import all_nodes
from mithril.ops.definition import UserOp


def expand(graph: Graph, kernels: Container[str]) -> Graph:
    """Return the graph in which every op has a kernel.

    Args:
        graph: any graph.
        kernels: names of the ops the engine runs itself.

    Raises:
        BackendError: an op has neither a kernel nor an expansion.
    """

    def is_wanted(node: Node) -> bool:
        if isinstance(node.op, Repeat | Checkpoint) or not node.op.has_kernel:
            return False
        return node.op.name not in kernels

    while any(map(is_wanted, all_nodes(graph))):
        graph = _expand_where(graph, is_wanted, kernels)
    return graph


def expand_local(graph: Graph, kernels: Container[str]) -> Graph:
    """Return a local graph in which every op that can be expanded has a kernel.

    The ops of the partitioner, collectives among them, are every engine's and stay.
    """

    def is_wanted(node: Node) -> bool:
        if isinstance(node.op, Repeat | Checkpoint) or node.op.name in kernels:
            return False
        return type(node.op).expand is not Op.expand

    while any(map(is_wanted, all_nodes(graph))):
        graph = _expand_where(graph, is_wanted, kernels)
    return graph


def expand_nodes(graph: Graph, nodes: Collection[Node], kernels: Container[str]) -> Graph:
    """Return the graph in which some of its nodes are expanded, into ops that have a kernel."""
    return expand(_expand_where(graph, lambda node: node in nodes, kernels), kernels)


def _expand_where(
    graph: Graph, is_wanted: Callable[[Node], bool], kernels: Container[str]
) -> Graph:
    builder = Builder()
    made: dict[Value, Tensor] = {}
    for value in graph.inputs:
        made[value] = builder.input(value.type, value.name)
    for node in graph.nodes:
        operands = [made[value] for value in node.inputs]
        if isinstance(node.op, Repeat | Checkpoint):
            body = _expand_where(node.op.body, is_wanted, kernels)
            results: Tensors = builder.copy(replace(node, op=replace(node.op, body=body)), operands)
        elif is_wanted(node):
            with builder.at(scope=node.scope, source=node.source, phase=node.phase):
                results = _expand(node, operands, kernels)
        else:
            results = builder.copy(node, operands)
        for old, new in zip(node.outputs, results, strict=True):
            made[old] = builder.named(new, old.name)
    return builder.build({name: made[v] for name, v in graph.outputs.items()})


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
