"""Writes what stands in the place of sites: parts that are computed while other parts travel.

Member i of a ring of n has at first its own part of what is gathered, and after r rounds that of
member i - r, which it computes with while it passes it on. Of what is scattered it computes the
part of member i - 1 first, adds its own part to what comes in in each round, and passes that on:

    gather   y[i - r] = f(x[i - r]), x[i - r] from member i - 1               r = 0, …, n - 1
    scatter  s[r] = f(row i + r) + s[r + 1] of member i - 1; its own is s[0]   r = n - 1, …, 0

Each member sends (n - 1)/n of all bytes, as in the collective itself, and each part of a sum is
added up by one member. Chunks travel by the collective itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from mithril.ir import Algorithm, Builder, Cause, Graph, Node, Tensor, Value
from mithril.ir.rewrite import all_nodes, map_bodies
from mithril.ops import add, cast, concatenate
from mithril.ops.collective import Collective, is_narrow_sum
from mithril.partition.decompose.cuts import Cut
from mithril.partition.decompose.parts import Places, cut_evenly, pass_on, slice_part
from mithril.partition.decompose.sites import Site
from mithril.types import DType

RING, CHUNKS = "decomposed product", "chunks"
"""Names of both forms, for readers."""

Counts = Mapping[Site, int]
"""Into how many parts each site is cut that is taken apart."""
Describe = Callable[[Node, Collective, int, Algorithm], Cause | None]
"""Returns why a step is there: in the place of a node, a collective that moves so many bytes."""


def write_sites(graph: Graph, counts: Counts, describe: Describe) -> Graph:
    """Return a graph in which some sites are taken apart, in bodies too.

    Args:
        graph: a local one.
        counts: the parts of each site that is; a ring has as many as members.
        describe: returns the causes of the collectives that are made.
    """
    nodes = set(all_nodes(graph)) if counts else set()
    if not any(site.collective in nodes for site in counts):
        return graph
    return _Writer(graph, counts, describe).write()


@dataclass(slots=True, eq=False)
class _Writer:
    """Copies a graph, with something else in the place of some nodes.

    Args:
        graph: it stays as it is.
        counts: as of `write_sites`.
        describe: likewise.
    """

    graph: Graph
    counts: Counts
    describe: Describe
    builder: Builder = field(default_factory=Builder, init=False)
    _places: Places = field(init=False)
    _made: dict[Value, Any] = field(default_factory=dict, init=False)
    _gathered: dict[Value, Site] = field(default_factory=dict, init=False)
    _parts: dict[Site, list[Any]] = field(default_factory=dict, init=False)
    _steps: dict[Site, Iterator[Algorithm]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._places = Places(self.builder)

    def write(self) -> Graph:
        """Return the copy."""
        for value in self.graph.inputs:
            self._made[value] = self.builder.input(value.type, value.name)
        starts = {site.collective: site for site in self.counts}
        ends = {site.end: site for site in self.counts}
        replaced = {node for site in self.counts for node in site.replaced}
        for node in self.graph.nodes:
            if node in starts:
                self._begin(starts[node])
            if node in ends:
                self._finish(ends[node])
            if node not in replaced:
                self._copy(node)
        return self.builder.build({n: self._get(v) for n, v in self.graph.outputs.items()})

    def _copy(self, node: Node) -> None:
        changed = map_bodies(node, lambda body: write_sites(body, self.counts, self.describe))
        results = self.builder.copy(changed, [self._get(value) for value in node.inputs])
        self._made.update(zip(node.outputs, results, strict=True))

    def _get(self, value: Value) -> Any:
        """Return what stands for a value; what came in parts is put together when it is needed."""
        if value not in self._made:
            site = self._gathered[value]
            while len(self._parts[site]) < self.counts[site]:
                self._send_on(site)
            with self._at(site.collective):
                whole = self._join(site, self._parts[site], site.dimension)
            self._name([value], [whole])
        return self._made[value]

    def _name(self, values: Sequence[Value], results: Sequence[Tensor]) -> None:
        for value, result in zip(values, results, strict=True):
            self._made[value] = self.builder.assign_name(result, value.name)

    # -------------------------------------------------------------- sites

    def _begin(self, site: Site) -> None:
        """Have the first part travel, or all chunks, where nothing is to be computed for that."""
        count = self.counts[site]
        self._steps[site] = self._number_steps(site, count - 1 if site.is_ring else count)
        if site.before:
            return
        (value,), x = site.collective.outputs, self._get(site.collective.inputs[0])
        self._gathered[value] = site
        if site.is_ring:
            self._parts[site] = [x]
            self._send_on(site)
        else:
            with self._at(site.collective):
                chunks = [self._take(site, x, site.dimension, number) for number in range(count)]
            self._parts[site] = [self._issue(site, site.op, chunk) for chunk in chunks]

    def _finish(self, site: Site) -> None:
        if not site.before:
            self._compute_after(site)
        elif site.is_ring:
            self._scatter(site)
        else:
            self._send_chunks(site)

    def _compute_after(self, site: Site) -> None:
        """Compute with each part of what comes while the next one travels."""
        made: list[list[Sequence[Any]]] = [[] for _ in site.after]
        parts = self._parts[site]
        for number in range(self.counts[site]):
            if number == len(parts) - 1 and len(parts) < self.counts[site]:
                self._send_on(site)
            for cut, results in zip(site.after, made, strict=True):
                results.append(self._compute_part(site, cut, number))
        for cut, results in zip(site.after, made, strict=True):
            with self.builder.like(cut.node):
                wholes = [
                    _add_up(parts) if at is None else self._join(site, parts, at)
                    for parts, at in zip(zip(*results, strict=True), cut.results, strict=True)
                ]
            self._name(cut.node.outputs, wholes)

    def _compute_part(self, site: Site, cut: Cut, number: int) -> Sequence[Any]:
        """Append an op on a part of what comes in, and the same part of its other operands."""
        part = self._parts[site][number]
        known = {site.collective.outputs[0]: part}
        return self._compute(site, cut, number, known, part.shape[site.dimension])

    def _scatter(self, site: Site) -> None:
        """Compute a part for another member while the sum for the one before it travels."""
        count, node = self.counts[site], site.before[-1].node
        (value,) = site.collective.outputs
        is_narrow = is_narrow_sum("sum", value.type.dtype)
        term: Any = None
        for distance in reversed(range(count)):
            sent = None if term is None else self._issue(site, self._permute(site), term)
            part = self._compute_before(site, (count - distance) % count)
            with self.builder.like(node):
                part = cast(part, DType.float32) if is_narrow else part
                term = part if sent is None else add(sent, part)
        with self.builder.like(node):
            self._name([value], [cast(term, value.type.dtype)])

    def _send_chunks(self, site: Site) -> None:
        """Compute a chunk while the one before it travels."""
        made = [
            self._issue(site, site.op, self._compute_before(site, number))
            for number in range(self.counts[site])
        ]
        with self._at(site.collective):
            self._name(site.collective.outputs, [self._join(site, made, site.dimension)])

    def _compute_before(self, site: Site, number: int) -> Any:
        """Return a part of what a collective is to carry."""
        start, stop = self._find_edge(site, number)
        known: dict[Value, Any] = {}
        for cut in site.before:
            results = self._compute(site, cut, number, known, stop - start)
            known |= zip(cut.node.outputs, results, strict=True)
        return known[site.collective.inputs[0]]

    def _compute(
        self, site: Site, cut: Cut, number: int, known: Mapping[Value, Any], size: int
    ) -> Sequence[Any]:
        """Append an op on a part of its operands, some of which are there in parts."""
        operands = []
        with self.builder.like(cut.node):
            for value, at in zip(cut.node.inputs, cut.operands, strict=True):
                if value in known:
                    operands.append(known[value])
                elif at is None:
                    operands.append(self._get(value))
                else:
                    operands.append(self._take(site, self._get(value), at, number))
            return cut.compute(self.builder, operands, size)

    # -------------------------------------------------------------- parts

    def _find_edge(self, site: Site, number: int) -> tuple[int, int]:
        """Return where a part of what is sent, or comes in, starts and stops."""
        value = site.collective.inputs[0] if site.before else site.collective.outputs[0]
        return cut_evenly(value.type.shape[site.dimension], self.counts[site])[number]

    def _take(self, site: Site, x: Any, at: int, number: int) -> Any:
        """Return a part of x: a chunk, or that of the member so far behind."""
        if site.is_ring:
            return self._places.take(x, at, site.op.axes, self.counts[site], number)
        return slice_part(x, at, *self._find_edge(site, number))

    def _join(self, site: Site, parts: Sequence[Any], at: int) -> Any:
        """Return parts side by side; those of a ring come in the order of distances behind."""
        joined = concatenate(parts, at)
        if not site.is_ring:
            return joined
        # Member m is (i - m) mod n behind member i, so the same numbers say where its part is.
        members = range(self.counts[site])
        return concatenate([self._take(site, joined, at, member) for member in members], at)

    # -------------------------------------------------------------- what is issued

    def _number_steps(self, site: Site, steps: int) -> Iterator[Algorithm]:
        name, x = RING if site.is_ring else CHUNKS, site.collective.inputs[0]
        nbytes = (site.op.count_bytes([x.type]),)
        numbers = range(1, steps + 1)
        return iter([Algorithm(name, site.op.name, nbytes, n, steps) for n in numbers])

    def _permute(self, site: Site) -> Collective:
        return pass_on(site.op.axes, self.counts[site])

    def _at(self, node: Node, cause: Cause | None = None) -> AbstractContextManager[None]:
        """Stamp what is made inside as a collective was."""
        return self.builder.at(scope=node.scope, source=node.source, phase=node.phase, cause=cause)

    def _send_on(self, site: Site) -> None:
        """Pass the part that came last on to the next member."""
        parts = self._parts[site]
        parts.append(self._issue(site, self._permute(site), parts[-1]))

    def _issue(self, site: Site, op: Collective, x: Any) -> Any:
        node, algorithm = site.collective, next(self._steps[site])
        cause = self.describe(node, op, op.count_bytes([x.type]), algorithm)
        with self._at(node, cause):
            return self.builder.apply(op, x)[0]


def _add_up(parts: Sequence[Any]) -> Any:
    """Return the sum of parts; of 16-bit floats in float32, rounded once."""
    dtype = parts[0].dtype
    is_narrow = is_narrow_sum("sum", dtype)
    terms = [cast(part, DType.float32) for part in parts] if is_narrow else parts
    return cast(reduce(add, terms), dtype)


__all__ = ["CHUNKS", "RING", "Counts", "Describe", "write_sites"]
