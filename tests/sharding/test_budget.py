"""Within limits: what is found, and what is not, is what trying every combination finds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mithril.sharding.budget import Limit, minimise_largest, minimise_within
from mithril.sharding.eliminate import Table
from mithril.sharding.planes import find_highest

from tests.sharding.test_eliminate import price, problems

Problem = tuple[list[int], list[Table], list[Limit]]


@st.composite
def limited(draw: st.DrawFn) -> Problem:
    domains, tables = draw(problems())
    limits = []
    for _ in range(draw(st.integers(1, 3))):
        own = [
            Table((v,), np.array(draw(st.lists(st.integers(0, 9), min_size=n, max_size=n)), float))
            for v, n in enumerate(domains)
        ]
        limits.append(Limit(tuple(own), float(draw(st.integers(1, 30)))))
    return domains, tables, limits


def fits(limits: list[Limit], values: dict[int, int]) -> bool:
    return all(price(list(limit.tables), values) <= limit.most for limit in limits)


@given(limited())
def test_the_answer_is_that_of_trying_everything(problem: Problem) -> None:
    domains, tables, limits = problem
    every = [dict(enumerate(v)) for v in itertools.product(*map(range, domains))]
    best = min((price(tables, v) for v in every if fits(limits, v)), default=math.inf)
    answer = minimise_within(domains, tables, limits)
    assert answer.bound <= best * (1 + 1e-8) + 1e-8
    assert answer.cost == pytest.approx(best)
    if math.isfinite(best):
        assert fits(limits, answer.picked)
        assert price(tables, answer.picked) == best


@given(limited())
def test_the_largest_amount_is_bounded(problem: Problem) -> None:
    domains, tables, limits = problem
    amounts = [list(limit.tables) for limit in limits]
    every = [dict(enumerate(v)) for v in itertools.product(*map(range, domains))]
    admitted = [v for v in every if math.isfinite(price(tables, v))]
    answer = minimise_largest(domains, tables, amounts)
    if not admitted:
        assert math.isinf(answer.cost)
        return
    best = min(max(price(some, v) for some in amounts) for v in admitted)
    assert answer.bound <= best + 1e-6
    assert max(price(some, answer.picked) for some in amounts) == pytest.approx(answer.cost)
    assert answer.cost >= best - 1e-6
    if len(amounts) == 1:
        assert answer.cost == best


@given(
    st.integers(1, 3).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(-9, 9), min_size=n + 1, max_size=n + 1), min_size=1, max_size=6
        )
    )
)
def test_the_highest_point_is_above_all_others(planes: list[list[int]]) -> None:
    point, height = find_highest([tuple(map(float, plane)) for plane in planes], 4.0)

    def lowest(at: list[float]) -> float:
        return min(p[0] + sum(a * b for a, b in zip(p[1:], at, strict=True)) for p in planes)

    assert height == pytest.approx(lowest(point), abs=1e-4)
    grid = itertools.product([0.0, 1.0, 2.5, 4.0], repeat=len(point))
    assert height >= max(lowest(list(at)) for at in grid) - 1e-4
