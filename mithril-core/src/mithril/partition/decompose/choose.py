"""Chooses which sites of a program are taken apart: all rings, or what takes least time.

A site is tried by itself first, in a program that has nothing else in it. Where sites like it gain
there what counts in the program's time (`LEAST_GAIN`), and something of their collectives is
exposed when all are placed, the whole program is placed with them apart, and that stays if the
program is predicted to take less time. Sites that are alike are decided together, and so are
programs (`form`). Of chunks the number is chosen likewise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from mithril.cost import Hardware
from mithril.cost.streams import Pricing, simulate_program
from mithril.ir import Algorithm, Cause, Graph, Node
from mithril.mesh import Mesh
from mithril.ops.collective import Collective
from mithril.partition.algorithms.rewrite import describe_step
from mithril.partition.decompose.form import find_form
from mithril.partition.decompose.sites import Site, find_sites
from mithril.partition.decompose.write import Counts, Describe, write_sites
from mithril.partition.overlap import AS_IT_PAYS
from mithril.partition.overlap.place import find_order
from mithril.partition.overlap.starts import LEAST_EXPOSED
from mithril.plan import Program

COUNTS = (2, 4, 8)
"""Into so many chunks a collective is cut, if at all."""
LEAST_BYTES = 1 << 16
"""What is smaller is not cut into chunks."""
LEAST_GAIN = 0.005
"""A part of the program's time; what gains less by itself is not tried: prices are no better."""
MOST_TRIALS = 16
"""So often a whole program is placed anew, at most."""
_Choice = tuple[Site, int]
"""A site as it may be taken apart, and into how many parts."""
Known = dict[Hashable, tuple[tuple[int, int], ...]]
"""By the form of a program which of its sites are taken apart, and in which way, both by number."""


def decompose_all(program: Program, hardware: Hardware) -> Program:
    """Return the program with every product taken apart that a ring can feed, or be fed by.

    Args:
        program: a local one, in which no collective was started yet.
        hardware: the profile that prices what is issued.
    """
    rings = find_sites(program, rings=True, chunks=False)
    return take_apart(program, {site: count_members(site, program) for site in rings}, hardware)


def decompose_where_it_pays(program: Program, pricing: Pricing, known: Known) -> Program:
    """Return the program with those products taken apart by which it takes less time.

    Args:
        program: a local one, in which no collective was started yet.
        pricing: says what takes how long.
        known: what was chosen for other programs, to which this one is added.
    """
    rings = find_sites(program, rings=True, chunks=False)
    return _choose(program, pricing, {site: _list_rings(site, program) for site in rings}, known)


def cut_where_it_pays(program: Program, pricing: Pricing, known: Known) -> Program:
    """Return the program with those collectives in chunks by which it takes less time.

    Args:
        program: a local one, in which no collective was started yet.
        pricing: says what takes how long.
        known: what was chosen for other programs, to which this one is added.
    """
    wanted: dict[Site, Sequence[_Choice]] = {}
    for site in find_sites(program, rings=False, chunks=True):
        value = site.collective.inputs[0]
        if site.op.count_bytes([value.type]) >= LEAST_BYTES:
            size = value.type.shape[site.dimension]
            wanted[site] = [(site, count) for count in COUNTS if count <= size]
    return _choose(program, pricing, wanted, known)


def take_apart(program: Program, counts: Counts, hardware: Hardware) -> Program:
    """Return a program with some of its sites taken apart.

    Args:
        program: a local one.
        counts: into how many parts each of them is cut; a ring into as many as it has members.
        hardware: the profile that prices what is issued.
    """
    describe = _describe_by(program.mesh, hardware)
    graph = write_sites(program.graph, counts, describe)
    return program if graph is program.graph else replace(program, graph=graph)


def count_members(site: Site, program: Program) -> int:
    """Return how many devices exchange what in a site."""
    return program.mesh.product(site.op.axes)


def _describe_by(mesh: Mesh, hardware: Hardware) -> Describe:
    def describe(node: Node, op: Collective, nbytes: int, step: Algorithm) -> Cause | None:
        return describe_step(node, op, nbytes, step, mesh, hardware)

    return describe


def _list_rings(site: Site, program: Program) -> list[_Choice]:
    """Return the ways of a ring: with all products that can be in parts, or without sums.

    Where a product sums over parts its whole result is written again for each.
    """
    count = count_members(site, program)
    kept = tuple(cut for cut in site.after if cut.is_kept)
    if not kept or kept == site.after or kept[0] is not site.after[0]:
        return [(site, count)]
    return [(site, count), (replace(site, after=kept, is_kept=True), count)]


def _choose(
    program: Program,
    pricing: Pricing,
    choices: Mapping[Site, Sequence[_Choice]],
    known: Known,
) -> Program:
    """Return a program with those sites taken apart by which it takes less time.

    Args:
        program: a local one.
        pricing: says what takes how long.
        choices: of each site the ways to take it apart; those of sites that are alike correspond.
        known: what was chosen for other programs, to which this one is added.
    """
    if not choices:
        return program
    sites, form = list(choices), find_form(program, pricing.hardware)
    if form not in known:
        known[form] = _try_all(program, pricing, choices)
    counts = dict(choices[sites[place]][number] for place, number in known[form])
    return take_apart(program, counts, pricing.hardware)


def _try_all(
    program: Program, pricing: Pricing, choices: Mapping[Site, Sequence[_Choice]]
) -> tuple[tuple[int, int], ...]:
    """Return which sites are taken apart, and in which way, by number; see `_choose`."""
    best = find_order(program.graph, pricing, AS_IT_PAYS)
    places = {site: place for place, site in enumerate(choices)}
    alike: dict[object, list[Site]] = {}
    for site in choices:
        exposed, taken = best.hiding.find_exposed(site.collective), best.hiding.taken
        if exposed > LEAST_EXPOSED * taken[site.collective]:
            alike.setdefault(site.describe(), []).append(site)
    chosen: dict[Site, int] = {}
    found: list[tuple[int, int]] = []
    least = LEAST_GAIN * best.hiding.seconds
    gaining = _list_gains(alike.values(), choices, program, pricing, least)
    for sites, number in gaining[:MOST_TRIALS]:
        more = chosen | dict(choices[site][number] for site in sites)
        changed = take_apart(program, more, pricing.hardware)
        after = find_order(changed.graph, pricing, AS_IT_PAYS)
        if after.hiding.seconds < best.hiding.seconds:
            chosen, best = more, after
            found += [(places[site], number) for site in sites]
    return tuple(found)


def _list_gains(
    groups: Iterable[Sequence[Site]],
    choices: Mapping[Site, Sequence[_Choice]],
    program: Program,
    pricing: Pricing,
    least: float,
) -> list[tuple[Sequence[Site], int]]:
    """Return the groups that gain so many seconds apart by themselves, with their best choices."""
    describe = _describe_by(program.mesh, pricing.hardware)
    found: list[tuple[float, Sequence[Site], int]] = []
    for sites in groups:
        whole = _extract(sites[0])
        seconds = _measure(whole, pricing)
        gains = [
            (seconds - _measure(write_sites(whole, dict([choice]), describe), pricing), number)
            for number, choice in enumerate(choices[sites[0]])
        ]
        gain, number = max(gains, default=(0.0, 0))
        if gain * len(sites) > least:
            found.append((gain * len(sites), sites, number))
    return [(sites, number) for _, sites, number in sorted(found, key=lambda item: -item[0])]


def _extract(site: Site) -> Graph:
    """Return a graph that has nothing in it but a site."""
    made = {value for node in site.replaced for value in node.outputs}
    taken = (value for node in site.replaced for value in node.inputs)
    inputs = tuple(dict.fromkeys(value for value in taken if value not in made))
    ends = [cut.node for cut in site.after]
    if site.is_kept or not ends:
        ends.append(site.collective)
    results = [value for node in ends for value in node.outputs]
    outputs = {f"y{number}": value for number, value in enumerate(results)}
    return Graph(inputs, site.replaced, outputs)


def _measure(graph: Graph, pricing: Pricing) -> float:
    return simulate_program(pricing.price(graph), tells_events=False).seconds


__all__ = [
    "Known", "count_members", "cut_where_it_pays", "decompose_all", "decompose_where_it_pays",
    "take_apart",
]  # fmt: skip
