"""The passes, in the order in which they run.

    expand -> differentiate -> candidates (expand more) -> choose -> localise -> bucket

Every step is a pure function of frozen data; `make_plan` is their composition.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from mithril.cost import SIMULATED, Hardware
from mithril.ir import Graph, Plan, Program, Stage, TensorReport, Value
from mithril.mesh import Mesh, Sharding
from mithril.partition.buckets import bucket_gradients
from mithril.partition.spmd import check_promises, localise
from mithril.sharding import Candidates, Choice, Constraints, Resharder, choose, collect
from mithril.transform import differentiate, eliminate_dead, expand, expand_nodes, gradient_of, seed_of

COMPUTED_WITH = "the sharding it is computed with"
"""Who decided where an array lies that the plan was free to place."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked of a plan.

    Args:
        inputs: how each input of the graph arrives, by name; missing ones are replicated.
        outputs: how an output must leave, by name; others keep the sharding they are computed in.
        compute: inputs whose sharding says how they are computed with (annotated parameters).
        decided_by: who decided the sharding of an input, by name, for `explain`.
        output_gradients: how the gradient of each differentiated output arrives, by output name.
        differentiated: inputs whose gradients are wanted; they come back in the input's sharding.
        homes: values that must lie in a given sharding, by name.
        free: inputs that arrive in the sharding they are computed with.
        at_rest: where inputs, and their gradients, live between uses; for these `inputs` says how
            they are computed with, if it says anything.
        pads: whether a dimension may be split that does not divide; its parts are then padded.
        notes: facts for readers of the plan.
    """

    inputs: Mapping[str, Sharding] = field(default_factory=dict)
    outputs: Mapping[str, Sharding] = field(default_factory=dict)
    compute: frozenset[str] = frozenset()
    decided_by: Mapping[str, str] = field(default_factory=dict)
    output_gradients: Mapping[str, Sharding] | None = None
    differentiated: tuple[str, ...] = ()
    homes: Mapping[str, Sharding] = field(default_factory=dict)
    free: frozenset[str] = frozenset()
    at_rest: Mapping[str, Sharding] = field(default_factory=dict)
    pads: bool = True
    notes: tuple[str, ...] = ()


def make_plan(
    graph: Graph,
    mesh: Mesh,
    request: Request,
    kernels: Container[str],
    hardware: Hardware = SIMULATED,
) -> Plan:
    """Return the plan of a graph on a mesh.

    Args:
        graph: the forward graph.
        mesh: the devices.
        request: shardings given and gradients wanted.
        kernels: names of the ops the engine runs itself.
        hardware: the profile that prices the choices.
    """
    graph = expand(eliminate_dead(graph), kernels)
    if request.output_gradients is not None:
        graph = differentiate(graph, list(request.output_gradients), request.differentiated)
        graph = expand(graph, kernels)
    graph, given, candidates = open_candidates(graph, mesh, request, kernels)
    program, choice = partition_graph(graph, mesh, given, candidates, hardware)
    notes = request.notes if choice.is_exact else (*request.notes, _INEXACT)
    stage = Stage("main", program, tuple(range(mesh.size)))
    return Plan(mesh, (stage,), _reports(graph, choice, given, request), notes)


def open_candidates(
    graph: Graph, mesh: Mesh, request: Request, kernels: Container[str]
) -> tuple[Graph, Constraints, Candidates]:
    """Return the graph with the fused ops expanded that stand in the way, and its candidates.

    A softmax whose dimension is to be split, or the cross-entropy of a split vocabulary, is such.
    """
    while True:
        given = constraints(graph, mesh, request)
        candidates = collect(graph, mesh, given)
        if not candidates.expandable:
            return graph, given, candidates
        graph = expand_nodes(graph, candidates.expandable, kernels)


def partition_graph(
    graph: Graph,
    mesh: Mesh,
    given: Constraints,
    candidates: Candidates,
    hardware: Hardware = SIMULATED,
) -> tuple[Program, Choice]:
    """Return the local program of a graph, and the choice it follows."""
    resharder = Resharder(mesh, hardware, given.pads)
    choice = choose(graph, mesh, given, candidates, resharder, hardware)
    program = localise(graph, mesh, given, choice, resharder)
    check_promises(program)
    return bucket_gradients(program, hardware), choice


def constraints(graph: Graph, mesh: Mesh, request: Request) -> Constraints:
    """Return the given shardings of a graph's own values."""
    arriving = dict(request.inputs)
    for name, sharding in (request.output_gradients or {}).items():
        arriving[seed_of(name)] = sharding
    at_rest = {value for value in graph.inputs if value.name in request.at_rest}
    arriving |= request.at_rest
    inputs = {
        value: arriving.get(value.name) or Sharding.replicated(mesh, value.type.rank)
        for value in graph.inputs
    }
    computed = {value: s for value, s in inputs.items() if value not in at_rest}
    for value in at_rest:
        if value.name in request.inputs:
            computed[value] = request.inputs[value.name]
    free = frozenset(value for value in graph.inputs if value.name in request.free)
    outputs, tied, resting = dict(request.outputs), {}, set()
    for name in request.differentiated if request.output_gradients is not None else ():
        source = graph.input(name)
        if source in free:
            tied[gradient_of(name)] = source
        else:
            outputs[gradient_of(name)] = inputs[source]
            if source in at_rest:
                resting.add(gradient_of(name))
    named = {value.name: value for value in graph.values() if value.name in request.homes}
    return Constraints(
        inputs=inputs,
        outputs=outputs,
        computed=computed,
        compute=frozenset(value for value in graph.inputs if value.name in request.compute),
        homes={value: request.homes[name] for name, value in named.items()},
        free=free,
        tied=tied,
        at_rest=frozenset(at_rest),
        resting=frozenset(resting),
        pads=request.pads,
    )


_INEXACT = (
    "the choice is not proved to be the cheapest: a cost table outgrew its cap and some choices "
    "were made one at a time"
)


def _reports(
    graph: Graph, choice: Choice, given: Constraints, request: Request
) -> dict[str, TensorReport]:
    reports: dict[str, TensorReport] = {}
    for value in graph.values():
        arrives = None if value in given.free or value in given.homes else given.inputs.get(value)
        sharding = arrives or choice.home(value)
        if value.name and sharding is not None:
            who = _decider(value, given, request)
            reports.setdefault(value.name, TensorReport(value.type, sharding, who))
    return reports


def _decider(value: Value, given: Constraints, request: Request) -> str:
    if value in given.homes:
        return "the user"
    if value.name in request.decided_by:
        return request.decided_by[value.name]
    if value in given.free:
        return COMPUTED_WITH
    if value in given.inputs:
        return "the array that was passed in"
    return "the cheapest choice"
