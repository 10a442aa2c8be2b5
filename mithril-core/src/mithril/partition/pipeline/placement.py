"""Where every node of a model runs: on the devices its layer is placed on.

A layer that is placed nowhere runs where the latest of its operands was made, so that an addition
or a norm between placed layers needs no placement of its own; one that reads only inputs runs where
its results are needed first. Gradients are computed where the layer is. What depends on no input at
all is computed wherever it is needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from mithril.errors import PlanError
from mithril.ir import Graph, Node, Phase, Value
from mithril.mesh import Mesh
from mithril.plan.names import gradient_of
from mithril.plan.schedule import Schedule
from mithril.transform.stack import Slice


@dataclass(frozen=True, slots=True)
class Part:
    """Devices that run a part of the model.

    Args:
        name: for people, such as `device 2` or `stage 0`.
        mesh: the devices: a part of the backend's mesh, or all of it.
        stage: number of the pipeline's stage it is, if it is one.
    """

    name: str
    mesh: Mesh
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Which layers run on which devices, and how a pipeline runs.

    Args:
        parts: the parts of the mesh.
        scopes: the part of each placed layer, by path.
        rest: the part of layers that are placed nowhere and next to nothing that is.
        kept: paths of layers that run there because they are split over the mesh.
        microbatches: into how many a pipeline cuts a batch.
        batch: the input or connection that is cut, along its leading dimension.
        split: mesh axes over which the batch is split besides.
        schedule: in which order a pipeline runs.
        inputs: the part where an input lies, for what runs where its operands are.
        axis: the mesh axis the stages go along.
        loops: into how many parts loops are cut, by path, one after another on several stages.
        slices: the parts of stacked parameters that these loops read.
        stacks: the part that updates these parameters, as whole stacks, in a train step.
        gathers_again: mesh axes over which parameters are gathered in every run of a program that
            needs them, rather than once for all micro-batches.
    """

    parts: tuple[Part, ...]
    scopes: Mapping[str, int]
    rest: int
    kept: frozenset[str] = frozenset()
    microbatches: int = 1
    batch: str = ""
    split: tuple[str, ...] = ()
    schedule: Schedule | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    axis: str = ""
    loops: Mapping[str, int] = field(default_factory=dict)
    slices: tuple[Slice, ...] = ()
    stacks: int | None = None
    gathers_again: frozenset[str] = frozenset()

    @staticmethod
    def whole(mesh: Mesh) -> Placement:
        """Return the placement of a model that is not placed: one part, on all devices."""
        return Placement((Part("main", mesh),), {}, 0)

    @property
    def is_whole(self) -> bool:
        """Whether all layers run together on all devices, on the whole batch."""
        return len(self.parts) == 1 and self.parts[0].stage is None

    def with_part_for_stacks(self, mesh: Mesh) -> Placement:
        """Return the placement with a part that updates stacks: all devices, each its layers.

        Args:
            mesh: of the backend.
        """
        part = Part("stacks", mesh)
        return replace(self, parts=(*self.parts, part), stacks=len(self.parts))

    @property
    def joined(self) -> dict[str, tuple[str, ...]]:
        """The gradients of stacks that an update takes, and those of parts that they consist of."""
        found: dict[str, tuple[str, ...]] = {}
        for part in self.slices if self.stacks is not None else ():
            name = gradient_of(part.stack)
            found[name] = (*found.get(name, ()), gradient_of(part.name))
        return found

    @property
    def is_of_function(self) -> bool:
        """Whether it is that of a function: every op runs where its largest operand lies."""
        return bool(self.inputs)

    def of_scope(self, scope: str) -> int | None:
        """Return the part of the innermost layer around a scope that is placed, if there is one."""
        while scope:
            if scope in self.scopes:
                return self.scopes[scope]
            if scope in self.kept:
                return self.rest
            scope = scope.rpartition(".")[0]
        return None


def assign_stages(graph: Graph, placement: Placement) -> dict[Node, int | None]:
    """Return the part each node runs on; None for what depends on no input.

    Raises:
        PlanError: stages of a pipeline wait for each other.
    """
    walk = _Assignment(graph, placement)
    walk.forward()
    walk.backward()
    found = walk.finish()
    _check_stages(graph, found, placement.parts)
    return found


class _Assignment:
    def __init__(self, graph: Graph, placement: Placement) -> None:
        self._graph = graph
        self._placement = placement
        self._constant = constants(graph)
        self._of: dict[Node, int | None] = {}
        self._scopes: dict[str, int] = {}
        self._stacked = {part.stack.rpartition(".")[0] for part in placement.slices}
        self._made: dict[Value, tuple[int, int]] = {  # when, and on which part
            value: (-1, placement.inputs[value.name])
            for value in graph.inputs
            if value.name in placement.inputs
        }

    def forward(self) -> None:
        """Place the layers, each as a whole."""
        nodes = [n for n in self._graph.nodes if n.phase == Phase.forward]
        together = id if self._placement.is_of_function else _caller
        calls = [list(call) for _, call in groupby(nodes, key=together)]
        open_calls = []
        for moment, call in enumerate(calls):
            part = self._placement.of_scope(call[0].scope)
            if part is None:
                part = self._latest(call)
            if part is None:
                open_calls.append(call)
            else:
                self._place(call, part, moment)
        for call in reversed(open_calls):
            part = self._first_user(call)
            self._place(call, self._placement.rest if part is None else part, -1)

    def backward(self) -> None:
        """Place gradients, and updates, where their layers are."""
        for moment, node in enumerate(self._graph.nodes):
            if node.phase != Phase.forward:
                part = self._of_stacks(node)
                if part is None:
                    part = self._scopes.get(node.scope)
                if part is None:
                    part = self._placement.of_scope(node.scope)
                if part is None:
                    part = self._latest([node])
                self._place([node], self._placement.rest if part is None else part, moment)

    def _of_stacks(self, node: Node) -> int | None:
        """Return the part that updates stacks, for what is of the update of one."""
        is_own = node.phase == Phase.update and node.scope in self._stacked
        return self._placement.stacks if is_own else None

    def finish(self) -> dict[Node, int | None]:
        """Return the part of every node."""
        return {n: None if n in self._constant else self._of[n] for n in self._graph.nodes}

    def _place(self, call: Sequence[Node], part: int, moment: int) -> None:
        for node in call:
            self._of[node] = part
            if node not in self._constant:
                self._made.update(dict.fromkeys(node.outputs, (moment, part)))
        is_layer = call[0].scope and call[0].phase != Phase.update
        if is_layer and not self._placement.is_of_function:
            self._scopes.setdefault(call[0].scope, part)

    def _latest(self, call: Sequence[Node]) -> int | None:
        own = {value for node in call for value in node.outputs}
        # A scalar, such as the norm that gradients are clipped by, does not pull a matrix over.
        by_size = self._placement.is_of_function or call[0].phase == Phase.update
        met = [
            (value.type.size if by_size else 0, *self._made[value])
            for node in call
            for value in node.inputs
            if value in self._made and value not in own
        ]
        return max(met)[-1] if met else None

    def _first_user(self, call: Sequence[Node]) -> int | None:
        own = {value for node in call for value in node.outputs}
        for node in self._graph.nodes:
            if node in self._of and node not in call and own.intersection(node.inputs):
                return self._of[node]
        return None


def _caller(node: Node) -> str:
    return node.scope


def constants(graph: Graph) -> set[Node]:
    """Return the nodes that depend on no input."""
    given = set(graph.inputs)
    found: set[Node] = set()
    for node in graph.nodes:
        if given.isdisjoint(node.inputs):
            found.add(node)
        else:
            given.update(node.outputs)
    return found


def _check_stages(graph: Graph, parts: Mapping[Node, int | None], of: Sequence[Part]) -> None:
    """Raise unless values go on from stage to stage."""
    producers = graph.producers()
    stages = {node: None if part is None else of[part].stage for node, part in parts.items()}
    for node in graph.nodes:
        for value in node.inputs if node.phase == Phase.forward else ():
            before = producers.get(value)
            start, end = stages.get(before) if before else None, stages[node]
            if before is not None and start is not None and end is not None and start > end:
                raise PlanError(
                    f"stages {end} and {start} of the pipeline wait for each other; {node.where()} "
                    f"of stage {end} needs what {before.where()} of stage {start} makes; number "
                    f"the stages in the order in which values go through them"
                )
