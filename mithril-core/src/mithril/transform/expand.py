"""Replace fused ops by their expansions into smaller ops.

Two reasons to: the engine has no kernel for the op, or a dimension shall be split that only the
expansion can split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container

from mithril.errors import BackendError
from mithril.ir import Builder, Graph, Node, Tensor, Tensors, Value


def expand(graph: Graph, kernels: Container[str]) -> Graph:
    """Return the graph in which every op has a kernel.

    Args:
        graph: any graph.
        kernels: names of the ops the engine runs itself.

    Raises:
        BackendError: an op has neither a kernel nor an expansion.
    """
    while not all(node.op.name in kernels for node in graph.nodes):
        graph = _expand_where(graph, lambda node: node.op.name not in kernels)
    return graph


def expand_nodes(graph: Graph, nodes: Collection[Node], kernels: Container[str]) -> Graph:
    """Return the graph in which some of its nodes are expanded, into ops that have a kernel."""
    return expand(_expand_where(graph, lambda node: node in nodes), kernels)


def _expand_where(graph: Graph, is_wanted: Callable[[Node], bool]) -> Graph:
    builder = Builder()
    made: dict[Value, Tensor] = {}
    for value in graph.inputs:
        made[value] = builder.input(value.type, value.name)
    for node in graph.nodes:
        operands = [made[value] for value in node.inputs]
        if is_wanted(node):
            with builder.at(scope=node.scope, source=node.source, phase=node.phase):
                results = _expanded(node, operands)
        else:
            results = builder.copy(node, operands)
        for old, new in zip(node.outputs, results, strict=True):
            made[old] = builder.named(new, old.name)
    return builder.build({name: made[v] for name, v in graph.outputs.items()})


def _expanded(node: Node, operands: Tensors) -> Tensors:
    results = node.op.expand(operands)
    if results is None:
        raise BackendError(
            f"op '{node.op.name}' at {node.where()} has no kernel in this backend and no "
            f"expansion; add a kernel"
        )
    return results
