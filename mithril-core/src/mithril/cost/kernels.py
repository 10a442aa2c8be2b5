"""Kernels: which ops of a graph an engine runs as one, and what that one reads and writes.

What an engine fuses is in memory only at the border of a kernel. An elementwise op, and a view on
the way, are part of the kernel that is the only one to need them: one of elementwise ops or a
reduction, into which compilers take what it reads. Two kernels that need a value read it from
memory. A product of tensors is a kernel of a library, which takes in nothing but a bias, where the
engine has that (`Execution.adds_in_product`).

A view is no kernel: whoever reads it reads the memory below, of which a broadcast has less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mithril.cost.compiled_form import to_compiled_form
from mithril.cost.hardware import Hardware
from mithril.cost.work import (
    arithmetic_seconds,
    is_free,
    is_fused,
    product_dtype,
    rate_name,
    roofline_seconds,
)
from mithril.ir import Graph, Node, Op, Value
from mithril.ir.op import Cost
from mithril.ir.start import Wait
from mithril.ops.arithmetic import Add
from mithril.ops.reduce import Reduction
from mithril.plan import Execution
from mithril.types import DType, TensorType

Operands = tuple[TensorType, ...]


@dataclass(frozen=True)
class OpCosts:
    """The work of ops that run kernels, of which equal ones on equal types are asked for once."""

    _known: dict[tuple[Op, Operands, Operands], tuple[Cost, DType | None]] = field(
        default_factory=dict
    )
    _of_nodes: dict[Node, tuple[Cost, DType | None]] = field(default_factory=dict)
    """Of nodes that were asked for: many programs have most of them in common."""

    def of(self, node: Node) -> tuple[Cost, DType | None]:
        """Return the work of a node, and the dtype of the operands if it is a product."""
        found = self._of_nodes.get(node)
        if found is None:
            found = self._of_nodes[node] = self._of_types(node)
        return found

    def _of_types(self, node: Node) -> tuple[Cost, DType | None]:
        inputs = tuple(value.type for value in node.inputs)
        outputs = tuple(value.type for value in node.outputs)
        key = node.op, inputs, outputs
        if key not in self._known:
            work = node.op.cost(inputs, outputs), product_dtype(node.op, inputs, outputs)
            self._known[key] = work
        return self._known[key]


@dataclass(frozen=True, slots=True)
class Kernel:
    """Ops that run as one.

    Args:
        nodes: in order; the last one makes what leaves it.
        flops: operations on the device.
        bytes: read and written.
        product: the dtype of the operands if it is a product of tensors.
        work: of each op that computes something the name of its rate, its operations, the dtype if
            it is a product, and its windows.
    """

    nodes: tuple[Node, ...]
    flops: int
    bytes: int
    product: DType | None
    work: tuple[tuple[str, int, DType | None, int], ...] = ()

    def seconds(self, hardware: Hardware) -> float:
        """Return the predicted seconds on one device."""
        computing = sum(
            arithmetic_seconds(name, flops, dtype, hardware, windows)
            for name, flops, dtype, windows in self.work
        )
        return roofline_seconds(computing, self.bytes, hardware)


@dataclass(frozen=True, slots=True)
class Contents:
    """What is known of a kernel by its nodes alone, whatever graph they are in.

    Args:
        nodes: those that compute something.
        flops: operations on the device.
        product: the dtype of the operands if it is a product of tensors.
        work: as of `Kernel`.
        read: the values that it reads.
        others: bytes that it reads or writes besides what is in memory of these; below 0 where it
            reads less of an operand than there is.
    """

    nodes: tuple[Node, ...]
    flops: int
    product: DType | None
    work: tuple[tuple[str, int, DType | None, int], ...]
    read: frozenset[Value]
    others: int


Known = dict[tuple[Node, ...], Contents | None]
"""By the nodes of kernels, what was found of them with one execution; None if they run none."""


def find_kernels(
    graph: Graph, execution: Execution, costs: OpCosts | None = None, known: Known | None = None
) -> Mapping[Node, Kernel]:
    """Return the kernels of a graph, each by its last node; what runs no kernel is in none.

    Args:
        graph: a local one. Its loops and collectives are no kernels.
        execution: how it runs.
        costs: what is known of the costs of ops.
        known: what was found in other graphs with the same execution; what is new is added.

    >>> from mithril import ops
    >>> from mithril.ir import Builder
    >>> from mithril.types import TensorType
    >>> builder = Builder()
    >>> x = builder.input(TensorType((256,), DType.float32), "x")
    >>> graph = builder.build({"y": ops.exp(ops.negate(x))})
    >>> [kernel.bytes for kernel in find_kernels(graph, Execution(fuses=True)).values()]
    [2048]
    >>> [kernel.bytes for kernel in find_kernels(graph, Execution()).values()]
    [2048, 2048]
    """
    grouping = _Grouping(graph, execution, costs or OpCosts(), {} if known is None else known)
    members: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for last in grouping.lasts[node]:
            members.setdefault(last, []).append(node)
    found = (grouping.make(tuple(nodes)) for nodes in members.values())
    return {kernel.nodes[-1]: kernel for kernel in found if kernel is not None}


def graph_seconds(graph: Graph, hardware: Hardware) -> float:
    """Return the predicted seconds of the kernels of a graph, one after another.

    Args:
        graph: a local one, whose loops and collectives do not count.
        hardware: the profile to price with.
    """
    execution = hardware.execution
    made = to_compiled_form(graph, execution.scores_at_once) if execution.lays_out else graph
    return sum(kernel.seconds(hardware) for kernel in find_kernels(made, execution).values())


def is_idle(node: Node, execution: Execution) -> bool:
    """Return whether an engine runs no kernel for a node: it moves nothing, or is a constant."""
    op = node.op
    if op.bodies or op.is_collective or isinstance(op, Wait) or is_free(op, execution):
        return True
    return not node.inputs and all(value.type.rank == 0 for value in node.outputs)


class _Grouping:
    """Which kernels each node of a graph is a part of: `lasts`, by the kernels' last nodes."""

    def __init__(self, graph: Graph, execution: Execution, costs: OpCosts, known: Known) -> None:
        self._execution = execution
        self._costs = costs
        self._known = known
        self._uses = graph.uses()
        self._outputs = set(graph.outputs.values())
        self._makers = graph.producers()
        self._bytes_read: dict[Value, int] = {}
        self.lasts: dict[Node, set[Node]] = {}
        self._biased = dict(self._find_biased(graph)) if execution.adds_in_product else {}
        for node in reversed(graph.nodes):
            self.lasts[node] = self._find_lasts(node)

    def make(self, nodes: tuple[Node, ...]) -> Kernel | None:
        """Return the kernel of some nodes; None if they run none."""
        if nodes not in self._known:
            self._known[nodes] = self._find_contents(nodes)
        contents = self._known[nodes]
        if contents is None:
            return None
        nbytes = max(contents.others + sum(map(self._read_bytes, contents.read)), 0)
        return Kernel(contents.nodes, contents.flops, nbytes, contents.product, contents.work)

    def _find_contents(self, nodes: tuple[Node, ...]) -> Contents | None:
        busy = tuple(node for node in nodes if not is_idle(node, self._execution))
        if not busy:
            return None
        work = [self._costs.of(node) for node in busy]
        flops = sum(cost.flops for cost, _ in work)
        parts = tuple(
            (rate_name(node.op, dtype), cost.flops, dtype, cost.windows)
            for node, (cost, dtype) in zip(busy, work, strict=True)
        )
        product = next((dtype for _, dtype in work if dtype is not None), None)
        made = {value for node in nodes for value in node.outputs}
        read = frozenset(value for node in nodes for value in node.inputs) - made
        if len(busy) == 1 == len(nodes):
            others = work[0][0].bytes - sum(value.type.nbytes for value in read)
        else:  # what its last node writes: of the others it has copies
            others = sum(value.type.nbytes for value in nodes[-1].outputs)
        return Contents(busy, flops, product, parts, read, others)

    def _find_lasts(self, node: Node) -> set[Node]:
        users = {user for value in node.outputs for user, _ in self._uses.get(value, ())}
        if not users or node.op.bodies or node.op.is_collective or isinstance(node.op, Wait):
            return {node}
        if self._outputs.intersection(node.outputs) or node in self._biased:
            return {node}
        found = set[Node]().union(*(self.lasts[user] for user in users))
        is_one = len(found) == 1 or self._is_cheap(node)
        return found if is_one and all(self._takes(user, node) for user in users) else {node}

    def _takes(self, user: Node, node: Node) -> bool:
        """Return whether the kernels of a user compute what a node does, too."""
        if user in self._biased:
            return self._biased[user] is node
        if not self._execution.fuses:
            return False
        if not (self._is_passed(node) or is_fused(node.op, self._execution)):
            return False
        if self._is_passed(user):  # a view on the way
            return user not in self.lasts[user]
        return is_fused(user.op, self._execution) or isinstance(user.op, Reduction)

    def _is_passed(self, node: Node) -> bool:
        return node.op.is_view and self._execution.has_views

    def _read_bytes(self, value: Value) -> int:
        """Return the bytes that are in memory of a value, which may be a view."""
        found = self._bytes_read.get(value)
        if found is None:
            found, maker = value.type.nbytes, self._makers.get(value)
            while maker is not None and self._is_passed(maker):
                found = min(found, maker.inputs[0].type.nbytes)
                maker = self._makers.get(maker.inputs[0])
            self._bytes_read[value] = found
        return found

    def _is_cheap(self, node: Node) -> bool:
        """Return whether compilers rather compute a value again than keep it."""
        if self._costs.of(node)[0].flops > sum(value.type.size for value in node.outputs):
            return False
        return not any(self._is_wide(x, node) for x in node.inputs)

    def _is_wide(self, x: Value, node: Node) -> bool:
        """Return whether keeping the result of a node saves keeping a wider operand for it."""
        maker = self._makers.get(x)
        if maker is None or len(self._uses[x]) > 1 or not is_fused(maker.op, self._execution):
            return False
        return x.type.nbytes > node.outputs[0].type.nbytes and not self._is_cheap(maker)

    def _find_biased(self, graph: Graph) -> Iterator[tuple[Node, Node]]:
        """Yield the nodes that add a vector to a product nobody else needs, and the product."""
        for node in graph.nodes:
            if not isinstance(node.op, Add):
                continue
            for x, other in (node.inputs, node.inputs[::-1]):
                maker = self._makers.get(x)
                is_own = x not in self._outputs and len(self._uses[x]) == 1
                if maker is None or not is_own or other.type.rank != 1 or maker.op.bodies:
                    continue
                if not maker.op.is_collective and self._costs.of(maker)[1] is not None:
                    yield node, maker
                    break
