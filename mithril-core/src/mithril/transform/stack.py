"""Cut loops over stacked parameters into loops over parts of the stacks, one after another.

Each part is a loop of its own, so that the stages of a pipeline can have one each, with its share
of the parameters: a parameter that only such a loop reads becomes an input for each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mithril.ir import Builder, Graph, Node, Repeat, Tensor, Tensors, Value
from mithril.ir.repeat import part_of
from mithril.ir.rewrite import copy_graph, rewrite
from mithril.ops import Cast, concatenate


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a stack, along its leading dimension.

    Args:
        name: of the input it is.
        stack: name of the whole.
        start: of the part.
        stop: of the part.
        part: which of the parts it is.
    """

    name: str
    stack: str
    start: int
    stop: int
    part: int


def cut_loops(graph: Graph, parts: Mapping[str, int]) -> tuple[Graph, tuple[Slice, ...]]:
    """Return the graph in which loops are cut, and what became of their stacks.

    Args:
        graph: forward.
        parts: for the path of a loop into how many equal parts it is cut.
    """
    cutter = _Cutter(graph, parts)
    cut = rewrite(graph, cutter.visit)
    whole = {value.name for value in cutter.stacks}
    inputs = tuple(value for value in cut.inputs if value.name not in whole)
    return replace(cut, inputs=inputs), tuple(found for found, _ in cutter.slices.values())


class _Cutter:
    def __init__(self, graph: Graph, parts: Mapping[str, int]) -> None:
        self._graph = graph
        self._parts = parts
        self._producers = graph.producers()
        self._uses = graph.uses()
        self.slices: dict[tuple[str, int], tuple[Slice, Tensor]] = {}
        self.stacks = self._only_stacks()

    def visit(self, builder: Builder, node: Node, operands: Tensors) -> Tensors | None:
        """Append the parts of a loop that is cut."""
        if isinstance(node.op, Repeat):
            count = self._parts.get(node.scope)
            return None if count is None else self._loop(builder, node, node.op, operands, count)
        if self.stacks.isdisjoint(node.inputs):
            return None
        return operands  # the cast of a stack: each part casts its own

    def _loop(
        self, builder: Builder, node: Node, op: Repeat, operands: Tensors, count: int
    ) -> Tensors:
        first = len(node.inputs) - op.stacked
        state, same = operands[: op.carried], operands[op.carried : first]
        each = replace(op, count=op.count // count)
        stacked = list(zip(node.inputs[first:], operands[first:], strict=True))
        made: list[Tensors] = []
        for part in range(count):
            path, each = part_of(node.scope, part), replace(each, body=copy_graph(op.body))
            with builder.at(scope=path, source=node.source, phase=node.phase):
                own = [self._slice(builder, v, x, part, each.count) for v, x in stacked]
                results = builder.apply(each, *state, *same, *own)
            state = results[: op.carried]
            made.append(results[op.carried :])
        return [*state, *(concatenate(parts, 0) for parts in zip(*made, strict=True))]

    def _slice(self, builder: Builder, value: Value, held: Tensor, part: int, size: int) -> Tensor:
        """Return a part of a stack: an input of its own, where only loops that are cut read it."""
        start = part * size
        if value in self.stacks:
            key = value.name, part
            if key not in self.slices:
                name = f"{value.name}[{start}:{start + size}]"
                type = value.type.with_shape((size, *value.type.shape[1:]))
                found = Slice(name, value.name, start, start + size, part)
                self.slices[key] = found, builder.input(type, name)
            return self.slices[key][1]
        source = self._uncast(value)
        if source in self.stacks:
            inner = self._slice(builder, source, held, part, size)
            return builder.apply(self._producers[value].op, inner)[0]
        sliced: Tensor = held[start : start + size]
        return sliced

    def _only_stacks(self) -> set[Value]:
        """Return the inputs that nobody reads but loops that are cut, as stacks of one cut."""
        cuts: dict[Value, set[int]] = {}
        others: set[Value] = set(self._graph.outputs.values())
        for node in self._graph.nodes:
            is_cut = bool(node.op.bodies) and node.scope in self._parts
            first_slice = len(node.inputs) - len(node.op.slices)
            for position, value in enumerate(node.inputs):
                source = self._uncast(value)
                if is_cut and position >= first_slice:
                    cuts.setdefault(source, set()).add(self._parts[node.scope])
                elif not (isinstance(node.op, Cast) and self._feeds_loops(node)):
                    others.add(source)
        return {
            value
            for value in self._graph.inputs
            if len(cuts.get(value, ())) == 1 and value not in others
        }

    def _uncast(self, value: Value) -> Value:
        producer = self._producers.get(value)
        return producer.inputs[0] if producer and isinstance(producer.op, Cast) else value

    def _feeds_loops(self, node: Node) -> bool:
        """Whether the cast of an input goes into loops that are cut and nowhere else."""
        (made,) = node.outputs
        readers = [reader for reader, _ in self._uses.get(made, ())]
        is_output = made in self._graph.outputs.values()
        return bool(readers) and not is_output and all(n.scope in self._parts for n in readers)
