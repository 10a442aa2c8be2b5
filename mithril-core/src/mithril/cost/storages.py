"""Storages: which values of a local program share memory, and which are never in memory.

Views share the memory of what they were made of. A value inside a chain that an engine runs as one
kernel has none: what the chain reads is needed until its last kernel runs. A sum may grow in the
memory of an input that nobody else needs, and an all_reduce may take place where its operands were
made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mithril.cost.fusion import find_fusion
from mithril.cost.strides import Strides, in_order, view
from mithril.engine.arena import makes_anew
from mithril.engine.operand_reuse import find_reused_operands
from mithril.ir import Graph, Node, Value
from mithril.ir.start import Wait, find_begun
from mithril.ops.arithmetic import Add
from mithril.ops.collective import AllReduce
from mithril.ops.control import After
from mithril.ops.dynamic_slicing import DynamicUpdateSlice
from mithril.ops.host import find_on_host
from mithril.ops.optimizer import AdamWStep
from mithril.ops.shape import Reshape
from mithril.plan import Execution

Uses = Mapping[Value, Sequence[tuple[Node, int]]]


@dataclass(slots=True, eq=False)
class Storage:
    """Memory of one value, or of several that share it.

    Args:
        number: among those of the graph; those of its inputs come first.
        bytes: how much.
        name: of the first value in it, or of the op that makes that.
        node: the node that makes that; None for an input.
        birth: position of the node from which on it is there; -1 for from the start.
        death: position of the last node that needs it.
        is_on_host: whether it is memory of the host arena, which is counted apart.
    """

    number: int
    bytes: int
    name: str
    node: Node | None = None
    birth: int = -1
    death: int = -1
    is_on_host: bool = False


@dataclass(eq=False)
class Storages:
    """The storages of a graph.

    Args:
        graph: a local one.
        execution: how the engine runs programs.
        free: inputs in whose memory results may be made.

    `results` are those of its outputs, by the order of these.
    """

    graph: Graph
    execution: Execution
    free: Collection[Value] = ()
    all: list[Storage] = field(default_factory=list)
    of: dict[Value, Storage] = field(default_factory=dict)
    strides: dict[Value, Strides] = field(default_factory=dict)
    results: list[Storage] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.uses: Uses = self.graph.uses()
        self.outputs = frozenset(self.graph.outputs.values())
        self._on_host = find_on_host(self.graph)
        self.fusion = find_fusion(self.graph, self.uses, self.execution, self._is_grown_by)
        self._unmade = self.fusion.unmade
        self._reused = self._find_reused()
        for value in self.graph.inputs:
            self._add(value, value.name or "input", None, -1)
        for position, node in enumerate(self.graph.nodes):
            self._place(node, position)
        if self.execution.lays_out:
            self._give_up()
        self.results = [self.of[value] for value in self.graph.outputs.values()]
        if self.execution.lays_out:
            self._part_results()

    def _part_results(self) -> None:
        """Give each output memory of its own: equal ones, and views of others, are copied then."""
        makers = {value: at for at, node in enumerate(self.graph.nodes) for value in node.outputs}
        seen: set[int] = set()
        for position, value in enumerate(self.graph.outputs.values()):
            shared = self.results[position]
            is_copy = shared.number in seen or self._is_view_of_input(value)
            seen.add(shared.number)
            if is_copy and value in makers:
                storage = Storage(
                    len(self.all), value.type.nbytes, shared.name, shared.node,
                    makers[value], makers[value], shared.is_on_host,
                )  # fmt: skip
                self.all.append(storage)
                self.results[position] = storage

    def _is_view_of_input(self, value: Value) -> bool:
        return value in self.strides and self.of[value].number < len(self.graph.inputs)

    def _give_up(self) -> None:
        """Let outputs lie in the memory of inputs of their type that are given up."""
        free = [value for value in self.graph.inputs if value in self.free]
        taken = {self.of[value].number for value in self.outputs}
        for value in dict.fromkeys(self.graph.outputs.values()):
            lies = self.of[value].is_on_host
            like = (x for x in free if x.type == value.type and self.of[x].is_on_host == lies)
            fits = (x for x in like if self.of[x].number not in taken)
            found = next(fits, None)
            if found is not None and self.of[value].number >= len(self.graph.inputs):
                self.of[value].bytes = 0
                self.of[value] = self.of[found]
                taken.add(self.of[found].number)

    def _place(self, node: Node, position: int) -> None:
        """Give the results of a node their storages."""
        how = self.execution
        target = self.find_grown(node) or self._reused.get(node)
        if isinstance(node.op, Wait):
            for old, new in zip(node.inputs, node.outputs, strict=True):
                self.of[new] = self.of[old]
        elif isinstance(node.op, After) and node.inputs[0] in self.of:
            self.of[node.outputs[0]] = self.of[node.inputs[0]]
        elif target is not None:
            self.of[node.outputs[0]] = self.of[target]
            for value in node.outputs[1:]:
                self._add(value, _name(node, value), node, position)
        elif how.reduces_in_place and isinstance(find_begun(node.op), AllReduce):
            self._place_reduction(node, position)
        elif not (node.op.is_view and how.has_views and self._place_view(node)):
            overwritten = self._find_overwritten(node)
            for value in node.outputs:
                if value in overwritten:
                    self.of[value] = self.of[overwritten[value]]
                elif value not in self._unmade:
                    self._add(value, _name(node, value), node, position)

    def _add(self, value: Value, name: str, node: Node | None, birth: int) -> Storage:
        is_on_host = value in self._on_host
        storage = Storage(len(self.all), value.type.nbytes, name, node, birth, birth, is_on_host)
        self.all.append(storage)
        self.of[value] = storage
        return storage

    def _place_view(self, node: Node) -> bool:
        """Let the result of a node share the memory of its operand, if strides can say it."""
        x, result = node.inputs[0], node.outputs[0]
        if x not in self.of or result in self._unmade:
            return False
        if self.execution.lays_out and not isinstance(node.op, Reshape):
            return False  # a compiler knows one order of the elements in memory
        strides = self.strides.get(x) or in_order(x.type.shape)
        found = view(node.op, x.type, strides, result.type)
        if found is None:
            return False
        self.of[result] = self.of[x]
        self.strides[result] = found
        return True

    def _place_reduction(self, node: Node, position: int) -> None:
        """Let results lie where operands were made, in one buffer that is there from the first."""
        alone = {x for x in node.inputs if self._can_be_made_in_buffer(x)}
        start = min([self.of[x].birth for x in alone], default=position)
        for old, new in zip(node.inputs, node.outputs, strict=True):
            storage = self.of[old] if old in alone else self._add(new, new.name, node, position)
            self.of[new] = storage
            storage.birth, storage.node = start, node
            storage.name = _name(node, new)

    def _can_be_made_in_buffer(self, x: Value) -> bool:
        maker = self.of[x].node if x in self.of else None
        if maker is None or len(self.uses[x]) > 1 or x in self.outputs or x not in maker.outputs:
            return False
        return len(maker.outputs) == 1 and not maker.op.is_collective and not maker.op.bodies

    def _is_grown_by(self, node: Node, term: Value) -> bool:
        """Return whether a node adds a term to an input, where that lies."""
        target = self.find_grown(node)
        return target is not None and target is not term

    def _find_overwritten(self, node: Node) -> Mapping[Value, Value]:
        """Return the results of an update that are made in the memory of its operands."""
        if not self.execution.adds_in_place or not isinstance(node.op, AdamWStep):
            return {}
        marked, pairs = node.op.in_place, node.op.overwrites
        return {node.outputs[result]: node.inputs[x] for x, result in pairs if x in marked}

    def _find_reused(self) -> Mapping[Node, Value]:
        """Return the operands, by node, in whose memory results are made."""
        operands = dict(self.execution.reused_operands)
        if not operands:
            return {}
        found = find_reused_operands(
            self.graph, lambda node: operands.get(node.op.name, ()), makes_anew
        )
        reused = ((node, node.inputs[at]) for node, at in found.items())
        return {node: x for node, x in reused if x not in self._unmade}

    def find_grown(self, node: Node) -> Value | None:
        """Return the operand in whose memory the result of a node is made, if it is."""
        if isinstance(node.op, DynamicUpdateSlice):
            x = node.inputs[0]
            is_free = self.execution.lays_out and x in self.free and len(self.uses[x]) == 1
            return x if node.op.in_place or is_free else None
        if not self.execution.adds_in_place or not isinstance(node.op, Add):
            return None
        (result,) = node.outputs
        fits = (x for x in node.inputs if x in self.free and x.type == result.type)
        once = (x for x in fits if len(self.uses[x]) == 1 and x not in self.outputs)
        return next(once, None) if result in self.outputs else None


def _name(node: Node, value: Value) -> str:
    """Return the name of a value, or of what it is made of in a loop, or of the op."""
    cause = node.cause.value if node.cause else ""
    made = [inner for body in node.op.bodies for inner in body.outputs.values()]
    inside = made[node.outputs.index(value)].name if len(made) == len(node.outputs) else ""
    return value.name or cause or inside or find_begun(node.op).name
