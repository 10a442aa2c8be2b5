"""Replace fused ops an engine has no kernel for by their expansions into smaller ops."""

from __future__ import annotations

from collections.abc import Container

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
    if all(node.op.name in kernels for node in graph.nodes):
        return graph
    builder = Builder()
    made: dict[Value, Tensor] = {}
    for value in graph.inputs:
        made[value] = builder.input(value.type, value.name)
    for node in graph.nodes:
        operands = [made[value] for value in node.inputs]
        if node.op.name in kernels:
            results: Tensors = builder.copy(node, operands)
        else:
            with builder.at(scope=node.scope, source=node.source, phase=node.phase):
                results = _expanded(node, operands)
        for old, new in zip(node.outputs, results, strict=True):
            made[old] = builder.named(new, old.name)
    return expand(builder.build({name: made[v] for name, v in graph.outputs.items()}), kernels)


def _expanded(node: Node, operands: Tensors) -> Tensors:
    results = node.op.expand(operands)
    if results is None:
        raise BackendError(
            f"op '{node.op.name}' at {node.where()} has no kernel in this backend and no "
            f"expansion; add a kernel"
        )
    return results
