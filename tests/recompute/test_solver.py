"""What choices of what is computed again are made of: cuts, blocks, sections, and the frontier."""

from __future__ import annotations

from itertools import chain, combinations, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.compiler import PlanOptions
from mithril.cost import SIMULATED
from mithril.errors import PlanError
from mithril.ir import Builder
from mithril.partition.recompute import Recompute, split_phases
from mithril.partition.recompute.blocks import cut_blocks
from mithril.partition.recompute.choose import choose_cheap
from mithril.partition.recompute.drop_sets import find_bound, find_drop_sets, list_droppable, weigh
from mithril.partition.recompute.frontier import Frontier
from mithril.partition.recompute.min_cut import INFINITE, Network
from mithril.partition.recompute.sections import LocalPart
from mithril.types import DType, TensorType

from tests.graphs import run, values_for
from tests.profiles import scaled
from tests.recompute.graphs import Case, cases
from tests.recompute.solving import (
    blocks_of,
    list_subsets,
    measure,
    part,
    program_of,
    random_graph,
    read_sections,
)

F32 = DType.float32


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-12, 1e-6))
def test_a_minimum_cut_finds_the_best_set_for_a_price_of_memory(seed: int, price: float) -> None:
    program = program_of(random_graph(seed, 5))
    sections = read_sections(part(program))
    for section in sections:
        found = section.block
        every = [weigh(found, some) for some in list_subsets(sorted(list_droppable(found)))]  # type: ignore[arg-type]
        best = min(option.seconds + price * option.kept for option in every)
        options = find_drop_sets(found, more=False)
        assert min(o.seconds + price * o.kept for o in options) <= best * (1 + 1e-6) + 1e-15
        assert find_bound(found, price) <= best * (1 + 1e-6) + 1e-15


@settings(max_examples=scaled(100))
@given(st.integers(1, 5), st.integers(0, 10**6))
def test_a_cut_is_the_cheapest(count: int, seed: int) -> None:
    random = Random(seed)
    edges = [
        (random.randrange(-1, count), random.randrange(-1, count), random.randrange(1, 9))
        for _ in range(3 * count)
    ]
    network = Network(count)
    for start, end, capacity in edges:
        if start < 0 <= end:
            network.link_from_source(end, capacity)
        elif end < 0 <= start:
            network.link_to_sink(start, capacity)
        elif start != end and start >= 0:
            network.link(start, end, capacity)

    def price(side: set[int]) -> int:
        total = 0
        for start, end, capacity in edges:
            if start < 0 and end < 0:
                continue
            leaves = (start < 0 or start in side) and (end < 0 or end not in side)
            total += capacity if leaves and (start >= 0 or end not in side) else 0
        return total

    cost, side = network.cut()
    sides = chain.from_iterable(combinations(range(count), n) for n in range(count + 1))
    assert cost == min(price(set(some)) for some in sides) == price(side)
    assert cost < INFINITE


# ------------------------------------------------------------------ random graphs, loops, meshes


@pytest.mark.slow
@settings(max_examples=scaled(40), deadline=None)
@given(cases(), st.sampled_from([0.5, 0.7, 0.9, 0.97, "selective"]))
def test_no_budget_is_broken_and_the_bits_stay(case: Case, budget: float | str) -> None:
    values = values_for(case.graph)
    wanted = tuple(v.name for v in case.graph.inputs if v.type.dtype.is_float)
    kept = run(case.graph, case.mesh, values, case.inputs, differentiated=wanted)
    options = PlanOptions(recompute=Recompute(budget))
    try:
        ran = run(
            case.graph, case.mesh, values, case.inputs, differentiated=wanted, options=options
        )
    except PlanError as error:
        assert "which is too little; the least possible is" in str(error)
        return
    for name, value in kept.outputs.items():
        np.testing.assert_array_equal(ran.outputs[name], value, err_msg=name)
    assert ran.executed == list(ran.plan.stages[0].program.list_issued())
    most = kept.plan.memory().peak
    limit = most if isinstance(budget, str) else int(budget * most)
    assert ran.plan.memory().peak <= limit
    if budget == "selective":
        pair = [plan.timeline().seconds for plan in (ran.plan, kept.plan)]  # as it was priced
        assert pair[0] <= 1.01 * pair[1] * (1 + 1e-9)


# ------------------------------------------------------------------ blocks


def test_equal_blocks_are_told_to_be_equal_and_solved_alike() -> None:
    program = blocks_of(6)
    sections = read_sections(part(program))
    keys = [section.block.key for section in sections]
    assert len(keys) - len(set(keys)) >= 3
    nodes = sum(section.block.end - section.block.start for section in sections)
    assert nodes == len(split_phases(program.graph)[0])
    for a, b in pairwise(sections):
        assert a.block.end == b.block.start
        if a.block.key == b.block.key:
            assert [p.kept for p in a.picks] == [p.kept for p in b.picks]


@pytest.mark.slow
def test_what_ways_count_is_what_a_plan_takes() -> None:
    program = blocks_of(6)
    ways = Frontier(read_sections(part(program))).list_ways(10)
    assert len(ways) > 5
    more = [measure(program, way.list_values()).peaks[0] - way.peak for way in ways]
    base = measure(program, ())
    assert max(more) - min(more) <= 0.02 * base.peaks[0]  # the rest is what the caller holds
    seconds = [way.seconds for way in ways]
    assert seconds == sorted(seconds, reverse=True)
    for way in ways:
        found = measure(program, way.list_values()).seconds - base.seconds
        assert found == pytest.approx(way.seconds, rel=1e-6, abs=1e-12)


def test_ways_are_no_worse_than_the_bound_and_near_it() -> None:
    frontier = Frontier(read_sections(part(blocks_of(8))))
    ways = frontier.list_ways(8)
    for way in ways:
        least = frontier.find_bound(way.peak)
        assert 0 <= least <= way.seconds * (1 + 1e-9) + 1e-15
    whole = ways[0].seconds
    assert max(way.seconds - frontier.find_bound(way.peak) for way in ways) < 0.25 * whole


def test_in_deep_models_blocks_are_made_again_together() -> None:
    """Where blocks are many, keeping what enters each of them takes more than several blocks do."""
    builder = Builder()
    x = builder.input(TensorType((1024, 64), F32), "x")
    for number in range(40):
        weight = builder.input(TensorType((64, 64), F32), f"w{number}")
        x = ops.tanh(ops.einsum("ab,cb->ac", x, weight))
    program = program_of(builder.build({"loss": ops.sum(x * x)}))
    way = Frontier(read_sections(part(program))).find_least()
    assert max(pick.block.end - pick.block.start for pick in way.picks) > 4


def test_micro_batches_in_flight_multiply_what_is_kept() -> None:
    program = blocks_of(3)
    one = read_sections(part(program))
    three = read_sections(LocalPart(program, SIMULATED, (), 3, 6))
    for a, b in zip(one, three, strict=True):
        assert [3 * p.kept for p in a.picks] == [p.kept for p in b.picks]
        assert [6 * p.seconds for p in a.picks] == pytest.approx([p.seconds for p in b.picks])


def test_what_may_not_be_dropped_is_kept() -> None:
    program = blocks_of(2)
    early, _ = split_phases(program.graph)
    held = frozenset(early[len(early) // 2].outputs)
    sections = read_sections(LocalPart(program, SIMULATED, kept=held))
    assert held.isdisjoint(Frontier(sections).find_least().list_values())


def test_whole_blocks_are_made_again_or_not_at_all() -> None:
    sections = read_sections(LocalPart(blocks_of(3), SIMULATED, is_whole=True))
    assert all(len(section.picks) == 2 for section in sections)


def test_blocks_begin_where_little_is_alive() -> None:
    program = blocks_of(4)
    flow = read_sections(part(program))[0].block.flow
    for found in cut_blocks(flow)[:-1]:
        handed_on = sum(flow.buffers[n].bytes for n in found.exits)
        assert handed_on <= 2 * 16 * 16 * 32 * 4


def test_cheap_choices_take_no_time() -> None:
    program = blocks_of(4)
    base = measure(program, ())
    choice = choose_cheap([part(program)], lambda dropped: measure(program, dropped))
    assert choice.measured.peaks[0] < 0.97 * base.peaks[0]
    assert choice.measured.seconds <= 1.01 * base.seconds
    assert choice.bound is None
    peaks = [point.peak for point in choice.curve]
    assert peaks == sorted(peaks, reverse=True)
    assert len(peaks) > 4
