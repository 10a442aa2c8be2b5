"""Finds the collectives of a program that can be taken apart with the products beside them.

A *site* is a collective and the ops that are computed part by part with it, of one of two forms:

- a ring (Wang et al., "Overlap communication with dependent computation via decomposition in large
  deep learning models", ASPLOS 2023): an all_gather and the products that take what it gathers, or
  a product and the reduce_scatter of what it makes, cut along the dimension that is gathered or
  scattered. Every member has one part at a time, and the next one travels meanwhile;
- chunks: a collective that is cut along another dimension, and travels chunk by chunk. What makes
  its operand, or takes its result, is computed on one chunk while others travel.

An op is in one site at most; larger collectives come first.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from mithril.ir import Graph, Node, Value
from mithril.ir.rewrite import regions
from mithril.mesh import Mesh
from mithril.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Permute,
    ReduceScatter,
    collective_of,
)
from mithril.partition.decompose.cuts import Cut, cut_by_operand, cut_by_result, is_product
from mithril.partition.decompose.varying import Varying, find_varying
from mithril.plan import Program

MOST_MEMBERS = 64
"""Rings of more devices are not written: a program would have too many steps."""
MOST_BEFORE = 16
"""As many ops make an operand part by part, at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A collective, and what is computed part by part with it.

    Args:
        collective: a node of one operand and one result.
        dimension: of its operand, along which it is cut.
        is_ring: whether that is the dimension which is gathered or scattered.
        before: what makes the operand, in order: products, and what is done to their elements; none
            where it is there already.
        after: what takes the result part by part, in order; the first is the first that takes it.
        is_kept: whether something else takes it, too.
    """

    collective: Node
    dimension: int
    is_ring: bool
    before: tuple[Cut, ...] = ()
    after: tuple[Cut, ...] = ()
    is_kept: bool = False

    @property
    def op(self) -> Collective:
        """The collective."""
        assert isinstance(self.collective.op, Collective), "sites are found before starts are made"
        return self.collective.op

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """What is computed part by part."""
        return self.before + self.after

    @property
    def replaced(self) -> tuple[Node, ...]:
        """The nodes in whose place others stand, in order."""
        before, after = ([cut.node for cut in cuts] for cuts in (self.before, self.after))
        return (*before, self.collective, *after)

    @property
    def end(self) -> Node:
        """The node in whose place parts are computed."""
        return self.after[0].node if self.after else self.collective

    def describe(self) -> object:
        """Return what sites have in common that are decided alike."""
        cuts = tuple(
            (cut.node.op, cut.factor, tuple(value.type for value in cut.node.inputs))
            for cut in self.cuts
        )
        return self.is_ring, self.op, self.collective.inputs[0].type, self.collective.phase, cuts


def find_sites(program: Program, *, rings: bool, chunks: bool) -> tuple[Site, ...]:
    """Return the sites of a program and of the bodies in it.

    Args:
        program: a local one, in which no collective was started yet.
        rings: whether those of rings are wanted.
        chunks: whether those of chunks are. Where a collective could be either, it is a ring.
    """
    nodes = [node for region in regions(program.graph) for node in region.graph.nodes]
    if not any(_is_candidate(node, program.mesh) for node in nodes):
        return ()
    has_steps = any(node.cause is not None and node.cause.algorithm for node in nodes)
    varying = {} if has_steps else find_varying(program)
    found: list[Site] = []
    for region in regions(program.graph):
        finder = _Finder(region.graph, program.mesh, varying)
        found += finder.find(rings=rings, chunks=chunks)
    return tuple(found)


def _is_candidate(node: Node, mesh: Mesh) -> bool:
    """Return whether a node is a collective of one operand that exchanges anything as it likes."""
    op, cause = node.op, node.cause
    if not isinstance(op, Collective) or len(node.inputs) != 1 or set(op.axes) - set(mesh.names):
        return False
    is_bound = cause is not None and (cause.algorithm is not None or bool(cause.compressed))
    return not is_bound and node.inputs[0].type.size > 0 and mesh.product(op.axes) > 1


@dataclass(slots=True)
class _Finder:
    """Finds the sites of one graph.

    Args:
        graph: a local one, or a body.
        mesh: the devices.
        varying: along which axes its values differ; without a value, they may be equal.
    """

    graph: Graph
    mesh: Mesh
    varying: Varying
    _positions: dict[Node, int] = field(init=False)
    _makers: dict[Value, Node] = field(init=False)
    _uses: dict[Value, list[tuple[Node, int]]] = field(init=False)
    _results: set[Value] = field(init=False)
    _taken: set[Node] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._positions = {node: position for position, node in enumerate(self.graph.nodes)}
        self._makers, self._uses = self.graph.producers(), self.graph.uses()
        self._results = set(self.graph.outputs.values())

    def find(self, *, rings: bool, chunks: bool) -> Iterator[Site]:
        """Yield the sites, those of the largest collectives first."""
        nodes = [node for node in self.graph.nodes if _is_candidate(node, self.mesh)]
        for node in sorted(nodes, key=lambda node: -_count_bytes(node)):
            site = (self._find_ring(node) if rings else None) or (
                self._find_chunks(node) if chunks else None
            )
            if site is not None:
                self._taken.update(site.replaced)
                yield site

    # -------------------------------------------------------------- rings

    def _find_ring(self, node: Node) -> Site | None:
        op = node.op
        if isinstance(op, AllGather) and op.count <= MOST_MEMBERS:
            return self._find_after(node, op.dimension, is_ring=True)
        if not isinstance(op, ReduceScatter) or op.reduction != "sum" or op.count > MOST_MEMBERS:
            return None
        return self._find_before(node, op.dimension, is_ring=True)

    # -------------------------------------------------------------- chunks

    def _find_chunks(self, node: Node) -> Site | None:
        """Return the site that is cut along the first dimension along which anything can be."""
        for dimension in _list_free(node):
            site = self._find_before(node, dimension, is_ring=False)
            if site is not None:
                return site
        for dimension in _list_free(node):
            site = self._find_after(node, dimension, is_ring=False)
            if site is not None:
                return site
        return None

    # -------------------------------------------------------------- what is computed with it

    def _find_before(self, node: Node, dimension: int, *, is_ring: bool) -> Site | None:
        """Return the site of a collective and the products that make its operand."""
        found: dict[Node, Cut] = {}
        if not self._trace(node.inputs[0], dimension, found):
            return None
        cuts = sorted(found.values(), key=lambda cut: self._positions[cut.node])
        return Site(node, dimension, is_ring, tuple(cuts))

    def _trace(self, value: Value, dimension: int, found: dict[Node, Cut]) -> bool:
        """Note what makes a value part by part, and return whether products are among that."""
        node = self._makers.get(value)
        if node is None or node in self._taken or len(found) >= MOST_BEFORE:
            return False
        is_leaf = is_product(node)
        is_made = (is_leaf or node.op.is_pointwise) and self._is_only_use(node)
        cut = cut_by_result(node, dimension) if is_made else None
        if cut is None:
            return False
        if not is_leaf:
            pairs = zip(node.inputs, cut.operands, strict=True)
            inner = [self._trace(x, at, found) for x, at in pairs if at is not None]
            is_leaf = any(inner)
        if is_leaf:
            found[node] = cut
        return is_leaf

    def _is_only_use(self, node: Node) -> bool:
        """Return whether the result of a node is used once, and leaves no graph."""
        (value,) = node.outputs[:1]
        is_one = len(node.outputs) == 1 and len(self._uses.get(value, ())) == 1
        return is_one and value not in self._results

    def _find_after(self, node: Node, dimension: int, *, is_ring: bool) -> Site | None:
        """Return the site of a collective and what takes its result; None if the first use cannot.

        What takes it later is in it, too, if the rest of its operands is there at the first.
        """
        uses = self._uses.get(node.outputs[0], [])
        first = self._positions[uses[0][0]] if uses else 0
        found: list[Cut] = []
        for user, position in uses:
            is_first = user is uses[0][0]
            if is_first or self._is_ready(user, first, uses[0][0]):
                cut = self._cut_use(node, user, position, dimension, is_ring=is_ring)
                if cut is not None:
                    found.append(cut)
                elif is_first:
                    return None
        is_kept = len(uses) > len(found) or node.outputs[0] in self._results
        return Site(node, dimension, is_ring, after=tuple(found), is_kept=is_kept) if uses else None

    def _is_ready(self, user: Node, first: int, start: Node) -> bool:
        """Return whether a node can be computed where the first user stands."""
        makers = (self._makers.get(value) for value in user.inputs)
        return user.phase == start.phase and all(
            maker is None or self._positions[maker] < first for maker in makers
        )

    def _cut_use(
        self, node: Node, user: Node, position: int, dimension: int, *, is_ring: bool
    ) -> Cut | None:
        is_once = user.inputs.count(node.outputs[0]) == 1
        if user in self._taken or not is_once or (is_ring and not is_product(user)):
            return None
        cut = cut_by_operand(user, position, dimension)
        if cut is None or cut.is_kept:
            return cut
        # The order of a sum depends on the device, so devices must have sums of their own.
        assert isinstance(node.op, Collective), "it is asked of collectives"
        own = self.varying.get(user.outputs[0], frozenset())
        return cut if is_ring and own.issuperset(node.op.axes) else None


def _list_free(node: Node) -> Sequence[int]:
    """Return the dimensions along which a collective does the same to each element."""
    op = node.op
    used: Container[int]
    if isinstance(op, AllGather | ReduceScatter):
        used = (op.dimension,)
    elif isinstance(op, AllToAll):
        used = (op.split, op.concat)
    elif isinstance(op, AllReduce | Permute):
        used = ()
    else:
        return ()
    shape = node.inputs[0].type.shape
    return [at for at, size in enumerate(shape) if size > 1 and at not in used]


def _count_bytes(node: Node) -> int:
    op = collective_of(node.op)
    assert op is not None, "it is asked of collectives"
    return op.count_bytes([value.type for value in node.inputs])


__all__ = ["Site", "find_sites"]
