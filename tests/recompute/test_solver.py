"""Choices of what is computed again: the cheapest by brute force, and what they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril import ops
from mithril.compiler import PlanOptions
from mithril.cost import SIMULATED, predict_memory
from mithril.cost.kernels import OpCosts
from mithril.cost.simulate_plan import simulate_plan
from mithril.errors import PlanError
from mithril.ir import Builder, Graph, Value
from mithril.ir.rewrite import inline
from mithril.mesh import Mesh
from mithril.partition.recompute import Recompute, recompute, split_phases
from mithril.partition.recompute.blocks import cut_blocks
from mithril.partition.recompute.choose import Measured, choose_cheap, choose_within
from mithril.partition.recompute.drop_sets import find_bound, find_drop_sets, list_droppable, weigh
from mithril.partition.recompute.frontier import Frontier
from mithril.partition.recompute.min_cut import INFINITE, Network
from mithril.partition.recompute.sections import LocalPart, Section, read_part
from mithril.plan import Plan, Program
from mithril.types import DType, TensorType

from tests.graphs import BLOCK_PARAMETERS, block, run, values_for
from tests.profiles import scaled
from tests.recompute.graphs import Case, cases

F32 = DType.float32
COSTS = OpCosts()


def subsets(values: list[Value]) -> chain[tuple[Value, ...]]:
    return chain.from_iterable(combinations(values, n) for n in range(len(values) + 1))


def measure(program: Program, dropped: object) -> Measured:
    """Return what a program takes that computes some values again, read off a whole plan."""
    plan = Plan.of_program(program.mesh, recompute(program, dropped))  # type: ignore[arg-type]
    memory = predict_memory(plan, SIMULATED)
    seconds = simulate_plan(plan, SIMULATED, COSTS).seconds
    return Measured((memory.peak,), seconds, memory.fullest)


def part(program: Program) -> LocalPart:
    return LocalPart(program, SIMULATED)


def read_sections(of: LocalPart) -> Sequence[Section]:
    return read_part(of).sections


def program_of(graph: Graph) -> Program:
    """Return the local program of a graph and its gradients on one device."""
    wanted = tuple(v.name for v in graph.inputs if v.type.dtype.is_float)
    ran = run(graph, Mesh(), values_for(graph), differentiated=wanted)
    return ran.plan.stages[0].program


def random_graph(seed: int, count: int) -> Graph:
    """Return a graph of so many values, of sizes that differ, each made of some before."""
    random, builder = Random(seed), Builder()
    made = [builder.input(TensorType((4, 8), F32), "x")]
    for number in range(count):
        x = random.choice(made[-3:])
        kind = random.choice(["unary", "unary", "binary", "product"])
        if kind == "product":
            columns = random.choice([4, 8, 32])
            weight = builder.input(TensorType((columns, x.shape[1]), F32), f"w{number}")
            made.append(ops.einsum("ab,cb->ac", x, weight))
        elif kind == "binary":
            other = random.choice([y for y in made if y.shape == x.shape])
            made.append(x * other)
        else:
            made.append(random.choice([ops.exp, ops.sin, ops.tanh, ops.relu])(x))
    total = ops.sum(made[-1] * made[-1])
    return builder.build({"loss": total})


# ------------------------------------------------------------------ against brute force


@settings(max_examples=scaled(40), deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 5), st.floats(0.0, 1.0))
def test_of_small_graphs_the_choice_is_the_cheapest_there_is(
    seed: int, count: int, share: float
) -> None:
    program = program_of(random_graph(seed, count))
    early, _ = split_phases(program.graph)
    values = [value for node in early for value in node.outputs]
    assume(len(values) <= 8)
    known = [measure(program, dropped) for dropped in subsets(values)]
    most, least = known[0].peaks[0], min(found.peaks[0] for found in known)
    limit = int(least + share * (most - least))
    best = min(found.seconds for found in known if found.peaks[0] <= limit)
    choice = choose_within([part(program)], limit, lambda d: measure(program, d), "a budget")
    assert choice.measured.peaks[0] <= limit
    assert choice.measured.seconds == pytest.approx(best, rel=1e-9)
    assert choice.bound is not None
    assert choice.bound <= choice.seconds + 1e-12
    with pytest.raises(PlanError, match="which is too little; the least possible is"):
        choose_within([part(program)], least - 1, lambda d: measure(program, d), "a budget")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_of_larger_graphs_the_choice_is_the_cheapest(seed: int) -> None:
    programs = (program_of(random_graph(1000 * seed + number, 12)) for number in range(99))
    made = ((p, [v for n in split_phases(p.graph)[0] for v in n.outputs]) for p in programs)
    program, values = next((p, values) for p, values in made if 11 <= len(values) <= 12)
    known = [measure(program, dropped) for dropped in subsets(values)]
    most, least = known[0].peaks[0], min(found.peaks[0] for found in known)
    for share in (0.1, 0.4, 0.8):
        limit = int(least + share * (most - least))
        best = min(found.seconds for found in known if found.peaks[0] <= limit)
        choice = choose_within([part(program)], limit, lambda d: measure(program, d), "a budget")
        assert choice.measured.seconds == pytest.approx(best, rel=1e-9)


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-12, 1e-6))
def test_a_minimum_cut_finds_the_best_set_for_a_price_of_memory(seed: int, price: float) -> None:
    program = program_of(random_graph(seed, 5))
    sections = read_sections(part(program))
    for section in sections:
        found = section.block
        every = [weigh(found, some) for some in subsets(sorted(list_droppable(found)))]  # type: ignore[arg-type]
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
        pair = [simulate_plan(plan, SIMULATED, COSTS).seconds for plan in (ran.plan, kept.plan)]
        assert pair[0] <= 1.01 * pair[1] * (1 + 1e-9)


# ------------------------------------------------------------------ blocks


def blocks_of(count: int) -> Program:
    """Return the program of equal transformer blocks one after another."""
    one, builder = block(b=16, s=16), Builder()
    x = builder.input(one.inputs[0].type, "x")
    for number in range(count):
        given = [builder.input(v.type, f"{v.name}{number}") for v in one.inputs[1:]]
        with builder.at(scope=f"block{number}"):
            x = inline(one, builder, [x, *given])["y"]
    graph = builder.build({"loss": ops.sum(x)})
    assert len(BLOCK_PARAMETERS) == len(one.inputs) - 1
    return program_of(graph)


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
