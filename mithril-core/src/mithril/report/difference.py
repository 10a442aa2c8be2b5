"""Difference: what one plan does otherwise than another, tensor by tensor and move by move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.cost import SIMULATED, as_hardware, predict_memory, predict_timeline
from mithril.errors import OptionError
from mithril.plan import Collective, Execution, Plan
from mithril.plan.printer import over, times_of
from mithril.units import format_bytes, format_seconds

SHOWN = 20
"""A text names no more tensors, and no more collectives that came or went, than this."""


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
    """

    tensors: tuple[Moved, ...]
    gone: tuple[tuple[Collective, int], ...]
    new: tuple[tuple[Collective, int], ...]
    bytes: tuple[Change, ...]
    seconds: Change
    memory: Change
    profiles: tuple[str, str]
    meshes: tuple[str, str]

    @property
    def is_empty(self) -> bool:
        """Whether both plans do the same."""
        pairs = [(x.before, x.after) for x in (self.seconds, self.memory)]
        is_alike = all(before == after for before, after in (*pairs, self.meshes))
        return is_alike and not (self.tensors or self.gone or self.new or self.bytes)

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
    return Difference(
        tuple(_compare_tensors(before, after)),
        tuple((rows[key], count) for key, count in (old - new).items()),
        tuple((rows[key], count) for key, count in (new - old).items()),
        tuple(_compare_bytes(before.bytes_by_axis(), after.bytes_by_axis())),
        Change("step", _seconds(before), _seconds(after)),
        Change("memory", _peak(before), _peak(after)),
        (_profile(before), _profile(after)),
        (repr(before.mesh), repr(after.mesh)),
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
    often = f"{count} x " if count > 1 else ""
    place = f" ({row.source})" if row.source else ""
    return (
        f"{often}{over(row)}{times_of(row)}, {row.bytes} bytes, {row.phase}: {row.cause.value}"
        f"{place} for {row.cause.consumer}"
    )


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
