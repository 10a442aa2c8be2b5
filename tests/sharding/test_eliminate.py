"""Elimination finds what trying every combination finds, in the order it promises, and no more work."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mithril.sharding.eliminate import Answer, Steps, Table, eliminate
from mithril.sharding.narrow import minimise

from tests.profiles import scaled


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], list[Table]]:
    domains = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    tables = []
    for _ in range(draw(st.integers(0, 8))):
        chosen = draw(st.sets(st.integers(0, len(domains) - 1), min_size=1, max_size=3))
        variables = tuple(draw(st.permutations(sorted(chosen))))
        shape = [domains[v] for v in variables]
        costs = draw(
            st.lists(
                st.one_of(st.integers(0, 9), st.just(float("inf"))),
                min_size=int(np.prod(shape)),
                max_size=int(np.prod(shape)),
            )
        )
        tables.append(Table(variables, np.array(costs, float).reshape(shape)))
    return domains, tables


def price(tables: list[Table], values: dict[int, int]) -> float:
    return float(sum(t.costs[tuple(values.get(v, 0) for v in t.variables)] for t in tables))


@given(problems())
def test_minimum_is_that_of_trying_everything(problem: tuple[list[int], list[Table]]) -> None:
    domains, tables = problem
    answer = eliminate(domains, tables)
    picked, found = answer.picked, answer.cost
    best = min(
        price(tables, dict(enumerate(values))) for values in itertools.product(*map(range, domains))
    )
    assert answer.is_exact
    assert found == best
    assert price(tables, picked) == best


def test_a_table_over_the_cap_is_said_to_be_inexact() -> None:
    rng = np.random.default_rng(0)
    tables = [
        Table((i, j), rng.integers(0, 9, (4, 4)).astype(float))
        for i, j in itertools.combinations(range(6), 2)
    ]
    exact = eliminate([4] * 6, tables)
    capped = eliminate([4] * 6, tables, cap=20)
    assert exact.is_exact
    assert not capped.is_exact
    assert capped.bound <= exact.cost <= capped.cost
    assert price(tables, capped.picked) == capped.cost


@given(problems(), st.integers(2, 9))
def test_over_the_cap_there_is_a_bound(problem: tuple[list[int], list[Table]], cap: int) -> None:
    domains, tables = problem
    exact, capped = eliminate(domains, tables), eliminate(domains, tables, cap)
    assert capped.bound <= exact.cost + 1e-9
    assert capped.cost >= exact.cost
    if not np.isinf(capped.cost):
        assert price(tables, capped.picked) == pytest.approx(capped.cost)


NOTHING_ADMITTED = [
    Table((0,), np.array([0.0, np.inf, np.inf])),
    Table((0,), np.array([np.inf, 0.0, np.inf])),
    Table((0, 1), np.zeros((3, 2))),
]


@settings(max_examples=scaled(200))
@example(([3, 2], NOTHING_ADMITTED), 2)
@given(problems(), st.integers(2, 9))
def test_with_fewer_values_the_bound_holds_and_is_no_lower(
    problem: tuple[list[int], list[Table]], cap: int
) -> None:
    domains, tables = problem
    if not tables:
        return
    exact, capped = eliminate(domains, tables), eliminate(domains, tables, cap)
    narrowed = minimise(domains, tables, cap)
    assert narrowed.bound <= exact.cost * (1 + 1e-8) + 1e-6
    assert narrowed.bound >= capped.bound - 1e-6
    assert exact.cost - 1e-9 <= narrowed.cost <= capped.cost
    if np.isfinite(narrowed.cost):
        assert price(tables, narrowed.picked) == pytest.approx(narrowed.cost)
    if narrowed.is_exact:
        assert narrowed.cost == pytest.approx(exact.cost)


def eliminate_plainly(domains: list[int], tables: list[Table]) -> tuple[dict[int, int], list[int]]:
    """Return what is picked, and the order of the variables, as the module's text says it."""
    left = list(tables)
    trail: list[tuple[int, tuple[int, ...], np.ndarray]] = []
    remaining = {v for table in tables for v in table.variables}

    def around(variable: int) -> set[int]:
        return {v for t in left if variable in t.variables for v in t.variables} | {variable}

    while remaining:
        sizes = {v: int(np.prod([domains[n] for n in around(v)])) for v in remaining}
        variable = min(remaining, key=lambda v: (sizes[v], v))
        others = tuple(sorted(around(variable) - {variable}))
        mine = [t for t in left if variable in t.variables]
        left = [t for t in left if variable not in t.variables]
        remaining.discard(variable)
        total = np.zeros([domains[v] for v in (*others, variable)])
        for t in mine:
            total = total + extend(t, (*others, variable))
        trail.append((variable, others, total.argmin(axis=-1)))
        left.append(Table(others, total.min(axis=-1)))
    picked: dict[int, int] = {}
    for variable, others, best in reversed(trail):
        picked[variable] = int(best[tuple(picked[v] for v in others)])
    return picked, [variable for variable, _, _ in trail]


def extend(table: Table, order: tuple[int, ...]) -> np.ndarray:
    """Return costs over the variables of an order, at their best over those that are not in it."""
    kept = [v for v in order if v in table.variables]
    gone = tuple(i for i, v in enumerate(table.variables) if v not in order)
    costs = table.costs.min(axis=gone)
    names = [v for v in table.variables if v in order]
    costs = costs.transpose([names.index(v) for v in kept])
    return costs.reshape([costs.shape[kept.index(v)] if v in kept else 1 for v in order])


@st.composite
def repetitions(draw: st.DrawFn) -> tuple[list[int], list[Table]]:
    """Draw a block of tables, laid one behind another over shifted variables that overlap."""
    domains, tables = draw(problems())
    times, shift = draw(st.integers(1, 4)), draw(st.integers(1, len(domains)))
    sizes = [domains[i % shift] for i in range(shift * times + len(domains))]
    repeated = []
    for start in range(0, shift * times, shift):
        for table in tables:
            variables = tuple(v + start for v in table.variables)
            wanted = tuple(sizes[v] for v in variables)
            costs = np.resize(table.costs, wanted)  # where domains differ after the shift
            repeated.append(Table(variables, costs))
    return sizes, repeated


@given(problem=repetitions())
def test_ties_and_order_are_those_of_the_plain_algorithm(
    problem: tuple[list[int], list[Table]],
) -> None:
    domains, tables = problem
    answer = eliminate(domains, tables)
    picked, found = answer.picked, answer.cost
    expected, order = eliminate_plainly(domains, tables)
    assert list(picked) == order[::-1]
    assert found == price(tables, picked) == price(tables, expected)
    if np.isfinite(found):  # where everything is forbidden, nothing is better than anything else
        assert picked == expected


def chain(length: int) -> tuple[list[int], list[Table]]:
    """Return a row of equal blocks of three variables, each tied to the next one's."""
    rng = np.random.default_rng(0)
    inside, across = rng.integers(1, 99, (3, 4, 5)), rng.integers(1, 99, (5, 3))
    tables = []
    for block in range(length):
        a, b, c = 3 * block, 3 * block + 1, 3 * block + 2
        tables.append(Table((a, b, c), inside.astype(float)))
        if block + 1 < length:
            tables.append(Table((c, a + 3), across.astype(float)))
    return [3, 4, 5] * length, tables


def test_work_grows_with_the_variables_and_entries_do_not_where_blocks_repeat() -> None:
    few, many = Steps(), Steps()
    eliminate(*chain(12), steps=few)
    eliminate(*chain(24), steps=many)
    small, large = few.work, many.work
    assert (small.steps, large.steps) == (36, 72)
    assert large.compared <= 2.2 * small.compared
    assert large.compared <= 3 * large.steps
    assert large.entries == small.entries
    assert large.steps - large.looked_up == small.steps - small.looked_up


def test_a_small_difference_decides_beside_a_large_sum() -> None:
    tables = [Table((0,), np.full(2, 2.0**60)), Table((0,), np.array([1.0, 0.0]))]
    assert eliminate([2], tables) == Answer({0: 1}, 2.0**60, 2.0**60)


def test_where_everything_is_forbidden_the_minimum_says_so() -> None:
    tables = [Table((0, 1), np.full((2, 2), np.inf)), Table((2,), np.array([3.0, 1.0]))]
    answer = eliminate([2, 2, 2], tables)
    assert (answer.picked[2], answer.cost, answer.is_exact) == (1, np.inf, True)
