"""Difference: what one plan does otherwise than another, by tensors, ops, moves and stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.cost import SIMULATED, as_hardware, predict_memory, predict_timeline
from mithril.errors import OptionError
from mithril.ir import Graph, Node
from mithril.ir.rewrite import all_nodes, is_alike
from mithril.plan import Collective, Execution, Plan
from mithril.plan.printer import over, times_of
from mithril.tables import list_numbers
from mithril.units import format_bytes, format_seconds

SHOWN = 20
"""A text names no more tensors, ops, stages and collectives than this, of each."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that lies otherwise.

    Args:
        name: of a parameter, input, output or layer output.
        before: its type and how it lay; empty where the plan had no such tensor.
        after: the same of the other plan.
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of both plans; None where it is not known.

    Args:
        name: what it is of.
        before: of the first plan.
        after: of the second.
    """

    name: str
    before: float | None
    after: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """What a plan does otherwise than another.

    Args:
        tensors: that lie otherwise, or that one plan alone has.
        gone: collectives of the first plan that the second has not, with how many there were.
        new: collectives of the second plan that the first has not.
        bytes: that a device moves, by mesh axis, where they differ.
        seconds: of a step as predicted, with the profile that priced each plan.
        memory: bytes that the fullest device holds at once.
        profiles: names of the profiles that priced the plans.
        meshes: of the plans, in words.
        ops_gone: ops, with attributes and layer, that the first plan runs more often.
        ops_new: the same of the second plan.
        stages: that run on other devices, or at other times, or that one plan alone has.
        schedules: of the pipelines, in words; empty where there is none.
        rewired: stages whose ops are the same, in another order or on other operands.
    """

    tensors: tuple[Moved, ...]
    gone: tuple[tuple[Collective, int], ...]
    new: tuple[tuple[Collective, int], ...]
    bytes: tuple[Change, ...]
    seconds: Change
    memory: Change
    profiles: tuple[str, str]
    meshes: tuple[str, str]
    ops_gone: tuple[tuple[str, int], ...] = ()
    ops_new: tuple[tuple[str, int], ...] = ()
    stages: tuple[Moved, ...] = ()
    schedules: tuple[str, str] = ("", "")
    rewired: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether both plans do the same."""
        pairs = [(x.before, x.after) for x in (self.seconds, self.memory)]
        is_same = all(before == after for before, after in (*pairs, self.meshes, self.schedules))
        moved = self.tensors or self.gone or self.new or self.bytes
        return is_same and not (
            moved or self.ops_gone or self.ops_new or self.stages or self.rewired
        )

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def compare(before: Plan, after: Plan) -> Difference:
    """Return what a plan does otherwise than another.

    Args:
        before: the first plan.
        after: the second.

    >>> import mithril as ml
    >>> def plan_of(spec):
    ...     model, mesh = ml.Linear(8), ml.Mesh(data=2)
    ...     shapes = {"input": ml.TensorSpec((4, 6), sharding=spec)}
    ...     return ml.compile(model, ml.NumpyBackend(mesh), shapes=shapes).plan
    >>> found = compare(plan_of(ml.P()), plan_of(ml.P("data")))
    >>> [moved.name for moved in found.tensors][:1]
    ['input']
    """
    old, new = (Counter(map(_key, plan.collectives())) for plan in (before, after))
    rows = {_key(row): row for plan in (before, after) for row in plan.collectives()}
    old_ops, new_ops = map(_count_ops, (before, after))
    return Difference(
        tuple(_compare_tensors(before, after)),
        tuple((rows[key], count) for key, count in (old - new).items()),
        tuple((rows[key], count) for key, count in (new - old).items()),
        tuple(_compare_bytes(before.bytes_by_axis(), after.bytes_by_axis())),
        Change("step", _seconds(before), _seconds(after)),
        Change("memory", _peak(before), _peak(after)),
        (_profile(before), _profile(after)),
        (repr(before.mesh), repr(after.mesh)),
        tuple((old_ops - new_ops).items()),
        tuple((new_ops - old_ops).items()),
        tuple(_compare_stages(before, after)),
        _describe_schedules(before, after),
        () if old != new or old_ops != new_ops else tuple(_list_rewired(before, after)),
    )


def _key(row: Collective) -> tuple[object, ...]:
    """Return what makes two collectives the same: all but the prices and the other ways."""
    cause = row.cause
    return (
        row.kind, row.axes, row.bytes, row.phase, row.scope, row.times, cause.value, cause.parts,
        cause.consumer,
    )  # fmt: skip


def _compare_tensors(before: Plan, after: Plan) -> Iterator[Moved]:
    """Yield what lies otherwise, those first that both plans have."""
    both = [name for name in before.specs if name in after.specs]
    for name in dict.fromkeys((*both, *before.specs, *after.specs)):
        old, new = _describe(before, name), _describe(after, name)
        if old != new:
            yield Moved(name, old, new)


def _describe(plan: Plan, name: str) -> str:
    report = plan.specs.get(name)
    return "" if report is None else f"{report.type} {report.sharding.describe()}"


def _compare_bytes(old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[Change]:
    for axes in dict.fromkeys((*old, *new)):
        change = Change(axes, old.get(axes, 0), new.get(axes, 0))
        if change.before != change.after:
            yield change


def _count_ops(plan: Plan) -> Counter[str]:
    """Return how often each op runs, but for collectives; what is in a loop counts once a loop."""
    found: Counter[str] = Counter()
    for stage, times in zip(plan.stages, _times(plan), strict=True):
        for node in all_nodes(stage.program.graph):
            if not node.op.is_collective:
                found[_describe_op(node)] += times
    return found


def _describe_op(node: Node) -> str:
    """Return an op with its attributes, those aside that are graphs: their ops count as well."""
    values = node.op.attributes.items()
    shown = ", ".join(f"{name}={value}" for name, value in values if not isinstance(value, Graph))
    text = f"{node.op.name}[{shown}]" if shown else node.op.name
    return f"{text}, {node.phase}" + (f" at {node.scope}" if node.scope else "")


def _times(plan: Plan) -> list[int]:
    times = plan.timetable.times()
    return [times[number] for number in range(len(plan.stages))]


def _compare_stages(before: Plan, after: Plan) -> Iterator[Moved]:
    old, new = map(_describe_stages, (before, after))
    for name in dict.fromkeys((*old, *new)):
        if old.get(name) != new.get(name):
            yield Moved(name, old.get(name, ""), new.get(name, ""))


def _describe_stages(plan: Plan) -> dict[str, str]:
    return {
        stage.name: f"{times} x on {list_numbers(stage.devices)}"
        for stage, times in zip(plan.stages, _times(plan), strict=True)
    }


def _describe_schedules(before: Plan, after: Plan) -> tuple[str, str]:
    old, new = before.timetable.schedule, after.timetable.schedule
    shown = ["" if s is None else f"{s.name} of {s.microbatches} micro-batches" for s in (old, new)]
    if shown[0] == shown[1] and old is not None and new is not None and old.rows != new.rows:
        shown[1] += ", in another order"
    return shown[0], shown[1]


def _list_rewired(before: Plan, after: Plan) -> Iterator[str]:
    for old, new in zip(before.stages, after.stages, strict=False):
        if old.name == new.name and not is_alike(old.program.graph, new.program.graph):
            yield old.name


def _profile(plan: Plan) -> str:
    return "" if plan.pricing is None else plan.pricing.profile


def _seconds(plan: Plan) -> float | None:
    """Return the seconds of a step; None where no profile of this machine describes the devices."""
    pricing = plan.pricing
    if pricing is None or pricing.unknown_platform:
        return None
    try:
        hardware = as_hardware(pricing.profile)
    except OptionError:  # one's own, of another machine; the text says that nothing is predicted
        return None
    return predict_timeline(plan, replace(hardware, execution=pricing.execution)).seconds


def _peak(plan: Plan) -> int:
    execution = Execution() if plan.pricing is None else plan.pricing.execution
    return predict_memory(plan, replace(SIMULATED, execution=execution)).peak


# ------------------------------------------------------------------ text


def _lines(found: Difference) -> Iterator[str]:
    if found.is_empty:
        yield "plans do the same"
        return
    if found.meshes[0] != found.meshes[1]:
        yield f"mesh: {found.meshes[0]} -> {found.meshes[1]}"
    yield f"tensors that lie otherwise: {len(found.tensors)}"
    yield from _shorten([_describe_move(moved) for moved in found.tensors])
    for title, mark, rows in (("gone", "-", found.gone), ("new", "+", found.new)):
        yield f"collectives that are {title}: {sum(count for _, count in rows)}"
        yield from _shorten([f"  {mark} {_collective_line(row, count)}" for row, count in rows])
    for title, mark, ops in (("gone", "-", found.ops_gone), ("new", "+", found.ops_new)):
        yield f"ops that are {title}: {sum(count for _, count in ops)}"
        yield from _shorten([f"  {mark} {_often(count)}{op}" for op, count in ops])
    if found.stages:
        yield f"stages that run otherwise: {len(found.stages)}"
        yield from _shorten([_describe_move(moved) for moved in found.stages])
    if found.schedules[0] != found.schedules[1]:
        yield "schedule: " + " -> ".join(schedule or "none" for schedule in found.schedules)
    if found.rewired:
        yield "stages of the same ops, in another order or on other operands:"
        yield from _shorten([f"  {name}" for name in found.rewired])
    yield "bytes of a device by mesh axis" + ("" if found.bytes else ": the same")
    yield from (f"  {change.name}: {_change(change, format_bytes)}" for change in found.bytes)
    yield f"memory of the fullest device: {_change(found.memory, format_bytes)}"
    before, after = found.profiles
    profiles = f"profile '{before}'" if before == after else f"profiles '{before}' and '{after}'"
    if found.seconds.before is None or found.seconds.after is None:
        yield "step: no time is predicted, since no profile here describes the devices of both"
    else:
        yield f"step: {_change(found.seconds, format_seconds)} predicted with {profiles}"


def _describe_move(moved: Moved) -> str:
    return f"  {moved.name}: {moved.before or 'not there'} -> {moved.after or 'not there'}"


def _collective_line(row: Collective, count: int) -> str:
    place = f" ({row.source})" if row.source else ""
    return (
        f"{_often(count)}{over(row)}{times_of(row)}, {row.bytes} bytes, {row.phase}: "
        f"{row.cause.value}{place} for {row.cause.consumer}"
    )


def _often(count: int) -> str:
    return f"{count} x " if count > 1 else ""


def _change(change: Change, form: Callable[[float], str]) -> str:
    """Return both figures and their ratio.

    >>> _change(Change("memory", 200, 100), format_bytes)
    '200 B -> 100 B (0.50)'
    """
    old, new = change.before, change.after
    if old is None or new is None:
        return "not known"
    ratio = f" ({new / old:.2f})" if old and old != new else ""
    return f"{form(old)} -> {form(new)}{ratio}"


def _shorten(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"  and {len(lines) - SHOWN} more"
