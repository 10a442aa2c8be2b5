"""Turn a global graph and a choice of shardings into the local program every device runs.

Nodes are visited in order. An operand is taken in the sharding the node's option needs, the node is
emitted on local shapes (its op says how, see `Op.localize`), and each result is moved to its home
at once. Every move over the mesh becomes explicit nodes; a collective carries its cause.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from mithril.cost import describe_emulation
from mithril.ir import (
    Alternative,
    Builder,
    Cause,
    Graph,
    Node,
    Op,
    Phase,
    Source,
    Tensor,
    Tensors,
    Types,
    Value,
)
from mithril.mesh import MICRO, Mesh, Sharding, carry, coarsen
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    AxisIndex,
    KeepFirst,
    Permute,
    ReduceScatter,
    TakeShard,
)
from mithril.ops.shape import Movement
from mithril.partition.group import FactorGroup
from mithril.partition.naming import first_uses, label
from mithril.partition.padding import Extent, extent, identity_of, mask, stretch, trim
from mithril.partition.shard import LocalShard
from mithril.plan import Port, Program
from mithril.sharding import Choice, Constraints, Move, Option, part_sizes
from mithril.sharding.alternatives import Alternatives
from mithril.sharding.regions import add_leading_dim
from mithril.types import Scalar


def localise(graph: Graph, given: Constraints, choice: Choice) -> Program:
    """Return the local program.

    Args:
        graph: the global graph.
        given: the mesh, how inputs arrive and outputs must leave.
        choice: an option per node, a home per value, and what finds the moves between shardings.
    """
    walk = _Localiser(graph, given, choice)
    for node in graph.nodes:
        walk.emit(node)
    return walk.finish()


@dataclass(frozen=True, slots=True)
class _Consumer:
    """Who asks for a value, for stamps and causes."""

    name: str
    phase: Phase
    node: Node | None = None


class _Localiser:
    def __init__(self, graph: Graph, given: Constraints, choice: Choice) -> None:
        self._graph = graph
        self._mesh = given.mesh
        self._given = given
        self._choice = choice
        self._resharder = choice.resharder
        self._alternatives = Alternatives(choice)
        self._producers = graph.producers()
        self._first_use = first_uses(graph)
        self._moved_on = {
            node.inputs[0]: node.outputs[0]
            for node in graph.nodes
            if isinstance(node.op, Movement) and len(node.inputs) == 1
        }
        self._builder = Builder()
        self._forms: dict[tuple[Value, Sharding, Phase], Tensor] = {}
        self._indices: dict[tuple[str, ...], Tensor] = {}
        self._extents: dict[tuple[tuple[str, ...], int], Extent] = {}
        self._masked: dict[tuple[Value, int, Scalar], Tensor] = {}
        self._produced: dict[Value, Sharding] = {}
        self._ports: list[Port] = []
        for value in graph.inputs:
            self._add_input(value)

    def emit(self, node: Node) -> None:
        """Append the local form of a node, and move its results home."""
        if node.op.bodies:
            self._emit_loop(node)
            return
        option = self._choice.options[node]
        consumer = _Consumer(label(node), node.phase, node)
        ignored = self._choice.rules[node].ignored
        operands: Tensors = [
            self._form(value, None if position in ignored else sharding, consumer)
            for position, (value, sharding) in enumerate(
                zip(node.inputs, option.operands, strict=True)
            )
        ]
        local = [
            value.type.with_shape(sharding.local_shape(value.type.shape))
            for value, sharding in zip(node.outputs, option.results, strict=True)
        ]
        with self._builder.at(scope=node.scope, source=node.source, phase=node.phase):
            operands = self._safe(node, option, operands)
            results = node.op.localize(operands, self._shard(node, option, local))
        for value, sharding, expected, result in zip(
            node.outputs, option.results, local, results, strict=True
        ):
            assert result.type == expected, f"{node!r}: {result.type} is not {expected}"
            self._finish_value(value, sharding, result, node.phase)

    def _finish_value(self, value: Value, sharding: Sharding, result: Tensor, phase: Phase) -> None:
        self._keep(value, sharding, self._builder.assign_name(result, value.name))
        if value in self._first_use and self._choice.home(value):
            self._home(value, _Consumer(self._first_use[value], phase))

    def _emit_loop(self, node: Node) -> None:
        """Append a loop: its body localised, its operands as the body takes them."""
        op, (body,) = node.op, node.op.bodies
        carried, first_slice = len(op.carries), len(node.inputs) - len(op.slices)
        inputs = {value: self._settle(value) for value in body.inputs}
        homes = [self._settle(v) for v in (*op.carries, *tuple(body.outputs.values())[carried:])]
        outputs = dict(zip(body.outputs, homes, strict=True))
        inside = Constraints.of_border(self._mesh, inputs, outputs)
        local = localise(body, inside, self._choice).graph
        consumer = _Consumer(label(node), node.phase, node)
        operands = [
            self._form(value, add_leading_dim(lies) if i >= first_slice else lies, consumer)
            for i, (value, lies) in enumerate(zip(node.inputs, inputs.values(), strict=True))
        ]
        with self._builder.at(scope=node.scope, source=node.source, phase=node.phase):
            results = self.apply(op.with_bodies([local]), *operands)
        lying = [*homes[:carried], *map(add_leading_dim, homes[carried:])]
        for value, sharding, result in zip(node.outputs, lying, results, strict=True):
            self._finish_value(value, sharding, result, node.phase)

    def _settle(self, value: Value) -> Sharding:
        home = self._choice.home(value)
        assert home is not None, "everything on the border of a loop has a home"
        return home

    def finish(self) -> Program:
        """Close the program with the outputs in their promised shardings."""
        outputs: dict[str, Tensor] = {}
        ports = []
        for name, value in self._graph.outputs.items():
            sharding = self._find_output_sharding(name, value)
            consumer = _Consumer(f"output '{name}'", self._phase(value))
            form = self._form(value, sharding, consumer)
            port = self._given.of_output(name).exit or coarsen(sharding, value.type.shape)
            outputs[name] = self._leave(form, sharding, port)
            ports.append(Port(name, value.type, port))
        local = self._builder.build(outputs)
        return Program(self._mesh, local, tuple(self._ports), tuple(ports))

    def _find_output_sharding(self, name: str, value: Value) -> Sharding:
        layout = self._given.of_output(name)
        if layout.follows is not None:
            value = self._graph.input(layout.follows)
        sharding = layout.leaves or self._choice.home(value)
        assert sharding is not None, "every output has a home"
        return sharding

    def apply(self, op: Op, *operands: Tensor) -> tuple[Tensor, ...]:
        """Append a node with the current stamp."""
        return self._builder.apply(op, *operands)

    def extent(self, axes: tuple[str, ...], size: int) -> Extent:
        """Return the part this device has of a dimension of some size that `axes` cut."""
        key = (axes, size)
        if key not in self._extents:
            indices = [self._index((axis,)) for axis in axes]
            counts = [self._mesh.sizes[axis] for axis in axes]
            self._extents[key] = extent(indices, counts, size)
        return self._extents[key]

    def _shard(self, node: Node, option: Option, outputs: Types) -> LocalShard:
        sizes = self._choice.sizes(node)
        group = partial(self._group, node, option)
        return LocalShard(self._mesh, sizes, option, outputs, self.extent, group, self.apply)

    def _group(self, node: Node, option: Option, axes: tuple[str, ...], size: int) -> FactorGroup:
        parts = part_sizes(self._mesh, axes, size)
        return FactorGroup(
            parts, self._index(axes), node, option, axes, self._mesh, self._builder,
            self._resharder, self._name, self._instead,
        )  # fmt: skip

    # -------------------------------------------------------------- padding

    def _safe(self, node: Node, option: Option, operands: Tensors) -> Tensors:
        """Return the operands with their padding masked where a result could depend on it."""
        rule = self._choice.rules[node]
        axes_of = option.axes_of()
        uneven = [f for f, axes in axes_of.items() if rule.sizes[f] % self._mesh.product(axes)]
        safe = list(operands)
        for factor in uneven:
            reduced = any((factor,) not in dims for dims in rule.results)
            reduced |= factor in rule.special
            for position, dims in enumerate(rule.operands):
                if (factor,) not in dims or not (reduced or position in node.op.indices):
                    continue
                x, extent = safe[position], self.extent(axes_of[factor], rule.sizes[factor])
                is_index = position in node.op.indices
                fill = 0 if is_index else identity_of(rule.reduction(factor), x.dtype)
                safe[position] = self._mask(x, dims.index((factor,)), extent.count, fill)
        return safe

    def _mask(self, x: Tensor, dimension: int, count: Tensor, fill: Scalar) -> Tensor:
        key = (x.value, dimension, fill)
        if key not in self._masked:
            self._masked[key] = mask(x, dimension, count, fill)
        return self._masked[key]

    # -------------------------------------------------------------- values in other shardings

    def _add_input(self, value: Value) -> None:
        layout = self._given.of(value)
        home = self._choice.home(value) if layout.is_free else None
        sharding = home or layout.arrival(self._mesh, value.type.rank)
        port = layout.entry or coarsen(sharding, value.type.shape)
        local = value.type.with_shape(port.local_shape(value.type.shape))
        x = self._builder.input(local, value.name)
        self._ports.append(Port(value.name, value.type, port))
        self._keep(value, sharding, self._enter(value, x, sharding, port))

    def _enter(self, value: Value, x: Tensor, sharding: Sharding, port: Sharding) -> Tensor:
        """Gather what arrives in the padded layout of a coarser mesh."""
        for dimension, axes in enumerate(carry(port, self._mesh).dims):
            if axes == sharding.dims[dimension]:
                continue
            counts = [port.mesh.sizes[axis] for axis in port.dims[dimension]]
            op = AllGather(axes, dimension, math.prod(counts))
            nbytes = op.count_bytes([x.type])
            seconds = self._resharder.collective_seconds(op.name, nbytes, axes)
            cause = Cause(
                value=value.name,
                produced=port.describe(),
                required=sharding.describe(),
                consumer="padding on sub-axes",
                seconds=seconds,
                emulated=describe_emulation(
                    op.name, nbytes, axes, self._mesh, self._resharder.hardware
                ),
            )
            with self._builder.at(scope=value.name, cause=cause):
                (whole,) = self.apply(op, x)
            x = trim(whole, dimension, value.type.shape[dimension], counts)
        return x

    def _leave(self, x: Tensor, sharding: Sharding, port: Sharding) -> Tensor:
        """Cut what must leave in the padded layout of a coarser mesh."""
        for dimension, axes in enumerate(carry(port, self._mesh).dims):
            if axes != sharding.dims[dimension]:
                counts = [port.mesh.sizes[axis] for axis in port.dims[dimension]]
                part = TakeShard(dimension, math.prod(counts))
                (x,) = self.apply(part, stretch(x, dimension, counts), self._index(axes))
        return x

    def _form(self, value: Value, wanted: Sharding | None, consumer: _Consumer) -> Tensor:
        """Return a value in the sharding wanted, or as it lies when that does not matter."""
        wanted = wanted or self._choice.home(value, consumer.phase) or self._produced[value]
        found = self._forms.get((value, wanted, self._span(value, consumer)))
        if found is not None:
            return found
        home = self._home(value, consumer)
        return self._move(value, home, wanted, consumer)

    def _home(self, value: Value, consumer: _Consumer) -> Sharding:
        home = self._choice.home(value, consumer.phase)
        assert home is not None, "every value that is used has a home"
        if (value, home, self._span(value, consumer)) not in self._forms:
            self._move(value, self._produced[value], home, consumer)
        return home

    def _move(self, value: Value, start: Sharding, goal: Sharding, consumer: _Consumer) -> Tensor:
        span = self._span(value, consumer)
        for move in self._resharder.path(start, goal, value.type).moves:
            if (value, move.after, span) not in self._forms:
                made = self._step(value, move, start, goal, consumer)
                self._forms[value, move.after, span] = made
        return self._forms[value, goal, span]

    def _keep(self, value: Value, sharding: Sharding, form: Tensor) -> None:
        """Remember the form in which a value is produced."""
        self._produced[value] = sharding
        for phase in Phase:
            self._forms[value, sharding, phase] = form

    def _span(self, value: Value, consumer: _Consumer) -> Phase:
        """Return how long moved forms are kept: one of a value at rest only through its phase.

        With micro-batches it is the same in all of them, and made before the first: both phases
        take that one, rather than lie beside each other through the whole run.
        """
        is_kept = self._given.of(value).rests is None or MICRO in self._mesh.names
        return Phase.forward if is_kept else consumer.phase

    def _step(
        self, value: Value, move: Move, start: Sharding, goal: Sharding, consumer: _Consumer
    ) -> Tensor:
        cause = None
        if move.is_collective:
            seconds = self._resharder.seconds(move, value.type)
            asks = self._producers.get(value) if start.partial else consumer.node
            cause = Cause(
                value=self._name(value),
                produced=start.describe(),
                required=goal.describe(),
                consumer=consumer.name,
                seconds=seconds,
                emulated=self._resharder.describe_emulation(move, value.type),
                instead=self._instead(asks) if asks else (),
                wholeness=self._say_wholeness(value, start, goal, consumer),
                is_asked=self._is_asked(value, start, goal, consumer),
            )
        scope, source = self._place(value, consumer)
        before = self._forms[value, move.before, self._span(value, consumer)]
        with self._builder.at(scope=scope, source=source, phase=consumer.phase, cause=cause):
            result = self._emit_move(value, move, before)
        return self._builder.assign_name(result, value.name)

    def _say_wholeness(
        self, value: Value, start: Sharding, goal: Sharding, consumer: _Consumer
    ) -> str:
        """Return which dimension the op that asks for a move needs whole; empty where it is none.

        A dimension that an option asks to gather is needed so for another reason.
        """
        node = consumer.node
        rule = self._choice.rules.get(node) if node else None
        if node is None or rule is None or start.partial:
            return ""
        gathered = [d for d, axes in enumerate(start.dims) if set(axes) - set(goal.dims[d])]
        for other, dims in zip(node.inputs, rule.operands, strict=True):
            for d in gathered if other == value and dims else ():
                if rule.whole.intersection(dims[d]) and not rule.asks_along(dims[d]):
                    remedy = "; split another dimension" if len(dims) > 1 else ""
                    return f"{node.op.name} needs dimension {d} whole{remedy}"
        return ""

    def _is_asked(self, value: Value, start: Sharding, goal: Sharding, consumer: _Consumer) -> bool:
        """Whether the user asked for a move: an op on either side is about splits it changes."""
        changed = [d for d, axes in enumerate(start.dims) if axes != goal.dims[d]]
        for node in (self._producers.get(value), consumer.node):
            rule = self._choice.rules.get(node) if node else None
            if node is None or rule is None:
                continue
            values, sides = (*node.inputs, *node.outputs), (*rule.operands, *rule.results)
            for other, dims in zip(values, sides, strict=True):
                if other == value and rule.asks_along(f for d in changed for f in dims[d]):
                    return True
        return False

    def _instead(self, node: Node) -> tuple[Alternative, ...]:
        if node not in self._choice.options:
            return ()  # a loop
        return self._alternatives.of(node)

    def _emit_move(self, value: Value, move: Move, x: Tensor) -> Tensor:
        counts = [self._mesh.sizes[axis] for axis in move.axes]
        count = math.prod(counts)
        reduction = move.before.reduction_of(move.axes[0]) or "sum"
        if move.kind == "to_partial":
            return self.apply(KeepFirst(), x, self._index(move.axes))[0]
        if move.kind == AllReduce.name:
            return self.apply(AllReduce(move.axes, reduction), x)[0]
        if move.kind == Permute.name:
            return self.apply(_permute(self._mesh, move), x)[0]
        if move.kind in ("slice", ReduceScatter.name, AllToAll.name):
            x = stretch(x, move.target_dimension, counts)
        if move.kind == "slice":
            part = TakeShard(move.target_dimension, count)
            return self.apply(part, x, self._index(move.axes))[0]
        if move.kind == ReduceScatter.name:
            return self.apply(ReduceScatter(move.axes, reduction, move.target_dimension, count), x)[
                0
            ]
        if move.kind == AllGather.name:
            op: Op = AllGather(move.axes, move.source_dimension, count)
        else:
            op = AllToAll(move.axes, move.target_dimension, move.source_dimension, count)
        whole = move.after.local_shape(value.type.shape)[move.source_dimension]
        return trim(self.apply(op, x)[0], move.source_dimension, whole, counts)

    def _index(self, axes: tuple[str, ...]) -> Tensor:
        if axes not in self._indices:
            with self._builder.at():
                (self._indices[axes],) = self.apply(AxisIndex(axes))
        return self._indices[axes]

    # -------------------------------------------------------------- words for people

    def _phase(self, value: Value) -> Phase:
        producer = self._producers.get(value)
        return producer.phase if producer else Phase.forward

    def _name(self, value: Value) -> str:
        if value.name:
            return value.name
        moved = self._moved_on.get(value)
        if moved is not None and moved.name:
            return moved.name  # a reshape of it has the name people know
        producer = self._producers[value]
        what = producer.op.name if producer.phase == Phase.forward else "gradient"
        return f"{producer.scope}.{what}" if producer.scope else what

    def _place(self, value: Value, consumer: _Consumer) -> tuple[str, Source | None]:
        producer = self._producers.get(value)
        return (producer.scope, producer.source) if producer else (consumer.name, None)


def _permute(mesh: Mesh, move: Move) -> Permute:
    """Devices keep their place, blocks move: member j needs the block that member i holds."""
    dimension = move.source_dimension
    held, wanted = move.before.dims[dimension], move.after.dims[dimension]
    group = mesh.groups(held)[0]
    pairs = tuple((mesh.index_over(device, wanted), member) for member, device in enumerate(group))
    return Permute(held, pairs)
