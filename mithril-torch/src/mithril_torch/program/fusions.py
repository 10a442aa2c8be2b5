"""Gathers elementwise ops and reductions that read each other, before a program is emitted.

These are fusions. PyTorch's compiler makes a few kernels of each, which keep in registers and
caches what PyTorch's own kernels write to memory and read again. Products, convolutions, attention
and collectives stay calls of a library, outside. A fusion runs where the first of its results is
read; until then it takes in what reads it, and what reads the same as it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import ClassVar

from mithril.spi import DType, Graph, Node, Types, Value, map_bodies
from mithril.spi.ops import (
    Broadcast,
    Cast,
    Concatenate,
    Constant,
    CrossEntropy,
    CrossEntropyGradient,
    Elementwise,
    LayerNorm,
    LayerNormGradient,
    LogSoftmax,
    Max,
    Min,
    NormalizeChannels,
    Reshape,
    RmsNorm,
    RmsNormGradient,
    Rope,
    Slice,
    Softmax,
    SoftmaxGradient,
    StopGradient,
    Sum,
    Transpose,
)

from mithril_torch.program.written_op import WrittenOp

LEAST_BYTES = 1 << 15
"""A fusion that writes and reads so many bytes less is worth its compilation: where it saves fewer,
its call takes as long as those of the kernels that it takes the place of."""
KERNEL_BYTES = 1 << 14
"""What is read and written while a kernel is called."""
_INSIDE = (
    Broadcast, Concatenate, CrossEntropy, CrossEntropyGradient, Elementwise, LayerNorm,
    LayerNormGradient, LogSoftmax, Max, Min, NormalizeChannels, Reshape, RmsNorm, RmsNormGradient,
    Rope, Slice, Softmax, SoftmaxGradient, Sum, Transpose,
)  # fmt: skip
_PASSES = {CrossEntropy: 5, CrossEntropyGradient: 3, RmsNorm: 3, RmsNormGradient: 4, Rope: 3}
"""How many of PyTorch's kernels go over all elements of an op, where that is more than one."""
_DTYPES = frozenset({
    DType.float32, DType.float64, DType.bfloat16, DType.float16, DType.int32, DType.int64,
    DType.bool_,
})  # fmt: skip
"""Others are computed as if they had a sign, by ways around that compilers do not know."""


@dataclass(frozen=True)
class Fusion(WrittenOp):
    """Ops that become a few kernels.

    Args:
        body: what they compute; its values have no names.
        over: the operand in whose memory the first result is made; None for memory of its own.
    """

    name: ClassVar[str] = "fusion"
    body: Graph
    over: int | None = None

    def infer(self, inputs: Types) -> Types:
        """Return the types of what others read."""
        return [value.type for value in self.body.outputs.values()]

    @property
    def turned(self) -> set[Value]:
        """Results that are views of what is computed.

        They are returned with their elements in order. Those that would share memory with another
        result are copied by what makes kernels of the fusion.
        """
        views = {value for node in self.body.nodes if node.op.is_view for value in node.outputs}
        return views.intersection(self.body.outputs.values())

    @property
    def writable(self) -> tuple[int, ...]:
        """Operands in whose memory the first result can be made.

        Any, where all is elementwise; logits, whose gradient is made. PyTorch's compiler stops at
        some fusions with other reductions that write over what they read. What is made of the
        result may not read the operand as it was.
        """
        nodes, inputs = self.body.nodes, self.body.inputs
        if self.body.outputs["0"] in self.turned:
            return ()
        later = find_dependents(self.body, self.body.outputs["0"])
        read = {value for node in later for value in node.inputs}
        slopes = [node.inputs[0] for node in nodes if isinstance(node.op, CrossEntropyGradient)]
        if all(node.op.is_pointwise or node.op.is_view or not node.inputs for node in nodes):
            slopes = list(inputs)
        return tuple(i for i, x in enumerate(inputs) if x in slopes and x not in read)


def form_fusions(graph: Graph) -> Graph:
    """Return a graph that computes the same, in which fusions are one node each; in loops too.

    Args:
        graph: a local one.
    """
    nodes = _Forming(graph).list_nodes()
    inside = tuple(map_bodies(node, form_fusions) for node in nodes)
    return Graph(graph.inputs, inside, graph.outputs)


@dataclass
class _OpenFusion:
    """A fusion that may still take in nodes.

    Args:
        nodes: in the order of the graph.
        made: their results.
        read: their operands.
    """

    nodes: list[Node] = field(default_factory=list)
    made: set[Value] = field(default_factory=set)
    read: set[Value] = field(default_factory=set)


class _Forming:
    """Goes through a graph once, with the fusions that are open.

    Args:
        graph: a local one.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._uses, self._makers = graph.uses(), graph.producers()
        self._outputs = frozenset(graph.outputs.values())
        self._places = {node: place for place, node in enumerate(graph.nodes)}
        constants = (node for node in graph.nodes if isinstance(node.op, Constant))
        self._constants = {node.outputs[0]: node for node in constants}
        self._open: list[_OpenFusion] = []
        self._absorbed: set[Node] = set()  # views of results, in fusions that are closed

    def list_nodes(self) -> list[Node]:
        """Return the nodes of the graph, those of a fusion as one.

        What became no part of a fusion stays where it was, as it may be the last that reads a large
        operand.
        """
        found: list[tuple[int, Node]] = []
        for place, node in enumerate(self._graph.nodes):
            if node in self._absorbed:
                continue
            if _is_inside(node) and not self._is_beside_loss(node):
                self._take_in(node)
            else:
                for fusion in self._find_due(node):
                    found += self._close(fusion, place)
                found.append((place, node))
        while self._open:
            found += self._close(self._open[0], len(self._graph.nodes))
        return [node for _, node in sorted(found, key=itemgetter(0))]

    def _is_beside_loss(self, node: Node) -> bool:
        """Return whether a node makes logits that have a gradient, or reads it.

        Kernels that do so, too, would hold them twice: before and after.
        """
        uses = (use for value in node.outputs for use in self._uses.get(value, ()))
        readers = (reader for reader, operand in uses if not operand)
        makers = (self._makers[value] for value in node.inputs if value in self._makers)
        return any(isinstance(n.op, CrossEntropyGradient) for n in (*readers, *makers))

    def _take_in(self, node: Node) -> None:
        """Put a node into the fusion that it shares values with; several such become one."""
        reads = set(node.inputs) - self._constants.keys()
        wide = {x for x in reads if x.type.nbytes >= max(KERNEL_BYTES, _size(node) / 2)}
        joined = [r for r in self._open if r.made & reads or r.read & wide]
        nodes = [node, *(other for fusion in joined for other in fusion.nodes)]
        self._open = [fusion for fusion in self._open if fusion not in joined]
        self._open.append(
            _OpenFusion(
                sorted(nodes, key=self._places.__getitem__),
                set(node.outputs).union(*(fusion.made for fusion in joined)),
                reads.union(*(fusion.read for fusion in joined)),
            )
        )

    def _find_due(self, node: Node) -> list[_OpenFusion]:
        """Return the fusions that have to run before a node, which reads or writes over values."""
        reads, written = set(node.inputs), find_written(node)
        return [r for r in self._open if r.made & reads or r.read & written]

    def _close(self, fusion: _OpenFusion, place: int) -> Iterator[tuple[int, Node]]:
        """Yield a fusion as one node, and the views that others see of its results.

        Args:
            fusion: takes in nothing more.
            place: before which it has to run.

        Yields:
            Each node, after the place that it has in the graph.
        """
        self._open.remove(fusion)
        before, inside = self._split_views_of_operands(fusion.nodes)
        inside, views = _split_views(inside)
        turned = [view for node in inside for view in self._find_turned(node)]
        turned = [view for view in turned if view not in inside]
        results = self._find_results([*inside, *turned])
        if self._is_worth(inside, results):
            self._absorbed.update(turned)
            views = [node for node in views if node not in turned]
            place = self._choose_place(inside, results, place)
            yield from ((self._places[node], node) for node in before)
            yield place, self._join([*inside, *turned], results)
            yield from ((place, node) for node in views)
        else:
            yield from ((self._places[node], node) for node in fusion.nodes)

    def _find_turned(self, node: Node) -> list[Node]:
        """Return the views that turn a result for all who read it, wherever they stand.

        Rows that are written where readers want them need not be copied there.
        """
        value, chain, found = node.outputs[0], list[Node](), 0
        while not node.op.is_view and self._is_read_once(value):
            ((reader, _),) = self._uses[value]
            if not isinstance(reader.op, Reshape | Transpose) or self._is_beside_loss(reader):
                break
            chain.append(reader)
            found = len(chain) if _is_turn(reader) else found
            value = reader.outputs[0]
        return chain[:found]

    def _is_read_once(self, value: Value) -> bool:
        return value not in self._outputs and len(self._uses.get(value, ())) == 1

    def _choose_place(self, inside: Sequence[Node], results: Sequence[Value], due: int) -> int:
        """Return the place of a fusion: at the last of its nodes if that frees memory, or when due.

        Args:
            inside: what it computes.
            results: of it.
            due: the place of the first node that needs it.
        """
        own = set(inside)
        made = {value for node in inside for value in node.outputs}
        read = {value for node in inside for value in node.inputs} - made
        freed = 0
        for value in read - self._outputs - set(self._graph.inputs) - self._constants.keys():
            others = (self._places[reader] for reader, _ in self._uses[value] if reader not in own)
            freed += value.type.nbytes if max(others, default=-1) < due else 0
        is_better = freed > sum(value.type.nbytes for value in results)
        return max(self._places[node] for node in inside) if is_better else due

    def _split_views_of_operands(self, nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
        """Return the views of operands that others read, too, and apart from them the others."""
        made = {value for node in nodes for value in node.outputs}
        before: list[Node] = []
        inside: list[Node] = []
        for node in nodes:
            is_shared = node.op.is_view and bool(self._find_results([node], nodes))
            if is_shared and not made.intersection(node.inputs):
                made.difference_update(node.outputs)
                before.append(node)
            else:
                inside.append(node)
        return before, inside

    def _find_results(
        self, nodes: Sequence[Node], inside: Sequence[Node] | None = None
    ) -> list[Value]:
        """Return what others than those of a fusion read of what nodes of it make, largest first.

        Args:
            nodes: whose results.
            inside: the nodes of the fusion, if these are not all.
        """
        own = set(nodes if inside is None else inside)
        found = [
            value
            for node in nodes
            for value in node.outputs
            if value in self._outputs or {n for n, _ in self._uses.get(value, ())} - own
        ]
        return sorted(found, key=lambda value: -value.type.nbytes)

    def _is_worth(self, inside: Sequence[Node], results: Collection[Value]) -> bool:
        """Return whether kernels of a fusion write and read enough less than those of its ops."""
        made = {value for node in inside for value in node.outputs}
        reads = Counter(value for node in inside for value in set(node.inputs))
        saved = sum(value.type.nbytes for value in made.difference(results))
        saved += sum(
            value.type.nbytes * (count if value in made else count - 1)
            for value, count in reads.items()
        )
        kernels = 0
        for node in inside:
            passes = 0 if node.op.is_view else _PASSES.get(type(node.op), 1)
            kernels += passes
            saved += 2 * _size(node) * max(passes - 1, 0)
        saved += KERNEL_BYTES * (kernels - 1)
        return bool(results) and kernels > 1 and saved >= LEAST_BYTES

    def _join(self, inside: Sequence[Node], results: Sequence[Value]) -> Node:
        made = {value for node in inside for value in node.outputs}
        read = dict.fromkeys(v for node in inside for v in node.inputs if v not in made)
        operands = tuple(value for value in read if value not in self._constants)
        constants = [self._constants[value] for value in read if value in self._constants]
        fusion = Fusion(_copy([*constants, *inside], operands, results))
        return replace(inside[-1], op=fusion, inputs=operands, outputs=tuple(results))


def find_written(node: Node) -> set[Value]:
    """Return the operands that a node writes over if they are given up.

    Who reads a view of one is not found. Engines see to that where operands are given up: what is
    shared is copied before it is written over.
    """
    return {node.inputs[operand] for operand, _ in node.op.overwrites}


def find_dependents(graph: Graph, value: Value) -> set[Node]:
    """Return the nodes that read a value, or what is made of it."""
    made, found = {value}, set[Node]()
    for node in graph.nodes:
        if made.intersection(node.inputs):
            made.update(node.outputs)
            found.add(node)
    return found


def _split_views(nodes: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """Return nodes, and apart from them the views that none of them computes with."""
    inside: list[Node] = []
    views: list[Node] = []
    needed: set[Value] = set()
    for node in reversed(nodes):
        if node.op.is_view and not needed.intersection(node.outputs):
            views.append(node)
        else:
            needed.update(node.inputs)
            inside.append(node)
    return inside[::-1], views[::-1]


def _is_turn(node: Node) -> bool:
    """Return whether a node brings rows of tensors, but not what is in them, into another order."""
    if not isinstance(node.op, Transpose) or len(node.op.order) < 3:
        return False
    return node.op.order[-1] == len(node.op.order) - 1


def _copy(nodes: Sequence[Node], inputs: Sequence[Value], outputs: Sequence[Value]) -> Graph:
    """Return nodes as a graph of values without names, which fusions that compute alike share."""
    copies: dict[Value, Value] = {}

    def copy(values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(copies.setdefault(value, Value(value.type)) for value in values)

    given = copy(inputs)
    inside = tuple(Node(node.op, copy(node.inputs), copy(node.outputs)) for node in nodes)
    return Graph(given, inside, {str(i): x for i, x in enumerate(copy(outputs))})


def _is_inside(node: Node) -> bool:
    values = (*node.inputs, *node.outputs)
    is_plain = all(value.type.dtype in _DTYPES and value.type.size for value in values)
    is_same = isinstance(node.op, Cast | StopGradient) and values[0].type == values[1].type
    return isinstance(node.op, _INSIDE) and is_plain and not is_same and not find_written(node)


def _size(node: Node) -> int:
    return max(value.type.nbytes for value in (*node.inputs, *node.outputs))


__all__ = ["LEAST_BYTES", "Fusion", "find_dependents", "find_written", "form_fusions"]
