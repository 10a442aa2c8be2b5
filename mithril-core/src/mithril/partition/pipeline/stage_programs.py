"""Cut the local programs of pipelines and placed layers into programs that run without a break.

A stage program takes values of the parts before it, of earlier stage programs of its own part, and,
for every micro-batch, that one's number. Sums over the micro-batches grow from run to run of the
stage program that makes their terms; the first stage program of a part makes the zeros they start
from.

With t(m) the terms that micro-batch m gives, out of M, a collective over the axis of time becomes:

    a sum                       s = zeros before them; s = s + t(m) in each; s is the sum after them
    a sum of equal terms t      M * t after them
    a sum that inputs give      t(0) + ... + t(M - 1) before them, as for max and min
    a gathered batch            concatenate(t(0), ..., t(M - 1)) after them

What such a collective does over devices besides, it does with the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Node, Phase, Tensor, Value
from mithril.mesh import MICRO, Mesh, Sharding
from mithril.ops import add, broadcast_to, cast, concatenate
from mithril.ops.collective import AllGather, AllReduce
from mithril.ops.reduce import accumulator
from mithril.partition.pipeline.late_gathers import gather_late
from mithril.partition.pipeline.microbatch_index import (
    NUMBER,
    at_once,
    bind_microbatch_index,
    varying,
)
from mithril.partition.pipeline.microbatches import timeless_port
from mithril.partition.pipeline.phases import ExecutionPhase, PhasedProgram, When
from mithril.plan import Port, Program
from mithril.plan.schedule import Work
from mithril.types import TensorType

SUMS = ("sum", "zeros")
"""Kinds of slot references that hold a sum over micro-batches, in its own dtype."""


@dataclass(frozen=True, slots=True)
class SlotRef:
    """A value of a part's local program, as stage programs hand it on.

    Args:
        part: whose.
        value: which.
        kind: empty for itself; `sum` for the accumulator over the micro-batches, `zeros` for what
            that starts from.
        microbatch: for what it was in one of them, which.
    """

    part: int
    value: Value
    kind: str = ""
    microbatch: int | None = None


@dataclass(slots=True, eq=False)
class StageProgram:
    """A program that runs without a break.

    Args:
        of: when and where.
        program: what runs.
        takes: what each input is; None for the micro-batch's number.
        gives: what each output is.
    """

    of: ExecutionPhase
    program: Program
    takes: list[SlotRef | None]
    gives: list[SlotRef]


@dataclass(eq=False)
class StageBuilder:
    """Cuts the program of one part by the phases of its nodes.

    Args:
        item: the program and the phases of its nodes.
        mesh: the part's devices.
        count: how many micro-batches there are.
    """

    item: PhasedProgram
    mesh: Mesh
    count: int
    alias: dict[Value, SlotRef] = field(default_factory=dict)
    _nodes: dict[ExecutionPhase, list[Node]] = field(default_factory=dict)
    _extra: dict[ExecutionPhase, list[Node]] = field(default_factory=dict)
    _sums: dict[ExecutionPhase, dict[Value, None]] = field(default_factory=dict)
    _refs: dict[Value, SlotRef] = field(default_factory=dict)
    _sum_ports: dict[Value, Port] = field(default_factory=dict)

    def stage_programs(self) -> Iterator[StageProgram]:
        """Yield the stage programs, one for each phase."""
        for node, found in self.item.phases.items():
            if found is not None and node not in self.item.microbatch_reductions:
                self._nodes.setdefault(found, []).append(node)
        for reduction in self.item.microbatch_reductions:
            self._join(reduction)
        self._add_zeros()
        self._add_constant_outputs()
        wanted = self._find_leaving()
        for found in sorted({*self._nodes, *self._extra}):
            yield self._stage_program(found, wanted)

    @property
    def graph(self) -> Graph:
        """The local graph of the part."""
        return self.item.local.program.graph

    @cached_property
    def received_inputs(self) -> Mapping[str, Value]:
        """The inputs of the part that other parts make, by name."""
        return {v.name: v for v in self.graph.inputs if v.name in self.item.local.crossing}

    def names_of(self, ref: SlotRef) -> list[str]:
        """Return the names under which a value leaves for other parts."""
        outputs = self.graph.outputs.items()
        return [n for n, v in outputs if n in self.item.local.crossing and self.ref(v) == ref]

    def leaving(self, name: str) -> SlotRef:
        """Return what leaves under a name."""
        return self.ref(self.graph.outputs[name])

    def leaving_port(self, name: str) -> Port:
        """Return how it leaves."""
        return next(
            timeless_port(p, self.mesh) for p in self.item.local.program.outputs if p.name == name
        )

    def arriving_port(self, value: Value) -> Port:
        """Return how an input of the part arrives."""
        return self._ports[value]

    def varies(self, value: Value) -> bool:
        """Return whether a value differs from micro-batch to micro-batch."""
        return value in self.item.varies

    def ref(self, value: Value) -> SlotRef:
        """Return what a value of the program is handed on as."""
        found = self.alias.get(value) or self._refs.get(value)
        return found or SlotRef(self.item.local.part, value)

    # -------------------------------------------------------------- what joins micro-batches

    def _join(self, node: Node) -> None:
        """Put a sum, or the whole batch, behind the micro-batches."""
        after = ExecutionPhase(When.after, 0, self.item.local.part)
        if node in self.item.early:
            self._reduce_early(node)
            return
        for value, result in zip(node.inputs, node.outputs, strict=True):
            builder = Builder.extending(Graph((value,), (), {}))
            stamp = {"scope": node.scope, "source": node.source, "phase": node.phase}
            with builder.at(**stamp, cause=node.cause):  # type: ignore[arg-type]
                if isinstance(node.op, AllReduce):
                    x = self._sum(builder, node.op, value, node)
                else:
                    assert isinstance(node.op, AllGather), (
                        "cross-microbatch reductions are sums and gathers"
                    )
                    x = self._gather(builder, node.op, value)
                x = cast(x, result.type.dtype)
            nodes = builder.build({"result": x}).nodes
            if nodes:
                last = replace(nodes[-1], outputs=(result,))
                self._extra.setdefault(after, []).extend([*nodes[:-1], last])
            else:
                # Nothing is left to do after the micro-batches: the result is the accumulator.
                self.alias[result] = self._refs[x.value]
                if result in self._ports:  # the sum leaves as it is, so it has to lie as promised
                    self._sum_ports[value] = self._ports[result]

    def _reduce_early(self, node: Node) -> None:
        """Put a reduction that inputs suffice for before the micro-batches."""
        first = ExecutionPhase(When.before, 0, self.item.local.part)
        origins, op = self.item.origins(node), node.op
        assert origins is not None and isinstance(op, AllReduce), "only these are early"
        given = self.item.local.program.graph.inputs
        sizes = {**self._mesh.sizes, MICRO: self.count}
        for value, result in zip(node.inputs, node.outputs, strict=True):
            builder = Builder.extending(Graph(given, (), {}))
            with builder.at(scope=node.scope, source=node.source, cause=node.cause):
                total = at_once(builder, origins, value, op.reduction, sizes)
                rest = tuple(axis for axis in op.axes if axis != MICRO)
                if rest:
                    (total,) = builder.apply(replace(op, axes=rest), total)
            *nodes, last = builder.build({"result": total}).nodes
            self._extra.setdefault(first, []).extend([*nodes, replace(last, outputs=(result,))])

    def _sum(self, builder: Builder, op: AllReduce, value: Value, node: Node) -> Tensor:
        """Return what a sum over micro-batches is after them."""
        if op.reduction != "sum":
            raise _no_reduction(node, op.reduction)
        source = self.item.state[value]
        if source is None or source.when != When.during:  # a term that is the same in each of them
            x: Tensor = Tensor(builder, value) * self.count
        else:
            x = builder.input(self._sum_type(value), "sum")
            self._refs[x.value] = SlotRef(self.item.local.part, value, "sum")
            self._sums.setdefault(source, {})[value] = None
        rest = tuple(axis for axis in op.axes if axis != MICRO)
        return builder.apply(replace(op, axes=rest), cast(x, value.type.dtype))[0] if rest else x

    def _gather(self, builder: Builder, op: AllGather, value: Value) -> Tensor:
        """Return the batch, put together again after the micro-batches."""
        parts = [builder.input(value.type, f"part {m}") for m in range(self.count)]
        for m, tensor in enumerate(parts):
            self._refs[tensor.value] = SlotRef(self.item.local.part, value, microbatch=m)
        rest = tuple(axis for axis in op.axes if axis != MICRO)
        over = replace(op, axes=rest, count=op.count // self.count)
        if rest and op.axes[0] == MICRO:  # each micro-batch is put together by itself
            parts = [builder.apply(over, x)[0] for x in parts]
        whole: Tensor = concatenate(parts, op.dimension)
        return builder.apply(over, whole)[0] if rest and op.axes[0] != MICRO else whole

    def _sum_type(self, value: Value) -> TensorType:
        return TensorType(value.type.shape, accumulator(value.type.dtype))

    def _add_zeros(self) -> None:
        first = ExecutionPhase(When.before, 0, self.item.local.part)
        for value in {v: None for values in self._sums.values() for v in values}:
            builder = Builder()
            type = self._sum_type(value)
            zero = broadcast_to(builder.constant(0, type.dtype), type.shape)
            nodes = builder.build({"zeros": zero}).nodes
            self._extra.setdefault(first, []).extend(nodes)
            self._refs[zero.value] = SlotRef(self.item.local.part, value, "zeros")

    def _add_constant_outputs(self) -> None:
        first = ExecutionPhase(When.before, 0, self.item.local.part)
        for value in self.item.local.program.graph.outputs.values():
            if self.item.state[value] is None:
                self._nodes.setdefault(first, [])

    # -------------------------------------------------------------- one stage program

    def _find_leaving(self) -> set[Value]:
        """Return the values that leave the stage program that makes them, whoever needs them."""
        wanted = set(self.item.local.program.graph.outputs.values())
        made_by = {
            value: found
            for found, nodes in [*self._nodes.items(), *self._extra.items()]
            for node in nodes
            for value in node.outputs
        }
        for found, nodes in [*self._nodes.items(), *self._extra.items()]:
            for node in nodes:
                wanted.update(v for v in node.inputs if made_by.get(v, found) != found)
        gathered = (n for n in self.item.microbatch_reductions if isinstance(n.op, AllGather))
        # What is gathered again has no phase, and may be a shard that one program takes for all.
        anywhere = (node for node, found in self.item.phases.items() if found is None)
        wanted.update(value for node in (*gathered, *anywhere) for value in node.inputs)
        wanted.update(v for v, ref in self._refs.items() if ref.kind == "zeros")
        return wanted

    def _stage_program(self, found: ExecutionPhase, wanted: set[Value]) -> StageProgram:
        program = self.item.local.program
        own = {*self._nodes.get(found, ())}
        extra = self._extra.get(found, [])
        is_first = found.when == When.before and found.layer == 0
        constant = [v for v in program.graph.outputs.values() if self.item.state[v] is None]
        sums = self._sums.get(found, {})
        needed = {v for node in (*own, *extra) for v in node.inputs} | set(sums)
        needed |= set(constant if is_first else ())
        kept: list[Node] = []
        # What depends on no input has no phase: each stage program that needs it computes it anew,
        # which is cheaper than keeping it between runs.
        for node in reversed(program.graph.nodes):
            everywhere = node in self.item.phases and self.item.phases[node] is None
            if node in own or (everywhere and not needed.isdisjoint(node.outputs)):
                needed.update(node.inputs)
                kept.append(node)
        ordered = gather_late(kept[::-1], self.item.gathered)
        joined = dict.fromkeys([*self._find_before(extra, ordered), *extra, *ordered])
        nodes, number = bind_microbatch_index([*joined], self.count, self._mesh)
        made = {value for node in nodes for value in node.outputs}
        takes: dict[Value, SlotRef | None] = {}
        for value in dict.fromkeys(v for node in nodes for v in node.inputs):
            if value not in made:
                takes[value] = None if value is number else self.ref(value)
        leaving = (v for node in nodes for v in node.outputs if v in wanted)
        gives = {v: self.ref(v) for v in leaving if self._leaves(v, found)}
        builder = Builder.extending(Graph((), tuple(nodes), {}))
        for value in sums:
            if value not in made:
                takes.setdefault(value, self.ref(value))
            before, after = self._add_to_sum(builder, value, found)
            takes[before] = self._refs[before]
            gives[after] = self._refs[after]
        return self._build_program(found, builder.build({}).nodes, takes, gives)

    def _find_before(self, extra: Sequence[Node], ordered: Sequence[Node]) -> list[Node]:
        """Return the nodes without a phase that what joins micro-batches needs, in order."""
        needed, found = {value for node in extra for value in node.inputs}, list[Node]()
        for node in reversed(ordered):
            if self.item.phases.get(node) is None and not needed.isdisjoint(node.outputs):
                needed.update(node.inputs)
                found.append(node)
        return found[::-1]

    def _add_to_sum(
        self, builder: Builder, value: Value, found: ExecutionPhase
    ) -> tuple[Value, Value]:
        phase = Phase.forward if found.work == Work.forward else Phase.backward
        with builder.at(phase=phase):
            before = builder.input(self._sum_type(value), f"{value.name or 'value'} accumulator")
            after = add(before, cast(Tensor(builder, value), before.dtype))
        ref = SlotRef(self.item.local.part, value, "sum")
        self._refs[before.value] = self._refs[after.value] = ref
        return before.value, after.value

    def _leaves(self, value: Value, found: ExecutionPhase) -> bool:
        """Whether a stage program hands a value on; what all could compute leaves the first."""
        is_first = found.when == When.before and found.layer == 0
        return self.item.state.get(value) is not None or value in self._refs or is_first

    def _build_program(
        self,
        found: ExecutionPhase,
        nodes: Sequence[Node],
        takes: Mapping[Value, SlotRef | None],
        gives: Mapping[Value, SlotRef],
    ) -> StageProgram:
        entering = {v: Value(v.type, n) for v, n in zip(takes, _names(takes), strict=True)}
        names = _names(gives)
        renamed = tuple(
            replace(node, inputs=tuple(entering.get(v, v) for v in node.inputs)) for node in nodes
        )
        outputs = dict(zip(names, gives, strict=True))
        program = Program(
            self._mesh,
            Graph(tuple(entering.values()), renamed, outputs),
            tuple(replace(self._port(v), name=new.name) for v, new in entering.items()),
            tuple(replace(self._port(v), name=name) for name, v in outputs.items()),
        )
        return StageProgram(found, program, list(takes.values()), list(gives.values()))

    # -------------------------------------------------------------- how values lie

    @cached_property
    def _mesh(self) -> Mesh:
        own = self.item.local.program.mesh
        axes = (axis for axis in own.axes if axis.name != MICRO)
        return Mesh.of_axes(axes, self.mesh.devices, own.order)

    @cached_property
    def _ports(self) -> Mapping[Value, Port]:
        """The ports of what enters and leaves the part."""
        program = self.item.local.program
        entering = zip(program.graph.inputs, program.inputs, strict=True)
        leaving = ((program.graph.outputs[port.name], port) for port in program.outputs)
        return {v: timeless_port(port, self.mesh) for v, port in (*leaving, *entering)}

    @cached_property
    def _varies(self) -> Mapping[Value, frozenset[str]]:
        return varying(self.item.local.program)

    def _port(self, value: Value) -> Port:
        """Return how a value lies; one that stays where it is made is each device's own."""
        if value.name == NUMBER:
            return Port(value.name, value.type, Sharding.replicated(self._mesh, 0))
        ref = self._refs.get(value)
        source = value if ref is None else ref.value
        known = self._ports if ref is None or ref.kind not in SUMS else self._sum_ports
        if source in known:
            return known[source]
        # It never leaves its devices, so nothing says how it lies. It is called partial over all
        # axes along which it may differ, so that nobody takes it for a replicated value.
        axes = self._varies[source]
        pending = tuple(
            (axis.name, "sum") for axis in self._mesh.axes if axis.size > 1 and axis.name in axes
        )
        lies = Sharding(self._mesh, ((),) * value.type.rank, pending)
        return Port(value.name, value.type, lies)


def _names(values: Iterable[Value]) -> list[str]:
    """Return a name for each value, its own where it has one that no other has."""
    names: dict[str, None] = {}
    for number, value in enumerate(values):
        name = value.name if value.name and value.name not in names else f"%{number}"
        names[name] = None
    return list(names)


def _no_reduction(node: Node, reduction: str) -> PlanError:
    return PlanError(
        f"pipeline cannot cut the batch into micro-batches; {node.where()} takes the {reduction} "
        f"of all of them, and only sums grow from one to the next; use one micro-batch, or compute "
        f"it outside the model"
    )
