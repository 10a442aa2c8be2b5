"""When a node of the local programs runs: before the micro-batches, for each, or after them.

A value varies over the micro-batches if it depends on their number. What does not vary is computed
once: before them, or, if it needs a sum over all of them, after. Such a sum, and the batch put
together again, are collectives over the axis of time; nothing in a pipeline may wait for one.
A reduction is hoisted before the micro-batches instead where inputs suffice for it (how many tokens
count in the whole batch, say), so that its result may be used in each of them. What is gathered
again is none of what is computed once: whatever needs it gathers it.

Nodes that run once are layered: those of one layer of a part run together, and need nothing of the
same layer of another part. Without micro-batches everything runs once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from mithril.errors import PlanError
from mithril.ir import Node, Phase, Value
from mithril.ir.rewrite import all_nodes
from mithril.mesh import MICRO, Mesh, list_origins
from mithril.ops.collective import AllGather, AllReduce, Collective
from mithril.partition.pipeline.microbatch_index import REDUCTIONS, reads_microbatch_index
from mithril.plan import Program
from mithril.plan.schedule import Work

CHEAP = 8
"""Operations for each element that may be spent on what is computed before the micro-batches."""


class When(IntEnum):
    """Before, during or after the micro-batches."""

    before = 0
    during = 1
    after = 2


EVERYWHERE = -1
"""In place of a part, for what several of them make."""
NOTHING: Mapping[str, Sequence[str]] = {}
"""No inputs that consist of outputs."""
WORKS = tuple(Work)
"""The order in which works of a stage are listed."""


@dataclass(frozen=True, slots=True)
class ExecutionPhase:
    """Nodes that run together.

    Args:
        when: before, during or after the micro-batches.
        layer: of what runs once.
        part: where.
        work: of what runs for every micro-batch.
    """

    when: When
    layer: int
    part: int
    work: Work = Work.forward

    def __lt__(self, other: ExecutionPhase) -> bool:
        return self._key < other._key

    @property
    def _key(self) -> tuple[int, ...]:
        return self.when, self.layer, self.part, WORKS.index(self.work)


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """The local program of a part.

    Args:
        part: its number.
        program: on a mesh that has the axis of micro-batches, too.
        crossing: names of the inputs and outputs that go from part to part.
    """

    part: int
    program: Program
    crossing: frozenset[str]


@dataclass(slots=True, eq=False)
class PhasedProgram:
    """The nodes of one local program.

    Args:
        local: the program.
        phases: of each node; None for what depends on no input and is computed where it is needed.
        state: the phase that makes each value, None likewise.
        varies: the values that differ from micro-batch to micro-batch.
        microbatch_reductions: the collectives over the axis of micro-batches.
        early: those of them that can be computed from the inputs before the micro-batches.
        again: axes over which what is the same for all of them is gathered wherever it is needed.
        gathered: what is gathered so, and what is made of nothing but that.
    """

    local: Local
    phases: dict[Node, ExecutionPhase | None] = field(default_factory=dict)
    state: dict[Value, ExecutionPhase | None] = field(default_factory=dict)
    varies: set[Value] = field(default_factory=set)
    microbatch_reductions: list[Node] = field(default_factory=list)
    early: set[Node] = field(default_factory=set)
    again: frozenset[str] = frozenset()
    gathered: set[Value] = field(default_factory=set)

    def origins(self, node: Node) -> list[Node] | None:
        """Return what a cross-microbatch reduction is computed from; None unless inputs suffice.

        They must be cheap: they are run for all micro-batches before the first.
        """
        needed, found = set(node.inputs), []
        for other in reversed(self.local.program.graph.nodes):
            if not needed.isdisjoint(other.outputs):
                found.append(other)
                needed.update(other.inputs)
        given = [v for v in self.local.program.graph.inputs if v in needed]
        if any(value.name in self.local.crossing for value in given):
            return None
        if any(n.phase != Phase.forward or n.op.is_collective or n.op.bodies for n in found):
            return None
        work = sum(n.cost().flops for n in found)
        size = sum(value.type.size for n in found for value in n.outputs)
        return found[::-1] if work <= CHEAP * size else None


def hoist(
    locals: Sequence[Local],
    split: bool,
    joined: Mapping[str, Sequence[str]] = NOTHING,
    again: frozenset[str] = frozenset(),
) -> list[PhasedProgram]:
    """Return when the nodes of all parts run.

    Args:
        locals: the programs.
        split: whether backwards are split into gradients of inputs and of weights.
        joined: inputs that consist of outputs, by name: gradients of stacks.
        again: axes over which what is the same for all micro-batches is gathered in each run.

    Raises:
        PlanError: a layer needs all micro-batches at once.
    """
    found = {local.part: PhasedProgram(local, again=again) for local in locals}
    made: dict[str, tuple[ExecutionPhase, bool]] = {}
    terms = frozenset(name for parts in joined.values() for name in parts)
    waiting = {part: list(item.local.program.graph.nodes) for part, item in found.items()}
    for item in found.values():
        _enter(item, joined)
    while any(waiting.values()):
        before = sum(map(len, waiting.values()))
        for part, item in found.items():
            waiting[part] = _advance(item, waiting[part], made, terms)
        made |= {
            name: _join(parts, made) for name, parts in joined.items() if made.keys() >= {*parts}
        }
        assert sum(map(len, waiting.values())) < before, "parts wait for each other"
    for item in found.values():
        _check_arrivals(item, made)
        if split:
            _split_backward(item)
    return list(found.values())


def _enter(item: PhasedProgram, joined: Collection[str]) -> None:
    program = item.local.program
    first = ExecutionPhase(When.before, 0, item.local.part)
    for port, value in zip(program.inputs, program.graph.inputs, strict=True):
        if port.name not in item.local.crossing and port.name not in joined:
            item.state[value] = first


def _join(
    parts: Sequence[str], made: Mapping[str, tuple[ExecutionPhase, bool]]
) -> tuple[ExecutionPhase, bool]:
    """Return when parts are made that lie on several places: it is no place's own."""
    when, layer = max((made[name][0].when, made[name][0].layer) for name in parts)
    return ExecutionPhase(when, layer, EVERYWHERE), False


def _advance(
    item: PhasedProgram,
    nodes: Sequence[Node],
    made: dict[str, tuple[ExecutionPhase, bool]],
    terms: Collection[str],
) -> list[Node]:
    """Assign phases to the nodes that need nothing unknown; return the others."""
    waiting = []
    for node in nodes:
        if all(_is_known(item, value, made) for value in node.inputs):
            _assign_phase(item, node)
        else:
            waiting.append(node)
    for name, value in item.local.program.graph.outputs.items():
        if (name in item.local.crossing or name in terms) and value in item.state:
            found = item.state[value] or ExecutionPhase(When.before, 0, item.local.part)
            made[name] = found, value in item.varies
    return waiting


def _is_known(
    item: PhasedProgram, value: Value, made: Mapping[str, tuple[ExecutionPhase, bool]]
) -> bool:
    if value in item.state:
        return True
    if value.name not in made:
        return False
    item.state[value], varies = made[value.name]
    if varies:
        item.varies.add(value)
    return True


def _assign_phase(item: PhasedProgram, node: Node) -> None:
    part = item.local.part
    needs = [c for c in (item.state[value] for value in node.inputs) if c is not None]
    varies = any(value in item.varies for value in node.inputs) or reads_microbatch_index(node)
    late = [c for c in needs if c.when == When.after]
    is_gathered = not item.gathered.isdisjoint(node.inputs)
    if _is_microbatch_reduction(node):
        item.microbatch_reductions.append(node)
        found: ExecutionPhase | None = ExecutionPhase(When.after, 0, part)
        varies = False
        is_reduced = isinstance(node.op, AllReduce) and node.op.reduction in REDUCTIONS
        if is_reduced and item.origins(node) is not None:
            item.early.add(node)
            found = ExecutionPhase(When.before, 0, part)
    elif not needs and not (varies and is_gathered):
        found = None
        if is_gathered:
            item.gathered.update(node.outputs)
    elif varies:
        if late:
            raise _waits(node)
        work = Work.forward if node.phase == Phase.forward else Work.backward
        found = ExecutionPhase(When.during, 0, part, work)
    elif not late and _gathers_over(node, item.again, item.local.program.mesh):
        found = None
        item.gathered.update(node.outputs)
    else:
        when = When.after if late else When.before
        # One layer further than what another part makes: it has to be sent in between.
        layers = [c.layer + (c.part != part) for c in late or needs]
        found = ExecutionPhase(when, max(layers), part)
    item.phases[node] = found
    for value in node.outputs:
        item.state[value] = found
        if varies:
            item.varies.add(value)


def check_microbatch_reductions(program: Program) -> None:
    """Raise where something else than a sum, or the whole batch, is needed of all micro-batches.

    Raises:
        PlanError: a layer needs them at once.
    """
    for node in program.graph.nodes:
        _is_microbatch_reduction(node)


def _gathers_over(node: Node, axes: frozenset[str], mesh: Mesh) -> bool:
    """Return whether a node gathers over some axes of a mesh, as a user knows them, alone."""
    return isinstance(node.op, AllGather) and axes.issuperset(list_origins(mesh, node.op.axes))


def _is_microbatch_reduction(node: Node) -> bool:
    over_time = [n for n in all_nodes(node) if isinstance(n.op, Collective) and MICRO in n.op.axes]
    if over_time and not isinstance(node.op, AllReduce | AllGather):
        raise _waits(over_time[0])
    return bool(over_time)


def _waits(node: Node) -> PlanError:
    what = node.cause.consumer if node.cause else ""
    where = node.where()
    who = where if not what or where.strip("'").split("'")[0] in what else f"{what}, from {where},"
    return PlanError(
        f"pipeline cannot cut the batch into micro-batches; {who} needs all of them at once; use "
        f"one micro-batch, a layer that treats samples by themselves, or pass in what is known of "
        f"the whole batch, such as the number of samples that count, as an input"
    )


def _check_arrivals(item: PhasedProgram, made: Mapping[str, tuple[ExecutionPhase, bool]]) -> None:
    """Settle what arrives and is only passed on."""
    for value in item.local.program.graph.inputs:
        if value not in item.state:
            assert _is_known(item, value, made), f"{value!r} arrives from nowhere"


def _split_backward(item: PhasedProgram) -> None:
    """Tell the gradients that other stages wait for from those of weights."""
    graph = item.local.program.graph
    wanted = {v for name, v in graph.outputs.items() if name in item.local.crossing}
    # Backwards from what goes to other stages: what leads there comes first; the rest can wait.
    for node in reversed(graph.nodes):
        found = item.phases[node]
        if found is None or found.when != When.during or found.work != Work.backward:
            continue
        is_awaited = not wanted.isdisjoint(node.outputs)
        work = Work.input_gradient if is_awaited else Work.weight_gradient
        item.phases[node] = ExecutionPhase(When.during, 0, item.local.part, work)
        item.state.update(dict.fromkeys(node.outputs, item.phases[node]))
        if is_awaited:
            wanted.update(node.inputs)
