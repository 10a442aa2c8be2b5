"""What is said of a graph's own values before anything is chosen: layouts on one mesh.

Layouts come by name, each on the mesh of the backend or a refinement of it. Here they are said of
values and on one mesh, the common refinement; what the user's code constrains is added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import filter as match_names

from mithril.errors import MithrilError, OptionError, nearest
from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import all_nodes, regions
from mithril.mesh import MICRO, Mesh, Sharding, carry, coarse, coarsen
from mithril.mesh.refinement import has_same_layout
from mithril.mesh.spec import PartitionSpec
from mithril.ops.constrain import Constrain
from mithril.sharding.layout import UNSAID, Layout
from mithril.sharding.search import Search

GRADIENTS = "gradient"
"""What names of gradients begin with."""
WHOLE = 1, 0
"""What `_rank_split` gives where not exactly one dimension is split."""


@dataclass(frozen=True, slots=True)
class Constraints:
    """The layouts that are given before anything is chosen.

    Args:
        mesh: the devices, with the sub-axes that are needed.
        layouts: of every graph input, and of other values of which something is said.
        outputs: of outputs that something is promised of, by name.
        pads: whether a dimension may be split that does not divide; its parts are then padded.
        gradients: how values between, which are gradients that an update takes, live at rest.
        search: what is searched for, if everything that is not said is.
    """

    mesh: Mesh
    layouts: Mapping[Value, Layout]
    outputs: Mapping[str, Layout] = field(default_factory=dict)
    pads: bool = True
    gradients: Mapping[Value, Sharding] = field(default_factory=dict)
    search: Search | None = None

    @staticmethod
    def of_border(
        mesh: Mesh, inputs: Mapping[Value, Sharding], outputs: Mapping[str, Sharding]
    ) -> Constraints:
        """Return constraints that say how inputs arrive and outputs leave, and nothing else."""
        arriving = {value: Layout(arrives=lies) for value, lies in inputs.items()}
        leaving = {name: Layout(leaves=lies) for name, lies in outputs.items()}
        return Constraints(mesh, arriving, leaving)

    def of(self, value: Value) -> Layout:
        """Return what is said of a value."""
        return self.layouts.get(value, UNSAID)

    def of_output(self, name: str) -> Layout:
        """Return what is promised of an output."""
        return self.outputs.get(name, UNSAID)

    def list_admitted(self, value: Value, shardings: Sequence[Sharding]) -> tuple[Sharding, ...]:
        """Return the shardings that a search admits for a value; whole it may always lie.

        A batch or a parameter whose axes are said has the one that splits one dimension over the
        most of them: the leading one of a batch, the largest that can be of a parameter.
        """
        if self.search is None:
            return tuple(shardings)
        kept = self._list_unrefused(value, shardings, self.search)
        axes = self.search.find_axes(value.name) if self.of(value).is_free else None
        if axes is None:
            return kept
        sizes = value.type.shape if value.name in self.search.parameters else value.type.shape[:1]
        origins = {part.name: part.origin for part in self.mesh.axes}
        able = [s for s in kept if axes.issuperset(origins[axis] for axis in s.split_axes)]
        ranks = [_rank_split(one, sizes) for one in able]
        best = max(ranks, default=WHOLE)
        return kept if best == WHOLE else (able[ranks.index(best)],)

    def _list_unrefused(
        self, value: Value, shardings: Sequence[Sharding], search: Search
    ) -> tuple[Sharding, ...]:
        """Return those that split a value over no axis that a search keeps from it."""
        axes = search.find_refused(value.name)
        if not axes:
            return tuple(shardings)
        parts = {part.name for part in self.mesh.axes if {part.name, part.origin} & axes}
        kept = tuple(s for s in shardings if parts.isdisjoint(s.split_axes))
        return kept or (Sharding.replicated(self.mesh, value.type.rank),)

    def binding(self) -> dict[Value, Sharding]:
        """Return what inputs are computed with where that binds whoever takes them."""
        return {
            value: layout.computed
            for value, layout in self.layouts.items()
            if layout.computed is not None and layout.binds
        }

    def promises(self, graph: Graph) -> Iterator[tuple[Value, Layout]]:
        """Yield the outputs of a graph that must leave in a given sharding."""
        for name, layout in self.outputs.items():
            if layout.leaves is not None:
                yield graph.outputs[name], layout


def find_constraints(
    graph: Graph,
    mesh: Mesh,
    layouts: Mapping[str, Layout],
    pads: bool = True,
    search: Search | None = None,
) -> Constraints:
    """Return what is said of the values of a graph.

    Args:
        graph: the global graph.
        mesh: a refinement of the mesh of every layout.
        layouts: what is said, by name of an input, an output or a value between.
        pads: whether a dimension may be split that does not divide.
        search: what is searched for, if everything that is not said is.

    Raises:
        MeshError: a line of the user's code constrains a value to an axis that the mesh lacks.
        ShardingError: it splits a dimension that does not divide, and padding is refused.
    """
    if search is not None and search.whole:
        _check_patterns(search, graph)
    found = {value: _enter(value, layouts.get(value.name, UNSAID), mesh) for value in graph.inputs}
    outputs: dict[str, Layout] = {}
    for name, layout in layouts.items():
        if layout.follows is not None and name in graph.outputs:
            outputs[name] = _follow(layout, found[graph.input(layout.follows)])
        elif layout.leaves is not None:
            outputs[name] = _leave(graph.outputs[name], layout, mesh)
    for value, home in _homes(graph, mesh, layouts, pads):
        found[value] = replace(found.get(value, UNSAID), home=home)
    gradients = dict(_find_gradients(graph, mesh, layouts))
    return Constraints(mesh, found, outputs, pads, gradients, search)


def _check_patterns(search: Search, graph: Graph) -> None:
    """Raise for a pattern of what is not to be split that no value has.

    Gradients are values of some plans of a model, and not of others.

    Raises:
        OptionError: there is one.
    """
    made = (value for node in all_nodes(graph) for value in node.outputs)
    names = {value.name for value in (*graph.inputs, *made)}
    for pattern, axis in search.whole:
        if not pattern.startswith(GRADIENTS) and not match_names(names, pattern):
            raise OptionError(
                f"partition_constraints['forbid'] has {(pattern, axis)!r}, and no parameter, input "
                f"or value is called so{nearest(pattern, sorted(names))}; give a pattern that "
                f"matches one"
            )


def _find_gradients(
    graph: Graph, mesh: Mesh, layouts: Mapping[str, Layout]
) -> Iterator[tuple[Value, Sharding]]:
    """Yield the values between that live at rest, and how they lie there."""
    others = {*graph.outputs, *(value.name for value in graph.inputs)}
    for value in (value for node in graph.nodes for value in node.outputs):
        rests = layouts.get(value.name, UNSAID).rests
        if rests is not None and value.name not in others:
            yield value, carry(rests, mesh)


def _enter(value: Value, given: Layout, mesh: Mesh) -> Layout:
    """Return what is said of an input: how it arrives, and what it is computed with."""
    layout = replace(given.carry(mesh), home=None, leaves=None, follows=None)
    if layout.is_free:
        return layout
    arrives, entry = layout.arrival(mesh, value.type.rank), None
    if layout.computed is None and layout.rests is None:
        # What merely lives at rest proposes nothing; any other input proposes to stay as it lies.
        layout = replace(layout, computed=arrives, binds=False)
    if given.existing is not None:
        met = _meet(given.existing, arrives, value)
        arrives, entry = met, None if met == arrives else given.existing
    return replace(layout, arrives=arrives, entry=entry)


def _leave(value: Value, layout: Layout, mesh: Mesh) -> Layout:
    """Return how an output must leave."""
    leaves = layout.leaves
    assert leaves is not None, "asked for by the caller"
    wanted = carry(leaves, mesh)
    met = _meet(leaves, wanted, value)
    rests = None if layout.rests is None else met
    return Layout(leaves=met, rests=rests, exit=None if met == wanted else leaves)


def _follow(layout: Layout, source: Layout) -> Layout:
    """Return how an output must leave that follows an input: as that arrives, if that is known."""
    if source.is_free:
        return layout
    return Layout(leaves=source.existing, rests=source.rests, exit=source.entry)


def _homes(
    graph: Graph, mesh: Mesh, layouts: Mapping[str, Layout], pads: bool
) -> Iterator[tuple[Value, Sharding]]:
    """Yield where values must lie: as a layout says, or a line of the user's code."""
    for region in regions(graph):
        for value in region.graph.values():
            home = layouts.get(value.name, UNSAID).home
            if home is not None:
                yield value, carry(home, mesh)
    given = coarse(mesh)
    for node, spec in list_constrained(graph, mesh):
        (value,) = node.outputs
        try:
            sharding = Sharding.of(given, spec, value.type.rank)
            if not pads:
                sharding.check_even(value.type.shape, "tensor")
        except MithrilError as error:
            raise type(error)(f"{error} (constrained at {node.where()})") from None
        yield value, carry(coarsen(sharding, value.type.shape), mesh)


def list_constrained(graph: Graph, mesh: Mesh) -> list[tuple[Node, PartitionSpec]]:
    """Return the nodes by which the user's code says how a value lies, each with what it says.

    It speaks of devices: where there is one alone, or nothing but time, there is no choice.

    Args:
        graph: a global graph.
        mesh: the axes that its tensors may be split over.
    """
    if mesh.product(axis for axis in mesh.names if axis != MICRO) == 1:
        return []
    nodes = all_nodes(graph)
    return [(node, node.op.spec) for node in nodes if isinstance(node.op, Constrain)]


def _meet(given: Sharding, wanted: Sharding, value: Value) -> Sharding:
    """Return how an array that exists can be met on a finer mesh: padded parts only as a whole."""
    if has_same_layout(given, wanted, value.type.shape):
        return wanted
    dims = tuple(
        () if size % wanted.shards_along(d) else wanted.dims[d]
        for d, size in enumerate(value.type.shape)
    )
    return Sharding(wanted.mesh, dims)


def _rank_split(sharding: Sharding, sizes: Sequence[int]) -> tuple[int, int]:
    """Return into how many parts a sharding cuts one of some leading dimensions, and its size."""
    split = [size for size, dim in zip(sizes, sharding.dims, strict=False) if dim]
    is_one = len(split) == sum(map(bool, sharding.dims)) == 1
    return (sharding.mesh.product(sharding.split_axes), split[0]) if is_one else WHOLE
