"""Ids and targets that can be looked at before anything runs: they come from host memory.

A compiled program cannot refuse an id that names no row. Where what an op chooses by is computed
from nothing but NumPy arrays and numbers that a user passes in, it is computed here first, by
NumPy, and refused with the words of the NumPy backend, whatever the backend. What lies on devices
is not looked at: that would wait for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mithril.engine.kernels import KERNELS
from mithril.errors import MithrilError
from mithril.ir import Graph, Node, Op, Value
from mithril.ops.elementwise import Elementwise
from mithril.ops.index import Iota
from mithril.ops.shape import Movement

Step = tuple[Callable[..., Any], tuple[Value, ...], Value]
"""A kernel, its operands and its result."""
HOST = (np.ndarray, np.generic, int)


@dataclass(frozen=True, slots=True, eq=False)
class IndexUse:
    """A node that chooses by integers, and how these follow from inputs.

    Args:
        node: the node.
        position: which operand the integers are.
        inputs: the inputs that they are computed from.
        steps: the computations, in order.
    """

    node: Node
    position: int
    inputs: tuple[Value, ...]
    steps: tuple[Step, ...]

    def check(self, host: Mapping[str, Any]) -> None:
        """Raise unless the integers can be what the node chooses by.

        Args:
            host: values of inputs that lie in host memory, by name.

        Raises:
            ShapeError: one cannot.
        """
        if any(value.name not in host for value in self.inputs):
            return
        known = {v: np.asarray(host[v.name], v.type.dtype.numpy) for v in self.inputs}
        for kernel, operands, result in self.steps:
            known[result] = kernel(*(known[value] for value in operands))
        types = [value.type for value in self.node.inputs]
        try:
            self.node.op.check_index(types, known[self.node.inputs[self.position]])
        except MithrilError as error:
            place = [f"'{self.node.scope}'"] if self.node.scope else []
            place += [str(self.node.source)] if self.node.source else []
            raise type(error)(f"{error} (in {', '.join(place)})" if place else str(error)) from None


def find_index_uses(graph: Graph) -> tuple[IndexUse, ...]:
    """Return the nodes whose integers follow from inputs by nothing but integers and booleans."""
    makers = {result: node for node in graph.nodes for result in node.outputs}
    inputs = set(graph.inputs)
    found = []
    for node in graph.nodes:
        if type(node.op).check_index is Op.check_index:
            continue
        for position in node.op.indices:
            use = _trace_back(node, position, makers, inputs)
            found += [] if use is None else [use]
    return tuple(found)


def check_host_indices(
    uses: Sequence[IndexUse], names: Iterable[str], given: Iterable[object]
) -> None:
    """Raise unless what a user passes in host memory can be what nodes choose by.

    Args:
        uses: of the graph.
        names: of its inputs.
        given: what is passed for each.

    Raises:
        ShapeError: an id is no row, or a target no class.
    """
    if uses:
        pairs = zip(names, given, strict=False)
        host = {name: x for name, x in pairs if isinstance(x, HOST)}
        if host:  # nothing is looked at where all lies on devices
            for use in uses:
                use.check(host)


def _trace_back(
    node: Node, position: int, makers: Mapping[Value, Node], inputs: set[Value]
) -> IndexUse | None:
    """Return how an operand follows from inputs; None where it does by something else, too."""
    needed: dict[Value, None] = {}
    steps: dict[Value, Step] = {}

    def follow(value: Value) -> bool:
        if value.type.dtype.is_float:
            return False
        if value in inputs:
            needed[value] = None
            return True
        maker = makers[value]
        is_plain = isinstance(maker.op, Elementwise | Movement | Iota) or not maker.inputs
        if not is_plain or len(maker.outputs) > 1 or not all(map(follow, maker.inputs)):
            return False
        kernel = KERNELS[maker.op.name](maker.op, [v.type for v in maker.inputs], np)
        steps.setdefault(value, (kernel, maker.inputs, value))
        return True

    if not follow(node.inputs[position]) or not needed:
        return None
    return IndexUse(node, position, tuple(needed), tuple(steps.values()))
