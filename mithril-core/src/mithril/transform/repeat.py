"""The gradient of a loop: a loop in the other direction.

The body is differentiated once. What its backward half needs of an iteration's forward values (the
residuals) the forward loop stacks up as further results, carries included; constants are made anew.
The backward loop carries the cotangents of the carries and, for every invariant, the sum of its
gradients so far; gradients of stacked operands leave it as stacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.ir import (
    Builder,
    Graph,
    Node,
    Phase,
    Repeat,
    Sweep,
    Tensor,
    Value,
    active_values,
)
from mithril.ir.repeat import stack
from mithril.ir.reverse import Visitors
from mithril.ir.rewrite import inline
from mithril.ops import broadcast_to
from mithril.types import TensorType


def with_residuals(
    graph: Graph, active: set[Value], visitors: Visitors
) -> tuple[Graph, Mapping[Node, LoopGradient]]:
    """Return the graph whose loops also stack what their gradients need, and those gradients.

    Args:
        graph: the forward graph.
        active: its values that depend on what is differentiated.
        visitors: see `Sweep`.
    """
    nodes: list[Node] = []
    gradients: dict[Node, LoopGradient] = {}
    for node in graph.nodes:
        if isinstance(node.op, Repeat) and active.intersection(node.inputs):
            node, gradient = _saving(node, node.op, active, visitors)
            gradients[node] = gradient
        nodes.append(node)
    return Graph(graph.inputs, tuple(nodes), graph.outputs), gradients


@dataclass(frozen=True, slots=True)
class LoopGradient:
    """The backward loop of a forward loop, apart from its operands.

    Args:
        op: the backward loop.
        carries: positions of the forward carries with a gradient.
        invariants: positions of the forward invariants with a gradient.
        slices: positions of the forward stacked operands with a gradient.
        made: positions of the forward stacks whose cotangents it takes.
        fixed: positions of the forward operands it takes as invariants.
        stacked: positions of the forward operands it takes as stacked.
        residuals: positions of the forward results it takes as stacked.
    """

    op: Repeat
    carries: tuple[int, ...]
    invariants: tuple[int, ...]
    slices: tuple[int, ...]
    made: tuple[int, ...]
    fixed: tuple[int, ...]
    stacked: tuple[int, ...]
    residuals: tuple[int, ...]

    def visit(self, node: Node, sweep: Sweep) -> None:
        """Pass the cotangents of the loop's results on to its operands."""
        if all(sweep.of(value) is None for value in node.outputs):
            return
        builder = sweep.builder
        with builder.at(scope=node.scope, source=node.source, phase=Phase.backward):
            operands = [cotangent_or_zeros(sweep, node.outputs[i]) for i in self.carries]
            operands += [zeros(builder, node.inputs[i].type) for i in self.invariants]
            operands += [Tensor(builder, node.inputs[i]) for i in self.fixed]
            operands += [Tensor(builder, node.inputs[i]) for i in self.stacked]
            operands += [Tensor(builder, node.outputs[i]) for i in self.residuals]
            operands += [cotangent_or_zeros(sweep, node.outputs[i]) for i in self.made]
            results = builder.apply(self.op, *operands)
            positions = (*self.carries, *self.invariants, *self.slices)
            for position, gradient in zip(positions, results, strict=True):
                value = node.inputs[position]
                if value in sweep.active:
                    sweep.add(value, gradient)


def visit(node: Node, sweep: Sweep, loops: Mapping[Node, LoopGradient]) -> None:
    """Pass the cotangents of a node's results on, as its kind does it."""
    if node in loops:
        loops[node].visit(node, sweep)
    else:
        sweep.visit(node)


def zeros(builder: Builder, type: TensorType) -> Tensor:
    """Return zeros of a type."""
    return broadcast_to(builder.constant(0, type.dtype), type.shape)


def cotangent_or_zeros(sweep: Sweep, value: Value) -> Tensor:
    """Return what a sweep collected for a value."""
    found = sweep.of(value)
    return zeros(sweep.builder, value.type) if found is None else found


def _saving(
    node: Node, op: Repeat, active: set[Value], visitors: Visitors
) -> tuple[Node, LoopGradient]:
    """Return the loop that stacks its residuals, and its gradient."""
    inside = _active_inside(op, node.inputs, active)
    body, inner_loops = with_residuals(op.body, inside, visitors)
    op = replace(op, body=body)
    inputs, outputs = body.inputs, list(body.outputs.values())
    first, last = op.carried, len(inputs) - op.stacked
    carries = _positions(inputs, range(first), inside)
    invariants = _positions(inputs, range(first, last), inside)
    slices = _positions(inputs, range(last, len(inputs)), inside)
    made = _positions(outputs, range(op.carried, len(outputs)), inside)

    builder = Builder.extending(body)
    sweep = Sweep(builder, inside, visitors)
    seeds = {i: builder.input(outputs[i].type, f"cotangent_{i}") for i in (*carries, *made)}
    sums = [builder.input(inputs[i].type, f"sum_{i}") for i in invariants]
    with builder.at(scope=node.scope, source=node.source, phase=Phase.backward):
        for i, seed in seeds.items():
            sweep.add(outputs[i], seed)
        for inner in reversed(body.nodes):
            visit(inner, sweep, inner_loops)
        found = [cotangent_or_zeros(sweep, inputs[i]) for i in carries]
        for i, total in zip(invariants, sums, strict=True):
            gradient = sweep.of(inputs[i])
            found.append(total if gradient is None else total + gradient)
        found += [cotangent_or_zeros(sweep, inputs[i]) for i in slices]
    joint = builder.build({f"gradient_{n}": tensor for n, tensor in enumerate(found)})

    nodes, needed = _backward_half(joint, body)
    fixed = _positions(inputs, range(first, last), needed)
    stacked = _positions(inputs, range(last, len(inputs)), needed)
    made_here = [value for inner in body.nodes for value in inner.outputs]
    saved = [value for value in (*op.carries, *made_here) if value in needed]
    order = [seeds[i].value for i in carries] + [x.value for x in sums]
    order += [inputs[i] for i in (*fixed, *stacked)] + saved + [seeds[i].value for i in made]
    backward = _copy(Graph(tuple(order), nodes, joint.outputs))
    behind = len(stacked) + len(saved) + len(made)
    loop = Repeat(backward, op.count, len(carries) + len(invariants), behind, not op.reverse)
    residuals = range(len(outputs), len(outputs) + len(saved))
    gradient_loop = LoopGradient(
        loop, carries, invariants, slices, made, fixed, stacked, tuple(residuals)
    )
    return _stacking(node, op, saved), gradient_loop


def _positions(values: Sequence[Value], among: range, wanted: set[Value]) -> tuple[int, ...]:
    return tuple(i for i in among if values[i] in wanted)


def _active_inside(op: Repeat, operands: Sequence[Value], active: set[Value]) -> set[Value]:
    """Return the body's active values: what a carry becomes is active in the next iteration."""
    sources = {v for v, outer in zip(op.body.inputs, operands, strict=True) if outer in active}
    while True:
        inside = active_values(op.body, sources)
        carries = zip(op.carries, op.next_carries, strict=True)
        more = {carry for carry, after in carries if after in inside} - sources
        if not more:
            return inside
        sources |= more


def _backward_half(joint: Graph, body: Graph) -> tuple[tuple[Node, ...], set[Value]]:
    """Return the nodes that make the gradients, and the forward values they need.

    Forward nodes that depend on no input, such as constants, are among the nodes.
    """
    forward = set(body.nodes)
    fixed: set[Value] = set()
    for node in body.nodes:
        if fixed.issuperset(node.inputs):
            fixed.update(node.outputs)
    needed = set(joint.outputs.values())
    nodes = []
    for node in reversed(joint.nodes):
        is_saved = node in forward and not fixed.issuperset(node.inputs)
        if needed.intersection(node.outputs) and not is_saved:
            nodes.append(replace(node, phase=Phase.backward))
            needed.update(node.inputs)
    return tuple(reversed(nodes)), needed - fixed


def _stacking(node: Node, op: Repeat, saved: Sequence[Value]) -> Node:
    """Return the loop with further results: the stacks of some of its body's values."""
    first = len(node.outputs)
    more = {f"residual_{first + i}": value for i, value in enumerate(saved)}
    body = Graph(op.body.inputs, op.body.nodes, {**op.body.outputs, **more})
    stacks = tuple(Value(stack(value.type, op.count)) for value in saved)
    return replace(node, op=replace(op, body=body), outputs=(*node.outputs, *stacks))


def _copy(graph: Graph) -> Graph:
    """Return the graph with values of its own; inputs get distinct names."""
    builder = Builder()
    inputs = []
    for value in graph.inputs:
        name = builder.free_name(value.name or "residual")
        inputs.append(builder.input(value.type, name))
    return builder.build(inline(graph, builder, inputs))
