"""Puts in the place of collectives those that carry them out by the algorithms asked for.

Each has the cause of the one in whose place it is, says which step of it it is, and has a price of
its own. Where a hierarchy needs it, axes of the program's mesh are cut into sub-axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mithril.cost import Hardware
from mithril.cost.pairs import price_cause
from mithril.ir import Algorithm, Builder, Cause, Constant, Graph, Node
from mithril.ir.op import Tensors
from mithril.ir.rewrite import all_nodes, inline, rewrite
from mithril.mesh import Mesh, list_finer_axes
from mithril.ops.collective import AxisIndex, Collective
from mithril.partition.algorithms.asked import Algorithms
from mithril.partition.algorithms.choose import Chooser, refine_for
from mithril.plan import Program


def carry_out(program: Program, hardware: Hardware, asked: Algorithms) -> Program:
    """Return the program with its collectives carried out as was asked for.

    Args:
        program: a local program.
        hardware: the profile that prices them.
        asked: the algorithm of each kind over each axis.
    """
    if not asked.of:
        return program
    mesh = refine_for(program.mesh, hardware, asked, all_nodes(program.graph))
    finer = _rename_axes(program.graph, list_finer_axes(program.mesh, mesh))
    placing = _Placing(Chooser(mesh, hardware, asked), mesh, hardware)
    graph = rewrite(finer, placing.visit)
    return replace(program, mesh=mesh, graph=graph) if placing.is_used else program


def _rename_axes(graph: Graph, finer: Mapping[str, tuple[str, ...]]) -> Graph:
    if all(parts == (axis,) for axis, parts in finer.items()):
        return graph

    def visit(builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        if not isinstance(node.op, Collective | AxisIndex):
            return None
        axes = tuple(part for axis in node.op.axes for part in finer[axis])
        return builder.copy(replace(node, op=replace(node.op, axes=axes)), operands)

    return rewrite(graph, visit)


@dataclass(slots=True)
class _Placing:
    """Puts graphs in the place of collectives.

    Args:
        chooser: finds them.
        mesh: of the program.
        hardware: the profile that prices what is issued.
    """

    chooser: Chooser
    mesh: Mesh
    hardware: Hardware
    is_used: bool = field(default=False, init=False)
    _indices: dict[object, Tensors] = field(default_factory=dict, init=False)

    def visit(self, builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        """Return what takes the place of a collective's results; None where it stays."""
        found = self.chooser.find(node)
        if found is None:
            return None
        self.is_used, (way, graph) = True, found
        steps = sum(inner.op.is_collective for inner in graph.nodes)
        numbers = iter(range(1, steps + 1))

        def append(builder: Builder, inner: Node, given: Tensors) -> Tensors:
            cause = None
            if isinstance(inner.op, Collective):
                step = Algorithm(way.name, node.op.name, _list_bytes(node), next(numbers), steps)
                nbytes = inner.op.count_bytes([value.type for value in inner.inputs])
                cause = describe_step(node, inner.op, nbytes, step, self.mesh, self.hardware)
            place = builder.at(scope=node.scope, source=node.source, phase=node.phase, cause=cause)
            with place:
                return self._apply(builder, inner, given)

        return list(inline(graph, builder, operands, append).values())

    def _apply(self, builder: Builder, inner: Node, given: Tensors) -> Tensors:
        if isinstance(inner.op, Constant):
            return [builder.constant(inner.op.value, inner.op.dtype)]
        if not isinstance(inner.op, AxisIndex):
            return builder.apply(inner.op, *given)
        key = builder, inner.op
        if key not in self._indices:
            self._indices[key] = builder.apply(inner.op)
        return self._indices[key]


def describe_step(
    node: Node, op: Collective, nbytes: int, algorithm: Algorithm, mesh: Mesh, hardware: Hardware
) -> Cause | None:
    """Return why a step is there: for what the whole is, at its own price.

    Args:
        node: the whole.
        op: what the step issues.
        nbytes: of it, as plans count them.
        algorithm: of which it is a step.
        mesh: the devices.
        hardware: the profile that prices it.
    """
    if node.cause is None:
        return None
    return replace(price_cause(node.cause, op, nbytes, mesh, hardware), algorithm=algorithm)


def _list_bytes(node: Node) -> tuple[int, ...]:
    assert isinstance(node.op, Collective), "it is asked of collectives"
    return tuple(node.op.count_bytes([value.type]) for value in node.inputs)


__all__ = ["carry_out", "describe_step"]
