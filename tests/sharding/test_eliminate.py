"""Variable elimination finds what trying every combination finds."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mithril.sharding.eliminate import Table, minimise


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
    picked, found, is_exact = minimise(domains, tables)
    best = min(
        price(tables, dict(enumerate(values))) for values in itertools.product(*map(range, domains))
    )
    assert is_exact
    assert found == best
    assert price(tables, picked) == best


def test_a_table_over_the_cap_is_said_to_be_inexact() -> None:
    rng = np.random.default_rng(0)
    tables = [
        Table((i, j), rng.integers(0, 9, (4, 4)).astype(float))
        for i, j in itertools.combinations(range(6), 2)
    ]
    exact = minimise([4] * 6, tables)
    capped = minimise([4] * 6, tables, cap=20)
    assert exact[2]
    assert not capped[2]
    assert capped[1] >= exact[1]
    assert price(tables, capped[0]) == capped[1]
