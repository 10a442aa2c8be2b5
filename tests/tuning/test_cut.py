"""Layers in stages: the best cut against all cuts, loops in equal parts, memory."""

from __future__ import annotations

from itertools import combinations

import mithril as ml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril.runtime.balancing.cut import Cut, Unit, cut_greedily, cut_optimally

from tests.profiles import scaled


def make_units(seconds: list[float], held: list[float] | None = None) -> list[Unit]:
    return [Unit(f"u{i}", s, held[i] if held else 0.0) for i, s in enumerate(seconds)]


def list_cuts(units: list[Unit], stages: int) -> list[Cut]:
    """Return every way to cut a chain."""
    found = []
    for ends in combinations(range(1, len(units)), stages - 1):
        borders = [0, *ends, len(units)]
        of = [s for s in range(stages) for _ in range(borders[s], borders[s + 1])]
        found.append(Cut(tuple(units), tuple(of)))
    return found


@settings(max_examples=scaled(300), deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(1, 5), st.data())
def test_the_best_cut_is_that_of_all_cuts(
    seconds: list[int], stages: int, data: st.DataObject
) -> None:
    held = data.draw(st.lists(st.integers(0, 9), min_size=len(seconds), max_size=len(seconds)))
    memory = data.draw(st.integers(5, 30))
    units = make_units([float(s) for s in seconds], [float(h) for h in held])
    fitting = [
        cut
        for cut in list_cuts(units, stages)
        if all(
            sum(u.bytes for u, s in zip(cut.units, cut.stages, strict=True) if s == stage) <= memory
            for stage in range(stages)
        )
    ]
    if not fitting:
        with pytest.raises(ml.PlanError):
            cut_optimally(units, stages, memory)
        return
    assert cut_optimally(units, stages, memory).slowest == min(cut.slowest for cut in fitting)


@settings(max_examples=scaled(200), deadline=None)
@given(st.lists(st.integers(1, 20), min_size=2, max_size=12), st.integers(1, 4))
def test_greedy_stages_are_whole_and_no_better_than_the_best(
    seconds: list[int], stages: int
) -> None:
    units = make_units([float(s) for s in seconds])
    if len(units) < stages:
        with pytest.raises(ml.PlanError, match="which cannot be cut into"):
            cut_greedily(units, stages)
        return
    cut = cut_greedily(units, stages)
    assert list(cut.stages) == sorted(cut.stages)
    assert set(cut.stages) == set(range(stages))
    assert cut.slowest >= cut_optimally(units, stages).slowest


def test_a_loop_is_cut_into_equal_parts_one_a_stage() -> None:
    chain = [Unit("embed", 1.0), Unit("blocks", 12.0, repeats=12), Unit("head", 1.0)]
    found = cut_optimally(chain, 4)
    assert found.places == {"embed": 0, "blocks": (0, 1, 2, 3), "head": 3}
    assert found.seconds == (4.0, 3.0, 3.0, 4.0)
    assert cut_greedily(chain, 4).places["blocks"] == (0, 1, 2, 3)


def test_a_loop_that_does_not_divide_leaves_a_stage_to_the_rest() -> None:
    chain = [Unit("embed", 1.0), Unit("blocks", 9.0, repeats=9), Unit("head", 2.0)]
    found = cut_optimally(chain, 4)
    assert found.places == {"embed": 0, "blocks": (0, 1, 2), "head": 3}


def test_too_few_layers_and_too_little_memory() -> None:
    with pytest.raises(ml.PlanError, match="model has 2 layers, which cannot be cut into 3 stages"):
        cut_optimally(make_units([1.0, 1.0]), 3)
    with pytest.raises(ml.PlanError, match="of which each holds at most 5 B; use more stages"):
        cut_optimally(make_units([1.0, 1.0], [4.0, 9.0]), 2, 5.0)
