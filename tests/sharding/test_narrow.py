"""Costs that are shifted bound what they bound, in blocks alike, too; what is left out is no better."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.sharding.diffuse import Diffusion, find_groups, find_pairs
from mithril.sharding.eliminate import Steps, Table, eliminate, evaluate, reduce
from mithril.sharding.narrow import minimise

from tests.profiles import scaled

NEAR = 1e-6
CAP = 300


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[Table]]:
    """Draw a block of variables and pairs, again and again, each tied to the next one."""
    size, times = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    domains = draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    inside = list(itertools.combinations(range(size), 2))
    across = draw(st.lists(st.tuples(*[st.integers(0, size - 1)] * 2), min_size=1, max_size=3))
    own = [rng.integers(0, 9, n).astype(float) for n in domains]
    known = {}
    for a, b in [*inside, *across]:
        costs = rng.integers(0, 9, (domains[a], domains[b])).astype(float)
        known[a, b] = np.where(rng.random(costs.shape) < draw(st.floats(0, 0.3)), np.inf, costs)
    tables = []
    for first in range(0, size * times, size):
        tables += [Table((first + v,), costs) for v, costs in enumerate(own)]
        tables += [Table((first + a, first + b), known[a, b]) for a, b in inside]
        if first + size < size * times:
            tables += [Table((first + size + b, first + a), known[a, b].T) for a, b in across]
    return domains * times, tables


@settings(max_examples=scaled(200))
@given(rows(), st.integers(0, 4))
def test_shifted_costs_bound_every_choice_with_a_value(
    problem: tuple[list[int], list[Table]], steps: int
) -> None:
    domains, tables = problem
    pairs = find_pairs(domains, tables)
    choices = list(itertools.product(*map(range, domains)))[:5000]
    costs = [evaluate(tables, dict(enumerate(choice))) for choice in choices]
    start, before = None, -np.inf
    for groups in (find_groups(pairs, steps), range(len(domains))):
        diffusion = Diffusion(pairs, groups, start)
        for _ in range(3):
            diffusion.sweep()
            bound, more = diffusion.measure()
            room = NEAR * (1 + abs(bound))
            assert bound >= before - room
            before = bound
            for choice, cost in zip(choices, costs, strict=True):
                above = max(more[diffusion.kinds[v]][at] for v, at in enumerate(choice))
                assert bound + above <= cost + room
        start = diffusion.list_messages()


def chain(length: int, size: int) -> tuple[list[int], list[Table]]:
    """Return a ring of four variables, again and again, each tied to the next one at two places."""
    rng = np.random.default_rng(0)
    inside = [rng.integers(0, 99, (size, size)).astype(float) for _ in range(4)]
    across = [rng.integers(0, 99, (size, size)).astype(float) for _ in range(2)]
    own = [rng.integers(0, 199, size).astype(float) for _ in range(4)]
    tables = []
    for first in range(0, 4 * length, 4):
        tables += [Table((first + i,), own[i]) for i in range(4)]
        ring = itertools.pairwise([first, first + 1, first + 2, first + 3, first])
        tables += [Table(ends, costs) for ends, costs in zip(ring, inside, strict=True)]
        if first:
            tables += [Table((first - 2 + i, first + i), across[i]) for i in range(2)]
    return [size] * 4 * length, tables


@pytest.mark.parametrize("length", [1, 3, 8])
def test_fewer_values_lead_to_the_same_minimum_in_small_tables(length: int) -> None:
    domains, tables = chain(length, 8)
    exact = eliminate(domains, tables)
    assert not eliminate(domains, tables, CAP).is_exact or length == 1
    narrowed = minimise(domains, tables, CAP)
    assert narrowed.is_exact
    assert narrowed.cost == narrowed.bound == exact.cost
    assert evaluate(tables, narrowed.picked) == exact.cost


def test_blocks_that_are_alike_share_what_is_shifted() -> None:
    short, long = (find_pairs(*chain(length, 5)) for length in (16, 32))
    assert set(find_groups(long, 5)) == set(find_groups(short, 5))
    assert len(set(find_groups(long, 100))) == len(long.own)


def test_bound_and_cost_enclose_the_minimum_whatever_the_cap() -> None:
    domains, tables = chain(2, 3)
    exact = eliminate(domains, tables)
    for cap in range(9, 28):
        narrowed = minimise(domains, tables, cap)
        assert narrowed.bound <= exact.cost <= narrowed.cost


@pytest.mark.parametrize("length", [2, 8])
def test_what_is_not_below_a_known_cost_is_given_up(length: int) -> None:
    domains, tables = chain(length, 8)
    least = eliminate(domains, tables).cost
    assert minimise(domains, tables, CAP, below=least + 1).cost == least
    for below in (least, least - 1):
        given_up = minimise(domains, tables, CAP, below=below)
        assert given_up.bound >= below
        assert given_up.cost == np.inf


@settings(max_examples=scaled(100))
@given(rows())
def test_minima_over_variables_between_two_others_are_exact(
    problem: tuple[list[int], list[Table]],
) -> None:
    domains, tables = problem
    exact = eliminate(domains, tables)
    reduced = reduce(domains, tables, Steps())
    around = [
        {v for t in reduced.tables if at in t.variables for v in t.variables}
        for at in range(len(reduced.domains))
    ]
    assert all(len(some) > 3 for some in around)
    left = eliminate(reduced.domains, reduced.tables)
    assert left.cost == exact.cost
    if np.isfinite(exact.cost):
        assert evaluate(tables, reduced.complete(left.picked)) == exact.cost


def test_variables_that_are_settled_take_no_dimensions() -> None:
    """Of seventy variables that all meet, NumPy has no array with a dimension for each."""
    count, open_ones, rng = 70, 4, np.random.default_rng(0)
    dear = np.array([0.0, 9000.0, 9000.0])
    tables = [Table((v,), dear if v >= open_ones else np.zeros(3)) for v in range(count)]
    pairs = itertools.combinations(range(count), 2)
    tables += [Table(pair, rng.integers(0, 9, (3, 3)).astype(float)) for pair in pairs]
    others = itertools.combinations(range(open_ones), 2)
    tables += [Table(pair, 99.0 * np.eye(3)) for pair in others]  # of four, two are equal
    found = minimise([3] * count, tables, CAP)
    settled = dict.fromkeys(range(open_ones, count), 0)
    choices = itertools.product(range(3), repeat=open_ones)
    assert found.is_exact
    assert found.cost == min(evaluate(tables, settled | dict(enumerate(c))) for c in choices)
    assert found.picked.items() >= settled.items()
