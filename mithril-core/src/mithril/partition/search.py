"""Search for the cheapest way to run one graph on one mesh, and make its local program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace

from mithril.cost import Target
from mithril.errors import MeshError, PlanError, ShardingError
from mithril.ir import Graph, Phase, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Mesh, Sharding, common, refine
from mithril.mesh.cuts import refine_for
from mithril.ops.alternatives import SPLITS, WAYS
from mithril.partition.spmd import localise
from mithril.plan import Program, TensorReport, Whole
from mithril.plan.proof import check_promises
from mithril.plan.search import SearchResult
from mithril.report import hints
from mithril.sharding import (
    SEARCHED,
    SEARCHED_REST,
    UNSAID,
    Candidates,
    Choice,
    Constraints,
    Layout,
    MovePrices,
    Resharder,
    Search,
    Way,
    choose,
    collect,
    find,
    find_confined,
    find_constraints,
    find_cuts,
    find_expandable,
    list_constrained,
    say_layouts,
)
from mithril.transform import expand_local, expand_nodes, runnable, substitute

COMPUTED_WITH = "the sharding it is computed with"
"""Who decided where an array lies that the plan was free to place."""

_INEXACT = (
    "the choice is not proved to be the cheapest, because a cost table outgrew its cap: it is "
    "priced at {price:.4g} us, and none is below {bound:.4g} us"
)


MICROSECONDS = 1e-6
"""In a picosecond."""


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    """How a graph is partitioned.

    Args:
        graph: the graph, expanded where that was needed.
        given: what was given, said of its values.
        choice: how each node runs and where each value lives.
        layouts: what was given, by name, and how inputs lie that were searched for.
        result: what a search has found, if there was one.
    """

    graph: Graph
    given: Constraints
    choice: Choice
    layouts: Mapping[str, Layout]
    result: SearchResult | None = None

    def homes(self) -> dict[Value, Sharding]:
        """Return where values live that somebody uses."""
        homes = ((value, self.choice.home(value)) for value in self.graph.values())
        return {value: home for value, home in homes if home is not None}

    def signature(self) -> Hashable:
        """Return what is equal for solutions of one graph whose programs are equal."""
        choice, values = self.choice, {value for value, _ in self.choice.homes}
        return (
            tuple((node.op, option.signature()) for node, option in choice.options.items()),
            frozenset((v.name, *(choice.home(v, phase) for phase in Phase)) for v in values),
            tuple(self.layouts.items()),
        )

    def list_resting(self) -> set[str]:
        """Return the names of gradients that an update takes and that live at rest."""
        return {value.name for value in self.given.gradients}

    def whole(self) -> Whole:
        """Return what is computed on whole tensors."""
        return Whole(runnable(self.graph), self.homes())

    def remarks(self) -> tuple[str, ...]:
        """Return what a reader of the plan should know about the choice."""
        price, bound = self.choice.price * MICROSECONDS, self.choice.bound * MICROSECONDS
        is_told = self.choice.is_exact or self.result is not None  # which has the bound
        inexact = () if is_told else (_INEXACT.format(price=price, bound=bound),)
        return (*inexact, *hints(self.graph, self.given, self.choice))

    def reports(self) -> dict[str, TensorReport]:
        """Return how each named tensor is computed, and who decided it."""
        found: dict[str, TensorReport] = {}
        for value in (value for part in regions(self.graph) for value in part.graph.values()):
            layout = self.given.of(value)
            arrives = None if layout.home else layout.existing
            sharding = arrives or self.choice.home(value)
            if value.name and sharding is not None:
                report = TensorReport(value.type, sharding, self._decider(value))
                found.setdefault(value.name, report)
        return found

    def _decider(self, value: Value) -> str:
        layout = self.given.of(value)
        decided_by = self.layouts.get(value.name, UNSAID).decided_by
        if layout.home is not None:
            return "the user"
        if decided_by:
            return decided_by
        if layout.is_free:
            return COMPUTED_WITH
        if layout.existing is not None:
            return "the array that was passed in"
        return "the cheapest choice"


def solve(
    graph: Graph,
    mesh: Mesh,
    layouts: Mapping[str, Layout],
    target: Target,
    pads: bool,
    search: Search | None = None,
) -> Solution:
    """Return the cheapest way to partition a graph.

    Args:
        graph: forward, and backward where gradients are wanted.
        mesh: its devices, or other axes that its tensors may be split over.
        layouts: what is given, by name.
        target: whose kernels run it, and whose hardware prices the choices.
        pads: whether a dimension may be split that does not divide.
        search: what is searched for, if all that is not given is.

    Raises:
        PlanError: nothing keeps to the limits of the search.
    """
    if search is not None:
        return _search(graph, mesh, layouts, target, pads, search)
    graph, given, candidates = _open_candidates(graph, mesh, layouts, target, pads, search)
    prices = MovePrices(Resharder(given.mesh, target.hardware, pads))
    choice = choose(graph, given, candidates, prices)
    return Solution(graph, given, choice, layouts)


Opened = tuple[Graph, Constraints, Candidates]
"""A graph, what is said of its values, and what may be split."""


def _search(
    graph: Graph,
    mesh: Mesh,
    layouts: Mapping[str, Layout],
    target: Target,
    pads: bool,
    search: Search,
) -> Solution:
    """Return the best way to partition a graph of which everything may be chosen.

    Arguments and errors are those of `solve`.
    """
    start = time.perf_counter()
    known: dict[Hashable, list[Way]] = search.known.ways
    where = search.spaces, search.batch_axes, search.rest_axes, search.sequence_axes
    said = say_layouts(graph, mesh, layouts, search)
    key = graph, mesh, where, tuple(said.items())

    def open_candidates(graph: Graph) -> Opened:
        return _open_candidates(graph, mesh, said, target, pads, search)

    if key not in known:
        known[key] = _list_ways(graph, open_candidates, target, search)
    found: list[tuple[SearchResult, Solution]] = []
    refusals: list[PlanError | ShardingError] = []
    for way in known[key]:
        below = min((result.cost for result, _ in found), default=math.inf)
        try:
            one = _search_in(way, search, layouts, below)
        except (PlanError, ShardingError) as error:  # limits, or heads too few for a sequence
            refusals.append(error)
        else:
            found += [one] if one else []
    if not found:
        raise refusals[0]
    result, solution = min(found, key=lambda one: one[0].cost)
    if search.memory is None:  # other shares that are hidden are tried with the best way alone
        known[key] = [way for way in known[key] if way.graph is solution.graph]
    bound, wall = min(r.bound for r, _ in found), time.perf_counter() - start
    return replace(solution, result=replace(result, bound=bound, wall=wall))


def _list_ways(
    graph: Graph, open_candidates: Callable[[Graph], Opened], target: Target, search: Search
) -> list[Way]:
    """Return the ways to compute a graph that are searched.

    Fused ops that may be split further if they are expanded are searched both ways, and so are ops
    that cannot be split over all devices, and compute the same in ways that can, or with less work.

    Args:
        graph: the graph.
        open_candidates: returns what may be split in a graph that computes the same.
        target: whose kernels run it, and whose hardware prices the choices.
        search: what is searched for.
    """
    opened = [open_candidates(graph)]
    graph, given, candidates = opened[0]
    if expandable := find_expandable(candidates, graph, given):
        opened.append(open_candidates(expand_nodes(graph, expandable, target.kernel_names)))
    looks_into = target.hardware.execution.lays_out
    if confined := find_confined(candidates, graph, given, looks_into=looks_into):
        ways = range(WAYS if search.sequence_axes else SPLITS)
        opened += [open_candidates(substitute(graph, confined, way)) for way in ways]
    prices: dict[Mesh, MovePrices] = search.known.prices  # most ways move the same
    refuses = search.refuses if search.has_refusals else None
    found = []
    for graph, given, candidates in opened:
        finer = given.mesh
        if finer not in prices:
            prices[finer] = MovePrices(Resharder(finer, target.hardware, given.pads, refuses))
        found.append(Way(graph, given, candidates, prices[finer]))
    return found


def _search_in(
    way: Way, search: Search, layouts: Mapping[str, Layout], below: float
) -> tuple[SearchResult, Solution] | None:
    """Return the best way to partition one graph, and what is known of it.

    None if it costs no less than another one.
    """
    found = find(way, search, below)
    if found is None:
        return None
    graph, given = way.graph, way.given
    chosen = {
        value.name: replace(layouts.get(value.name, UNSAID), decided_by=SEARCHED)
        for value in graph.inputs
        if given.of(value).is_free and value.name
    }
    for value in found.fetched:
        rest = found.rests[value]
        chosen[value.name] = Layout(rest, rests=rest, decided_by=SEARCHED_REST)
    layouts = {**layouts, **chosen}
    given = find_constraints(graph, given.mesh, layouts, given.pads, search)
    return found.result, Solution(graph, given, found.choice, layouts, found.result)


def _open_candidates(
    graph: Graph,
    mesh: Mesh,
    layouts: Mapping[str, Layout],
    target: Target,
    pads: bool,
    search: Search | None,
) -> Opened:
    """Return the graph and the constraints after what stood in the way is gone, and candidates.

    Fused ops are expanded whose dimension shall be split (the cross-entropy of a split vocabulary,
    say), and mesh axes are cut into sub-axes where a factor is smaller than its axis (key and value
    heads, say) or where the user laid out a tensor on another factorisation of the devices.
    """
    said = (sharding for layout in layouts.values() for sharding in layout.shardings())
    finer = common([mesh, *(sharding.mesh for sharding in said), *cut_as_constrained(graph, mesh)])
    while True:
        given = find_constraints(graph, finer, layouts, pads, search)
        candidates = collect(graph, given)
        if candidates.expandable:
            graph = expand_nodes(graph, candidates.expandable, target.kernel_names)
        elif cuts := candidates.cuts or find_cuts(candidates, graph, given):
            cut = (refine(mesh, {axis: sizes}) for axis, sizes in cuts.items())
            finer = common([finer, *cut])
        else:
            return graph, given, candidates


def cut_as_constrained(graph: Graph, mesh: Mesh) -> list[Mesh]:
    """Return the mesh as each line of the user's code cuts its axes that says how a value lies.

    Args:
        graph: the global graph.
        mesh: its devices, or other axes that its tensors may be split over.

    Raises:
        MeshError: a line names an axis that the mesh lacks, or cuts one that cannot be cut so.
    """
    found = []
    for node, spec in list_constrained(graph, mesh):
        try:
            found.append(refine_for(mesh, spec))
        except MeshError as error:
            raise MeshError(f"{error} (constrained at {node.where()})") from None
    return found


def local_program(solution: Solution) -> Program:
    """Return the program that every device runs."""
    program = localise(solution.graph, solution.given, solution.choice)
    check_promises(program)
    return program


def with_kernels(program: Program, target: Target) -> Program:
    """Return the program with what the partitioner put in expanded where no kernel runs it."""
    return replace(program, graph=expand_local(program.graph, target.kernel_names))
