"""Which factors each mesh axis may split, for every node: a closure over the whole graph.

The closure starts from the shardings the user gave (inputs, parameters, promised outputs) and runs
in both directions: a dimension that may be split makes its factor a candidate at every node that
touches the value, and a candidate factor makes every dimension it occurs in splittable. Nothing is
decided here, no conflict is resolved, and the order of the steps does not matter.

Why a closure, and not every factor of every node: nodes have a choice for each axis, so unasked
splits would multiply the options, and on small sizes prices would pick splits that no user meant.
What nobody's sharding leads to stays whole. The sets only grow, so the closure ends, and it is the
same in whichever order dimensions are taken: the least one that has the seeds and is closed.

Two things keep a factor out, or the others out. A factor that is `whole` in a rule cannot be split
at all (what an expansion could split is noted as `expandable` instead). A factor that an annotation
asks for is `forced`: an operand computed with a sharding leaves its users no other choice, or the
cheapest plan would gather the weights and ignore the annotation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mithril.ir import Graph, Node, Rule, Value
from mithril.ir.rewrite import regions
from mithril.mesh import MICRO, Axis, Mesh, Sharding
from mithril.sharding.closure import Closure, collect_links, find_touching
from mithril.sharding.constraints import Constraints
from mithril.sharding.copying import Surroundings, find_copying
from mithril.sharding.partial_sums import find_partial
from mithril.sharding.regions import Link, drop_leading_dim, links
from mithril.sharding.search import Rules


@dataclass(frozen=True, slots=True)
class Candidates:
    """What may be split.

    Args:
        rules: the sharding rule of each node; equal nodes have the same one.
        factors: for each node and mesh axis, the candidate factors in the order of the rule.
        forced: for each node and mesh axis, the factors a user's compute sharding asks for.
        partial: for each mesh axis, the values that can be partial sums over it.
        expandable: nodes an axis would split further if they were replaced by their expansions.
        cuts: for an axis larger than a factor it would split, the sub-axes that would help.
        asked: for each node whose rule proposes factors, the axes that have to take one of them,
            unless the rule says that values may be gathered instead.
        copying: for each axis, the nodes that may compute copies over it, with one candidate, too.
        minor: axes that split what is kept between steps further than what computes it.
    """

    rules: Mapping[Node, Rule]
    factors: Mapping[Node, Mapping[str, tuple[str, ...]]]
    forced: Mapping[Node, Mapping[str, tuple[str, ...]]]
    partial: Mapping[str, frozenset[Value]]
    expandable: frozenset[Node] = frozenset()
    cuts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    asked: Mapping[Node, frozenset[str]] = field(default_factory=dict)
    copying: Mapping[str, frozenset[Node]] = field(default_factory=dict)
    minor: frozenset[str] = frozenset()


def collect(graph: Graph, given: Constraints) -> Candidates:
    """Return the candidates of a graph under the given shardings."""
    mesh = given.mesh
    parts = list(regions(graph))
    nodes = [n for part in parts for n in part.graph.nodes if not n.op.bodies]
    rules = _find_rules(nodes, {} if given.search is None else given.search.known.rules)
    joints = list(links(graph))
    touching, linked = find_touching(nodes), collect_links(joints)
    computed = _collect_compute_specs(given, joints)
    factors: dict[Node, dict[str, tuple[str, ...]]] = {node: {} for node in nodes}
    expandable: set[Node] = set()
    cuts: dict[str, tuple[int, int]] = {}
    asked: dict[Node, frozenset[str]] = {}
    for axis in mesh.axes:
        if axis.size > 1:
            barred = _find_barred(graph, given, computed, axis)
            closure = Closure(mesh, axis.name, rules, touching, linked, barred, given.pads)
            closure.run(_seeds(graph, given, axis.name))
            for node, proposed in closure.proposed.items():
                closure.factors.setdefault(node, set()).update(proposed)
                asked[node] = asked.get(node, frozenset()) | {axis.name}
            for node, found in closure.factors.items():
                ordered = tuple(f for f in rules[node].factors if f in found)
                factors[node][axis.name] = ordered
            expandable |= closure.expandable
            if closure.cut and axis.origin not in cuts and axis.name != MICRO:
                cuts[axis.origin] = cut_axis(mesh, axis, closure.cut)
    forced = _find_forced(nodes, computed, mesh, rules, factors)
    around = Surroundings(nodes, mesh, rules, factors, forced, touching, joints)
    copying, whole = find_copying(around, _list_coming(graph, given), _list_going(graph, given))
    for axis_name, statistics in whole.items():
        for node in statistics:
            del factors[node][axis_name]
    partial = {
        axis: find_partial(
            nodes, joints, axis, rules, factors, forced, copying.get(axis, frozenset())
        )
        for axis in mesh.names
    }
    return Candidates(
        rules, factors, forced, partial, frozenset(expandable), cuts, asked, copying,
        minor=_find_minor(given),
    )  # fmt: skip


def _find_minor(given: Constraints) -> frozenset[str]:
    """Return the axes that split a dimension behind one that comes after them in the mesh."""
    order = {name: position for position, name in enumerate(given.mesh.names)}
    dims = (dim for layout in given.layouts.values() for s in layout.shardings() for dim in s.dims)
    return frozenset(
        axis
        for dim in dims
        for position, axis in enumerate(dim)
        if any(order[before] > order[axis] for before in dim[:position])
    )


def _find_rules(nodes: Sequence[Node], known: Rules) -> dict[Node, Rule]:
    """Return the rule of each node; the same op on the same types has one."""
    rules: dict[Node, Rule] = {}
    for node in nodes:
        inputs, outputs = (tuple(v.type for v in side) for side in (node.inputs, node.outputs))
        key = (node.op, inputs, outputs)
        if key not in known:
            known[key] = node.op.rule(inputs, outputs)
        rules[node] = known[key]
    return rules


def _find_barred(
    graph: Graph, given: Constraints, computed: Mapping[Value, Sharding], axis: Axis
) -> frozenset[Value]:
    """Return the values that lie over a part of the axis's origin, and so are whole over the rest.

    Key and value heads laid over `tensor.0` are wanted on every device of `tensor.1`.
    """
    siblings = [a.name for a in given.mesh.axes if a.origin == axis.origin and a != axis]
    return frozenset(
        value
        for value, sharding in (*computed.items(), *_proposing(graph, given))
        if sharding.dimension_of(axis.name) is None
        and any(sharding.dimension_of(name) is not None for name in siblings)
    )


def cut_axis(mesh: Mesh, axis: Axis, major: int) -> tuple[int, int]:
    """Return the sizes that cut the origin of an axis so that its major part has a size.

    Args:
        mesh: whose axes some may be parts of another one.
        axis: one of them.
        major: a divisor of its size.
    """
    siblings = [other for other in mesh.axes if other.origin == axis.origin]
    minor = math.prod(other.size for other in siblings[siblings.index(axis) + 1 :])
    below = axis.size // major * minor
    return math.prod(other.size for other in siblings) // below, below


def _seeds(graph: Graph, given: Constraints, axis: str) -> Iterator[tuple[Value, int]]:
    said = given.layouts.items()
    computed = ((value, lies.computed) for value, lies in said if lies.computed is not None)
    homes = ((value, lies.home) for value, lies in said if lies.home is not None)
    for value, sharding in (*computed, *homes, *_proposing(graph, given)):
        dimension = sharding.dimension_of(axis)
        if dimension is not None:
            yield value, dimension


def _proposing(graph: Graph, given: Constraints) -> Iterator[tuple[Value, Sharding]]:
    """Yield the promised outputs whose shardings propose candidates: not how a tensor rests."""
    for value, layout in given.promises(graph):
        if layout.leaves is not None and layout.rests is None:
            yield value, layout.leaves


def _list_coming(graph: Graph, given: Constraints) -> tuple[Value, ...]:
    """Return the values that may come split: inputs, which are sliced for nothing, and homes."""
    homes = (value for value, layout in given.layouts.items() if layout.home is not None)
    return tuple(dict.fromkeys((*graph.inputs, *homes)))


def _list_going(graph: Graph, given: Constraints) -> list[tuple[Value, Sharding]]:
    """Return the values that have a home, or leave in a sharding."""
    layouts = given.layouts.items()
    homes = ((value, layout.home) for value, layout in layouts if layout.home is not None)
    return [*homes, *_proposing(graph, given)]


def _collect_compute_specs(given: Constraints, joints: Sequence[Link]) -> dict[Value, Sharding]:
    """Return the compute specs, those of values that loops take in included."""
    found = given.binding()
    for link in joints:  # outer loops come first
        if link.source in found and link.shift() <= 0 and not link.leaves:
            spec = found[link.source]
            found.setdefault(link.target, drop_leading_dim(spec) if link.slices else spec)
    return found


def _find_forced(
    nodes: Sequence[Node],
    computed: Mapping[Value, Sharding],
    mesh: Mesh,
    rules: Mapping[Node, Rule],
    factors: Mapping[Node, Mapping[str, tuple[str, ...]]],
) -> dict[Node, dict[str, tuple[str, ...]]]:
    """Return the factors that compute shardings ask for, where they are candidates.

    Two operands may ask for different factors over one axis: then both are forced, and the price
    decides between them.
    """
    forced: dict[Node, dict[str, tuple[str, ...]]] = {}
    for node in nodes:
        for value, dims in zip(node.inputs, rules[node].operands, strict=True):
            if value not in computed:
                continue
            for axis in mesh.names:
                dimension = computed[value].dimension_of(axis)
                if dimension is None:
                    continue
                wanted = [f for f in dims[dimension] if f in factors[node].get(axis, ())]
                if wanted:
                    before = forced.setdefault(node, {}).get(axis, ())
                    forced[node][axis] = tuple(dict.fromkeys((*before, wanted[0])))
    return forced
