"""Put a graph into another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mithril.ir import Builder, Graph, Phase, Tensor, Value


def inline(
    graph: Graph, builder: Builder, operands: Sequence[Tensor], phase: Phase | None = None
) -> dict[str, Tensor]:
    """Append a graph's nodes to a builder and return the graph's outputs there.

    Args:
        graph: what is appended; its nodes keep where they come from.
        builder: where to.
        operands: a tensor of the builder for each input of the graph.
        phase: the phase of all nodes; by default they keep theirs.
    """
    made: dict[Value, Tensor] = dict(zip(graph.inputs, operands, strict=True))
    for node in graph.nodes:
        stamped = node if phase in (None, node.phase) else replace(node, phase=phase)
        results = builder.copy(stamped, [made[value] for value in node.inputs])
        made.update(zip(node.outputs, results, strict=True))
    return {name: made[value] for name, value in graph.outputs.items()}
