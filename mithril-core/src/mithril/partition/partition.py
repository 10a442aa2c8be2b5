"""From a graph, and what is said of its tensors, to a plan: local programs and when they run.

    cut the batch in time -> split the graph by stage -> lay out, solve and localise each part
    -> programs that run without a break -> a timetable

Every part is planned like a model of its own, on its own devices. A model that is not placed is one
part, on all devices, and its batch one micro-batch: its program is its plan, which runs it once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from mithril.cost import HardwareAnalyst, Target
from mithril.errors import PlanError
from mithril.ir import Graph
from mithril.mesh import Sharding
from mithril.partition.pipeline import (
    Local,
    Placement,
    StageBuilder,
    StageGraphs,
    TimetableBuilder,
    assign_stages,
    check_microbatch_reductions,
    hoist,
    split_by_stage,
)
from mithril.partition.pipeline.hoist_reductions import hoist_reductions
from mithril.partition.pipeline.microbatches import TimeAxis, cut_batch, gather_batches, timeless
from mithril.partition.pipeline.part_layouts import PartLayouts
from mithril.partition.pipeline.stacked_parameters import with_stacks
from mithril.partition.search import (
    Solution,
    cut_as_constrained,
    local_program,
    solve,
    with_kernels,
)
from mithril.plan import Plan, Program, Stage, TensorReport, Timetable
from mithril.plan.schedule import HALVES
from mithril.sharding import UNSAID, Layout, Search, list_constrained

_EXCHANGED = (
    "a micro-batch is the same samples for all replicas, because they exchange samples inside a "
    "stage; the batch is gathered for that at the start"
)


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """What is partitioned; the fields are the arguments of `partition_parts`."""

    graph: Graph
    layouts: Mapping[str, Layout]
    placement: Placement
    target: Target
    pads: bool
    search: Search | None
    only_inputs: bool = False

    def of(self, name: str) -> Layout:
        return self.layouts.get(name, UNSAID)

    def existing(self) -> dict[str, Sharding]:
        """Return how the arrays lie that exist already, by name."""
        given = ((name, layout.existing) for name, layout in self.layouts.items())
        return {name: sharding for name, sharding in given if sharding is not None}


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A part, planned.

    Args:
        local: its program.
        solution: how its graph is partitioned.
        reports: how the tensors are computed that it makes.
    """

    local: Local
    solution: Solution
    reports: Mapping[str, TensorReport]

    def lies(self) -> dict[str, Sharding]:
        """Return how what it takes and makes lies, by name."""
        program = self.local.program
        return {port.name: port.sharding for port in (*program.inputs, *program.outputs)}


def partition(
    graph: Graph,
    layouts: Mapping[str, Layout],
    target: Target,
    placement: Placement | None = None,
    *,
    pads: bool = True,
) -> Plan:
    """Return the plan of a graph.

    Args:
        graph: forward, and backward where gradients are wanted.
        layouts: how its tensors lie, as far as that is said, by name.
        target: where it will run.
        placement: what runs where, if layers are placed on devices or run as stages.
        pads: whether a dimension may be split that does not divide.

    Raises:
        PlanError: a layer needs all micro-batches at once, or stages wait for each other.
        ShardingError: a parameter shall be split over an axis along which its layer has one device.
    """
    return partition_parts(graph, layouts, target, placement, pads=pads).plan


def partition_parts(
    graph: Graph,
    layouts: Mapping[str, Layout],
    target: Target,
    placement: Placement | None = None,
    *,
    pads: bool = True,
    search: Search | None = None,
    only_inputs: bool = False,
) -> Partitioned:
    """Return the parts of a graph, laid out and localised, and the plan they make.

    Arguments and errors are those of `partition`, and what is searched for in a graph that is not
    placed, which raises PlanError if nothing keeps to its limits; and whether, in such a graph,
    only inputs are localised, because nothing but how they lie will be read off the plan.
    """
    placement = placement or Placement.whole(target.mesh)
    cut_as_constrained(graph, target.mesh)  # of a part, axes may be gone that the user names
    only_inputs = only_inputs and placement.is_whole
    return _partition_in_time(_Task(graph, layouts, placement, target, pads, search, only_inputs))


def _partition_in_time(task: _Task) -> Partitioned:
    """Return the parts whose micro-batches are cut as replicas need it."""
    try:
        return _partition(task, time_is_major=False)
    except PlanError as error:
        # What a replica has is cut by itself, which nobody notices unless samples are exchanged
        # between replicas inside a stage. Then a micro-batch is the same samples for all of them,
        # as it is where the user's code splits batches that arrive whole.
        if not task.placement.split and not list_constrained(task.graph, task.target.mesh):
            raise
        try:
            notes = (_EXCHANGED,) if task.placement.split else ()
            return _partition(task, time_is_major=True, notes=notes)
        except PlanError:
            raise error from None


def _partition(task: _Task, *, time_is_major: bool, notes: tuple[str, ...] = ()) -> Partitioned:
    graph, time = cut_batch(task.graph, task.placement, task.target, is_major=time_is_major)
    stage_graphs = _split(graph, task.placement)
    parts = _plan_parts(task, stage_graphs, time)
    task = replace(task, graph=graph)
    return Partitioned(
        task, stage_graphs, parts, notes, _make_plan(task, stage_graphs, parts, notes)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Partitioned:
    """The parts of a graph, each with a local program, which together make a plan.

    Args:
        plan: what they make as they are.
        change: what becomes of each local program before it is cut into phases.
    """

    _task: _Task
    _stage_graphs: StageGraphs
    _parts: Sequence[_Part]
    _notes: tuple[str, ...]
    plan: Plan
    change: Callable[[Program], Program] | None = None

    def with_change(self, change: Callable[[Program], Program]) -> Partitioned:
        """Return the same parts with another change of their programs.

        Args:
            change: returns a program with the same ports, and perhaps more behind them that are
                no values of the graph; the same one where nothing changes.
        """
        programs = [local.program for local in self.locals]
        if all(change(program) is program for program in programs):
            return self
        changed = replace(self, change=change)
        return replace(changed, plan=changed.plan_with(programs))

    def with_gathers_again(self, axes: frozenset[str]) -> Partitioned:
        """Return the same parts, which gather parameters over axes in every run that needs them.

        Args:
            axes: mesh axes; of others, what is gathered stays for all micro-batches.
        """
        task = replace(self._task, placement=replace(self.placement, gathers_again=axes))
        changed = replace(self, _task=task)
        return replace(changed, plan=changed.plan_with([local.program for local in self.locals]))

    @property
    def locals(self) -> tuple[Local, ...]:
        """The local programs, with forward and backward in one."""
        return tuple(part.local for part in self._parts)

    @property
    def layouts(self) -> dict[str, Layout]:
        """How tensors lie, as far as that was said or searched for, by name."""
        found = dict(self._task.layouts)
        for part in self._parts:
            found.update(part.solution.layouts)
        return found

    @property
    def placement(self) -> Placement:
        """What runs where, and in how many micro-batches."""
        return self._task.placement

    def plan_with(self, programs: Sequence[Program]) -> Plan:
        """Return the plan of other local programs that compute the same.

        Args:
            programs: one for each of `locals`, with the same ports.

        Raises:
            PlanError: one needs all micro-batches at once where a part may not.
        """
        change = self.change or (lambda program: program)
        parts = [
            replace(part, local=replace(part.local, program=change(program)))
            for part, program in zip(self._parts, programs, strict=True)
        ]
        plan = _make_plan(self._task, self._stage_graphs, parts, self._notes)
        return replace(plan, whole=None)  # the graph on whole tensors computes nothing again


def _make_plan(
    task: _Task, stage_graphs: StageGraphs, parts: Sequence[_Part], notes: tuple[str, ...]
) -> Plan:
    """Return the plan of the parts, with prices."""
    plan = _join_parts(task, stage_graphs, parts)
    return replace(
        plan,
        notes=(*plan.notes, *notes),
        pricing=task.target.hardware.pricing,
        analyst=HardwareAnalyst(task.target.hardware),
    )


def _join_parts(task: _Task, stage_graphs: StageGraphs, parts: Sequence[_Part]) -> Plan:
    placement, mesh = task.placement, task.target.mesh
    reports: dict[str, TensorReport] = {}
    for part in parts:
        reports |= {name: of for name, of in part.reports.items() if name not in reports}
    if placement.is_whole:
        (part,) = parts
        solution = part.solution
        plan = Plan.of_program(
            mesh, part.local.program, reports, solution.remarks(), solution.whole()
        )
        return replace(plan, search=solution.result)
    stages, timetable = _schedule(task, stage_graphs, parts)
    plan = Plan(mesh, stages, timetable, reports)
    unread = {
        port.name: TensorReport(port.type, port.sharding, "nobody: no stage reads it")
        for port in plan.inputs
        if port.name not in reports
    }
    plan = replace(plan, specs={**reports, **unread})
    if not placement.slices:
        return plan
    return with_stacks(plan, placement.slices, placement.axis, task.existing())


def _split(graph: Graph, placement: Placement) -> StageGraphs:
    if placement.is_whole:
        return StageGraphs.whole(graph)
    return split_by_stage(graph, assign_stages(graph, placement), placement.rest)


# ------------------------------------------------------------------ parts


def _plan_parts(task: _Task, stage_graphs: StageGraphs, time: TimeAxis) -> list[_Part]:
    """Return the parts, planned one after another: a later one takes what earlier ones make."""
    parts: list[_Part] = []
    lies: dict[str, Sharding] = {}
    for number, graph in stage_graphs.graphs.items():
        said = PartLayouts(task.layouts, task.placement, stage_graphs, time, lies)
        part = _plan_part(task, number, graph, said)
        lies = {**lies, **part.lies()}
        parts.append(part)
    return parts


def _plan_part(task: _Task, number: int, graph: Graph, said: PartLayouts) -> _Part:
    """Return one part, planned on its own devices and the axis of time."""
    part, crossing = task.placement.parts[number], frozenset(said.stage_graphs.crossing)
    mesh, target = said.time.add_to(part.mesh), task.target.within(part.mesh)
    solution = solve(graph, mesh, said.of_part(graph, part, mesh), target, task.pads, task.search)
    if task.search is None:
        return _localise_part(task, number, solution, crossing)
    known: dict[Hashable, _Part] = task.search.known.parts  # other searches find the same
    key = number, solution.signature()
    if key not in known:
        known[key] = _localise_part(task, number, solution, crossing)
    return replace(known[key], solution=solution)


def _localise_part(task: _Task, number: int, solution: Solution, crossing: frozenset[str]) -> _Part:
    target = task.target.within(task.placement.parts[number].mesh)
    if task.only_inputs:
        solution = replace(solution, graph=Graph(solution.graph.inputs, ()))
    program = hoist_reductions(local_program(solution), solution.list_resting())
    check_microbatch_reductions(program)
    program = gather_batches(with_kernels(program, target), crossing)
    reports = _report(task, solution, number, crossing)
    return _Part(Local(number, program, crossing), solution, reports)


def _report(
    task: _Task, solution: Solution, number: int, crossing: frozenset[str]
) -> dict[str, TensorReport]:
    """Return how the tensors are computed that a part makes."""
    arriving = crossing & {value.name for value in solution.graph.inputs}
    mesh, found = task.placement.parts[number].mesh, {}
    for name, report in solution.reports().items():
        if name in arriving:
            continue
        who = report.decided_by
        if name == task.placement.batch and task.of(name).home is None:
            who = "the pipeline, which cuts it into micro-batches"
        found[name] = replace(report, sharding=timeless(report.sharding, mesh), decided_by=who)
    return found


# ------------------------------------------------------------------ order


def _schedule(
    task: _Task, stage_graphs: StageGraphs, parts: Sequence[_Part]
) -> tuple[tuple[Stage, ...], Timetable]:
    """Return the programs that run without a break, and when each runs."""
    placement, schedule = task.placement, task.placement.schedule
    given = {value.name for value in task.graph.inputs}
    joined = {name: terms for name, terms in placement.joined.items() if name in given}
    is_halved = schedule is not None and any(a.work in HALVES for a in schedule.actions)
    builders = {
        item.local.part: StageBuilder(
            item, placement.parts[item.local.part].mesh, placement.microbatches
        )
        for item in hoist(
            [part.local for part in parts], is_halved, joined, placement.gathers_again
        )
    }
    programs = [program for builder in builders.values() for program in builder.stage_programs()]
    programs.sort(key=lambda program: program.of)
    return TimetableBuilder(
        placement, task.graph, stage_graphs, builders, programs, task.layouts, task.target.hardware
    ).timetable()
