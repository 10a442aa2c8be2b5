"""Cut loops over stacked parameters into loops over parts of the stacks, one after another.

Each part is a loop of its own, so that the stages of a pipeline can have one each, with its share
of the parameters: a parameter that only such a loop reads becomes an input for each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mithril.ir import Builder, Graph, Node, Repeat, Tensor, Value
from mithril.ir.repeat import part_of
from mithril.ops import Cast


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
    walk = _Cutter(graph, parts)
    for node in graph.nodes:
        walk.visit(node)
    return walk.finished()


class _Cutter:
    def __init__(self, graph: Graph, parts: Mapping[str, int]) -> None:
        self._graph = graph
        self._parts = parts
        self._builder = Builder()
        self._slices: dict[tuple[str, int], tuple[Slice, Tensor]] = {}
        self._producers = graph.producers()
        self._stacks = self._only_stacks()
        self._made: dict[Value, Tensor] = {
            value: self._builder.input(value.type, value.name)
            for value in graph.inputs
            if value not in self._stacks
        }

    def visit(self, node: Node) -> None:
        """Append a node, or the parts of a loop that is cut."""
        if set(node.inputs) & self._stacks and not isinstance(node.op, Repeat):
            return  # the cast of a stack: each part casts its own
        if isinstance(node.op, Repeat) and node.scope in self._parts:
            results = self._loop(node, node.op, self._parts[node.scope])
        else:
            results = self._builder.copy(node, [self._made[value] for value in node.inputs])
        for old, new in zip(node.outputs, results, strict=True):
            self._made[old] = self._builder.named(new, old.name)

    def finished(self) -> tuple[Graph, tuple[Slice, ...]]:
        """Return the graph and the slices."""
        outputs = {name: self._made[value] for name, value in self._graph.outputs.items()}
        graph = self._builder.build(outputs)
        return graph, tuple(found for found, _ in self._slices.values())

    def _loop(self, node: Node, op: Repeat, count: int) -> tuple[Tensor, ...]:
        assert len(node.outputs) == op.carried, "a loop of a model stacks nothing"
        first = len(node.inputs) - op.stacked
        state = [self._made[value] for value in node.inputs[: op.carried]]
        same = [self._made[value] for value in node.inputs[op.carried : first]]
        each = replace(op, count=op.count // count)
        for part in range(count):
            path, each = part_of(node.scope, part), replace(each, body=_copy(op.body))
            with self._builder.at(scope=path, source=node.source, phase=node.phase):
                own = [self._slice(v, part, each.count) for v in node.inputs[first:]]
                state = list(self._builder.apply(each, *state, *same, *own))
        return tuple(state)

    def _slice(self, value: Value, part: int, size: int) -> Tensor:
        """Return a part of a stack: an input of its own, where only loops that are cut read it."""
        producer = self._producers.get(value)
        if value in self._stacks:
            key = value.name, part
            if key not in self._slices:
                start = part * size
                name = f"{value.name}[{start}:{start + size}]"
                type = value.type.with_shape((size, *value.type.shape[1:]))
                found = Slice(name, value.name, start, start + size, part)
                self._slices[key] = found, self._builder.input(type, name)
            return self._slices[key][1]
        if producer is not None and isinstance(producer.op, Cast) and value not in self._made:
            inner = self._slice(producer.inputs[0], part, size)
            return self._builder.apply(producer.op, inner)[0]
        sliced: Tensor = self._made[value][part * size : (part + 1) * size]
        return sliced

    def _only_stacks(self) -> set[Value]:
        """Return the inputs that nobody reads but loops that are cut, as stacks of one cut."""
        cuts: dict[Value, set[int]] = {}
        others: set[Value] = set(self._graph.outputs.values())
        for node in self._graph.nodes:
            op = node.op
            is_cut = isinstance(op, Repeat) and node.scope in self._parts
            first = len(node.inputs) - op.stacked if isinstance(op, Repeat) and is_cut else None
            for position, value in enumerate(node.inputs):
                source = self._uncast(value)
                if first is not None and position >= first:
                    cuts.setdefault(source, set()).add(self._parts[node.scope])
                elif not (isinstance(op, Cast) and self._feeds_loops(node)):
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
        readers = [n for n in self._graph.nodes if made in n.inputs]
        is_output = made in self._graph.outputs.values()
        return bool(readers) and not is_output and all(n.scope in self._parts for n in readers)


def _copy(body: Graph) -> Graph:
    """Return a graph of values of its own."""
    builder = Builder()
    made = {value: builder.input(value.type, value.name) for value in body.inputs}
    for node in body.nodes:
        op = node.op
        own = replace(op, body=_copy(op.body)) if isinstance(op, Repeat) else op
        operands = [made[value] for value in node.inputs]
        made.update(zip(node.outputs, builder.copy(replace(node, op=own), operands), strict=True))
    return builder.build({name: made[value] for name, value in body.outputs.items()})
