"""What programs have in common that take equally long, such as those of equal stages.

Stages of equal blocks have programs that are alike but for names. What is found by trying in one of
them holds for the others.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from mithril.cost import Hardware
from mithril.cost.levels import Link
from mithril.ir import Graph, Node, Op, Value
from mithril.mesh import Mesh
from mithril.ops.collective import collective_of
from mithril.plan import Program


def find_form(program: Program, hardware: Hardware) -> Hashable:
    """Return what is equal for programs that differ in nothing but the names of layers and values.

    The links that collectives go over are a part of it.

    Args:
        program: a local one.
        hardware: the profile that has the links.
    """
    mesh = program.mesh
    sizes = tuple((axis.name, axis.size) for axis in mesh.axes)
    return sizes, _Reader(mesh, hardware).read(program.graph)


@dataclass(slots=True)
class _Reader:
    """Reads a graph; values and layers are numbered as they appear.

    Args:
        mesh: the devices.
        hardware: the profile.
    """

    mesh: Mesh
    hardware: Hardware
    _values: dict[Value, int] = field(default_factory=dict)
    _words: dict[str, int] = field(default_factory=dict)
    _links: dict[tuple[str, tuple[str, ...]], Link] = field(default_factory=dict)

    def read(self, graph: Graph) -> Hashable:
        """Return what is equal for graphs that are alike."""
        inputs = tuple((self._number(value), value.type) for value in graph.inputs)
        nodes = tuple(map(self._read_node, graph.nodes))
        return inputs, nodes, tuple(map(self._number, graph.outputs.values()))

    def _read_node(self, node: Node) -> Hashable:
        scope = tuple(self._words.setdefault(w, len(self._words)) for w in node.scope.split("."))
        inputs = tuple(map(self._number, node.inputs))
        outputs = tuple((self._number(value), value.type) for value in node.outputs)
        step = None if node.cause is None else node.cause.algorithm
        return self._read_op(node.op), node.phase, scope, inputs, outputs, step

    def _read_op(self, op: Op) -> Hashable:
        if op.bodies:
            said = tuple(x for x in op.attributes.values() if not isinstance(x, Graph))
            return type(op), said, tuple(map(self.read, op.bodies))
        collective = collective_of(op)
        if collective is None:
            return op
        key = collective.name, tuple(collective.axes)
        if key not in self._links and not set(key[1]) - set(self.mesh.names):
            self._links[key] = self.hardware.link(self.mesh, key[1], key[0])
        return op, self._links.get(key)

    def _number(self, value: Value) -> int:
        return self._values.setdefault(value, len(self._values))


__all__ = ["find_form"]
