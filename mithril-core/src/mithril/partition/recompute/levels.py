"""One level of a rewriting: a graph with its forward and its backward, or two loops that belong
together, of which the body of one is the forward and that of the other the backward.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import replace

from mithril.ir import Graph, Node, Repeat, Value
from mithril.ir.graph import free_name
from mithril.ir.repeat import stack as stack_of
from mithril.ir.rewrite import regions
from mithril.partition.recompute.clone import Cloner, Gates
from mithril.partition.recompute.residuals import find_fixed, find_stacks, match_inputs


class Level(ABC):
    """Gives the nodes of a backward clones in the place of what is dropped.

    Args:
        early: the nodes of the forward, in order.
        dropped: what is not kept for the backward.
        fixed: values that depend on nothing, which the backward computes itself.

    `repeated` are the nodes of bodies that run again, and how often.
    """

    def __init__(
        self, early: Sequence[Node], dropped: frozenset[Value], fixed: Collection[Value] = ()
    ) -> None:
        self.dropped = dropped
        self.again = dropped.union(fixed)
        self.makers = {value: node for node in early for value in node.outputs}
        self._stacks: dict[Node, dict[Value, Value]] = {}
        self._bodies: dict[Node, Graph] = {}
        self._twins = {
            (node.op, node.inputs): node
            for node in early
            if not node.op.bodies and not self.again.isdisjoint(node.outputs)
        }
        self.repeated: list[tuple[Node, int]] = []
        self._same: dict[Value, Value] = {}
        self._renamed: dict[Value, Value] = {}

    # -------------------------------------------------------------- what the kinds of levels say

    cloner: Cloner

    @abstractmethod
    def original(self, value: Value) -> Value | None:
        """Return the value of the forward that a value of the backward is; None if it is none."""

    @abstractmethod
    def fetch(self, value: Value) -> Value:
        """Return a value of the forward that is kept, as the backward has it."""

    def refer(self, value: Value) -> Value:
        """Return a value of the forward for `renew`, which puts its clone there if it has one."""
        return value if self.cloner.clones(value) else self.fetch(value)

    # -------------------------------------------------------------- the backward

    def renew(self, node: Node) -> list[Node]:
        """Return a node of the backward on clones, and before it those that are new.

        One that computes what a clone has computed is left out: a parameter at rest is gathered
        once for the backward and for what is computed again in it.
        """
        if not self._renamed.keys().isdisjoint(node.inputs):
            node = replace(node, inputs=tuple(self._renamed.get(v, v) for v in node.inputs))
        twin = self._find_twin(node)
        if twin is not None:
            self._same.update(zip(node.outputs, twin.outputs, strict=True))
            if self.cloner.has(twin):
                clones = map(self.cloner.of, twin.outputs)
                self._renamed.update(zip(node.outputs, clones, strict=True))
                return []
        node = self._renew_loop(node)
        nodes, renamed = self.find_clones(node.inputs)
        if renamed:
            node = replace(node, inputs=tuple(renamed.get(v, v) for v in node.inputs))
        if twin is not None:
            self.cloner.adopt(twin, node.outputs)
        return [*nodes, node]

    def _find_twin(self, node: Node) -> Node | None:
        """Return the node of the forward that computes the same, if its result is dropped."""
        if node.op.bodies:
            return None
        inputs = tuple(self._same.get(v) or self.original(v) or v for v in node.inputs)
        return self._twins.get((node.op, inputs))

    def current(self, value: Value) -> Value:
        """Return a value of the backward, or the clone that is there in its place."""
        return self._renamed.get(value, value)

    def find_clones(self, values: Sequence[Value]) -> tuple[list[Node], dict[Value, Value]]:
        """Return what has to run so that values of the backward are clones, and these by value."""
        originals = {value: self.original(value) for value in values}
        again = {v: x for v, x in originals.items() if x is not None and self.cloner.clones(x)}
        nodes = self.cloner.make(again.values())
        return nodes, {value: self.cloner.of(x) for value, x in again.items()}

    def _renew_loop(self, node: Node) -> Node:
        """Return a loop of the backward that computes what forward loops stack no longer."""
        if not isinstance(node.op, Repeat):
            return node
        for forward in self._find_forward_loops(node):
            level = LoopLevel(self, forward, node)
            times, node = node.op.iterations, level.rewrite_backward()
            self.repeated += [(inner, often * times) for inner, often in level.list_repeated()]
        return node

    def list_repeated(self) -> list[tuple[Node, int]]:
        """Return the forward nodes that run again, and how often; those of bodies, too."""
        return [*((node, 1) for node in self.cloner.cloned), *self.repeated]

    def _find_forward_loops(self, node: Node) -> list[Node]:
        """Return the loops whose stacks a loop takes slice by slice, if something in them drops."""
        stacks = find_stacks(node, self.makers, self.original)
        return list(dict.fromkeys(s.forward for s in stacks if self._is_concerned(s.forward)))

    def _is_concerned(self, node: Node) -> bool:
        inside = (region.graph for body in node.op.bodies for region in regions(body))
        return any(value in self.dropped for graph in inside for value in graph.values())

    # -------------------------------------------------------------- the forward

    def add_stack(self, node: Node, value: Value) -> Value:
        """Return the stack of a value in the body of a forward loop; the loop makes it from now on.

        Args:
            node: the loop.
            value: of its body.
        """
        known = self._stacks.setdefault(node, {})
        if value not in known:
            known[value] = Value(stack_of(value.type, node.op.iterations), value.name)
        return known[value]

    def set_body(self, node: Node, body: Graph) -> None:
        """Say what the body of a forward loop has become."""
        self._bodies[node] = body

    def body_of(self, node: Node) -> Graph:
        """Return what the body of a forward loop is by now."""
        return self._bodies.get(node, node.op.bodies[0])

    def patch(self, node: Node) -> Node:
        """Return a forward node with the stacks that it makes besides."""
        more = self._stacks.get(node, {})
        if not more and node not in self._bodies:
            return node
        body = self.body_of(node)
        outputs = dict(body.outputs)
        for value in more:
            outputs[free_name(f"residual_{len(outputs)}", outputs)] = value
        op = node.op.with_bodies([Graph(body.inputs, body.nodes, outputs)])
        return replace(node, op=op, outputs=(*node.outputs, *more.values()))


class TopLevel(Level):
    """A graph that holds both forward and backward.

    Args:
        early: its forward nodes.
        dropped: what is not kept for the backward.
        gates: what keeps clones apart from their originals.
    """

    def __init__(self, early: Sequence[Node], dropped: frozenset[Value], gates: Gates) -> None:
        super().__init__(early, dropped)
        self._gates = gates
        self.cloner = Cloner(early, dropped.__contains__, self.fetch, gates)

    def original(self, value: Value) -> Value | None:
        """Return the value itself: forward and backward are in one graph."""
        return value

    def fetch(self, value: Value) -> Value:
        """Return the value itself."""
        return value

    def renew(self, node: Node) -> list[Node]:
        """Return a node of the backward on clones that are kept apart from their originals."""
        self._gates.wait_with(node)
        found = super().renew(node)
        if found:
            self._gates.pass_by(found[-1])
        return found


class LoopLevel(Level):
    """A loop of the forward, and one of the backward that takes slices of its stacks.

    Args:
        outer: the level in which the loops are.
        forward: the one.
        backward: the other.
    """

    def __init__(self, outer: Level, forward: Node, backward: Node) -> None:
        assert isinstance(forward.op, Repeat) and isinstance(backward.op, Repeat)
        body = outer.body_of(forward)
        super().__init__(body.nodes, outer.dropped, find_fixed(body))
        self._outer, self._forward, self._backward = outer, forward, backward
        self._op, self._body = forward.op, body
        self._inside = backward.op
        self._known: dict[Value, Value] = {}
        self._originals: dict[Value, Value] = {}
        self._find_known()
        self._invariants: dict[Value, Value] = {}
        self._slices: dict[Value, Value] = {}
        self._names = {value.name for value in backward.op.body.inputs}
        self.cloner = Cloner(body.nodes, self.again.__contains__, self.fetch)

    def original(self, value: Value) -> Value | None:
        """Return the value of the forward's body of which an input is the slice, or the same."""
        return value if value in self.makers else self._originals.get(value)

    def rewrite_backward(self) -> Node:
        """Return the backward loop, on what is still stacked; the forward loop is told what is."""
        nodes: list[Node] = []
        for node in self._inside.body.nodes:
            nodes += self.renew(node)
        outputs = {name: self.current(v) for name, v in self._inside.body.outputs.items()}
        more, renamed = self.find_clones(list(outputs.values()))
        made = {name: renamed.get(value, value) for name, value in outputs.items()}
        self._patch_forward()
        return self._close([*nodes, *more], made)

    # -------------------------------------------------------------- what the backward has

    def _find_known(self) -> None:
        """Find the values of the forward's body that the backward's takes."""
        outer = self._outer
        for old, new in match_inputs(self._forward, self._backward, outer.makers, outer.original):
            self._known.setdefault(old, new)
            self._originals[new] = old

    def fetch(self, value: Value) -> Value:
        """Return an input of the backward's body, a new one if there was none."""
        known = self._known.get(value)
        if known is None:
            known = self._known[value] = self._bring(value)
        return known

    def _bring(self, value: Value) -> Value:
        """Return a new input of the backward's body: what a value of the forward's body was."""
        inner = Value(value.type, free_name(value.name or "residual", self._names))
        self._names.add(inner.name)
        inputs = self._op.body.inputs
        position = inputs.index(value) if value in inputs else -1
        if position < self._op.carried:  # a carry, or something that the body makes
            operand = self._outer.refer(self._outer.add_stack(self._forward, value))
            self._slices[inner] = operand
        elif position < len(inputs) - self._op.stacked:
            self._invariants[inner] = self._outer.refer(self._forward.inputs[position])
        else:
            self._slices[inner] = self._outer.refer(self._forward.inputs[position])
        return inner

    # -------------------------------------------------------------- what comes out

    def _patch_forward(self) -> None:
        nodes = tuple(map(self.patch, self._body.nodes))
        if any(new is not old for new, old in zip(nodes, self._body.nodes, strict=True)):
            body = Graph(self._body.inputs, nodes, self._body.outputs)
            self._outer.set_body(self._forward, body)

    def _close(self, nodes: Sequence[Node], outputs: dict[str, Value]) -> Node:
        """Return the backward loop, which takes what it needs and nothing else."""
        op, given = self._inside, self._backward.inputs
        used = {value for node in nodes for value in node.inputs} | set(outputs.values())
        pairs = list(zip(op.body.inputs, given, strict=True))
        split = len(pairs) - op.stacked
        same = [*pairs[op.carried : split], *self._invariants.items()]
        each = [*pairs[split:], *self._slices.items()]
        same, each = ([p for p in some if p[0] in used] for some in (same, each))
        inputs = [*pairs[: op.carried], *same, *each]
        body = Graph(tuple(inner for inner, _ in inputs), tuple(nodes), outputs)
        loop = replace(op, body=body, stacked=len(each))
        return replace(self._backward, op=loop, inputs=tuple(outer for _, outer in inputs))
