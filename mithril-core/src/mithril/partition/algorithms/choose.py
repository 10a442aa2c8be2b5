"""Chooses how each collective is carried out: as it was asked for, or as it takes least time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from mithril.cost import Hardware
from mithril.cost.kernels import OpCosts
from mithril.cost.streams import Pricing, simulate_program
from mithril.ir import Builder, Graph, Node
from mithril.ir.op import Types
from mithril.mesh import Mesh
from mithril.ops.collective import AllGather, AllReduce, Collective, ReduceScatter, collective_of
from mithril.partition.algorithms.asked import (
    AUTO,
    HIERARCHICAL,
    KNOWN,
    NATIVE,
    Algorithms,
)
from mithril.partition.algorithms.cut import cut_axes, find_near, refine_for_near
from mithril.partition.algorithms.parts import Part, Way
from mithril.partition.algorithms.write import write_collective

MOST_STEPS = 64
"""What takes more collectives in place of one is not tried by `auto`."""
MOST_MEMBERS = 64
"""Nor is anything but `hierarchical` among more devices."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """Finds the way of each collective of a program.

    Args:
        mesh: of the program, with the sub-axes that hierarchies need.
        hardware: the profile that prices what is tried.
        asked: the algorithms.
    """

    mesh: Mesh
    hardware: Hardware
    asked: Algorithms
    _pricing: Pricing = field(init=False)
    _found: dict[object, tuple[Way, Graph] | None] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pricing", Pricing(self.mesh, self.hardware, OpCosts()))

    def find(self, node: Node) -> tuple[Way, Graph] | None:
        """Return how a collective is carried out, and as what graph; None for the engine's own."""
        op = collective_of(node.op)
        if op is None or not is_choice(op, node, self.mesh):
            return None
        types = tuple(value.type for value in node.inputs)
        key = op, types
        if key not in self._found:
            self._found[key] = self._choose(op, types)
        return self._found[key]

    def _choose(self, op: Collective, types: Types) -> tuple[Way, Graph] | None:
        named = [(axis, self.asked.find(op.name, axis, self.mesh)) for axis in op.axes]
        runs = [
            (tuple(axis for axis, _ in run), name) for name, run in groupby(named, lambda p: p[1])
        ]
        if [name for _, name in runs] == [AUTO]:
            return self._find_fastest(op, types)
        stages, names = [], []
        for axes, name in runs:
            stage = self._resolve(op, axes, name)
            names.append(name if stage else NATIVE)
            stages.append(stage or (Part(axes),))
        if all(name == NATIVE for name in names):
            return None
        told = [f"{name} over {'+'.join(a)}" for name, (a, _) in zip(names, runs, strict=True)]
        way = Way(names[0] if len(names) == 1 else ", ".join(told), tuple(stages))
        return way, write_collective(op, types, way, self.mesh)

    def _resolve(self, op: Collective, axes: tuple[str, ...], name: str) -> tuple[Part, ...]:
        """Return the parts over some axes; none where the engine's own is what there is."""
        if name in (NATIVE, AUTO):  # over some of several axes nothing is tried
            return ()
        if name != HIERARCHICAL:
            return (Part(axes, {op.name: name}),)
        parts = cut_axes(self.mesh, axes, find_near(self.mesh, axes, self.hardware))
        if len(parts) < 2:
            return ()
        outer, inner = parts
        return Part(outer), Part(inner, dict(self._list_inside(op, inner)))

    def _list_inside(self, op: Collective, axes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield what an all_reduce is made of, where an algorithm is asked for that, too."""
        for kind in (ReduceScatter.name, AllGather.name) if isinstance(op, AllReduce) else ():
            names = {self.asked.find(kind, axis, self.mesh) for axis in axes}
            if len(names) == 1 and not names & {AUTO, HIERARCHICAL}:
                yield kind, names.pop()

    def _find_fastest(self, op: Collective, types: Types) -> tuple[Way, Graph] | None:
        best, least = None, self._measure(_write_native(op, types))
        for name in self._list_candidates(op):
            stage = self._resolve(op, op.axes, name)
            if not stage:
                continue
            way = Way(name, (stage,))
            graph = write_collective(op, types, way, self.mesh)
            if sum(node.op.is_collective for node in graph.nodes) > MOST_STEPS:
                continue
            seconds = self._measure(graph)
            if seconds < least:
                best, least = (way, graph), seconds
        return best

    def _list_candidates(self, op: Collective) -> Iterator[str]:
        for name in KNOWN[op.name]:
            if name == HIERARCHICAL:
                if is_layered(op, self.hardware):
                    yield name
            elif name not in (NATIVE, AUTO) and self.mesh.product(op.axes) <= MOST_MEMBERS:
                yield name

    def _measure(self, graph: Graph) -> float:
        return simulate_program(self._pricing.price(graph), tells_events=False).seconds


def refine_for(mesh: Mesh, hardware: Hardware, asked: Algorithms, nodes: Iterable[Node]) -> Mesh:
    """Return a mesh with the sub-axes that hierarchies of some collectives need.

    Args:
        mesh: of a program.
        hardware: the profile, whose levels say which devices are near.
        asked: the algorithms.
        nodes: of the program.
    """
    wanted: dict[tuple[str, ...], int] = {}
    for node in nodes:
        op = collective_of(node.op)
        if op is None or not is_choice(op, node, mesh):
            continue
        named = [(axis, asked.find(op.name, axis, mesh)) for axis in op.axes]
        for name, run in groupby(named, lambda pair: pair[1]):
            axes = tuple(axis for axis, _ in run)
            if name == HIERARCHICAL or (name == AUTO and is_layered(op, hardware)):
                wanted.setdefault(axes, find_near(mesh, axes, hardware))
    return refine_for_near(mesh, wanted.items())


def is_choice(op: Collective, node: Node, mesh: Mesh) -> bool:
    """Whether there is anything to choose: something is exchanged, by one that has algorithms."""
    has_elements = all(value.type.size for value in node.inputs)
    is_known = op.name in KNOWN and not set(op.axes) - set(mesh.names)
    return is_known and has_elements and mesh.product(op.axes) > 1


def is_layered(op: Collective, hardware: Hardware) -> bool:
    """Whether links differ among devices, or a group is one over several axes."""
    return len(hardware.levels) > 1 or len(op.axes) > 1


def _write_native(op: Collective, types: Types) -> Graph:
    builder = Builder()
    operands = [builder.input(type, f"x{number}") for number, type in enumerate(types)]
    results = builder.apply(op, *operands)
    return builder.build({f"y{number}": y for number, y in enumerate(results)})


__all__ = ["Chooser", "refine_for"]
