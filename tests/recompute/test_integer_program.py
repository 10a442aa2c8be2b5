"""The integer program: its bound holds, what it finds is better, and without a solver it says so."""

from __future__ import annotations

import mithril as ml
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril.mesh import Mesh
from mithril.partition.recompute import integer_program
from mithril.partition.recompute.drop_sets import list_droppable, weigh
from mithril.partition.recompute.frontier import Frontier
from mithril.partition.recompute.integer_program import solve
from mithril.partition.recompute.sections import LocalPart, read_part

from tests.profiles import scaled
from tests.recompute.models import evaluate, looped
from tests.recompute.solving import (
    SIMULATED,
    blocks_of,
    choose,
    list_subsets,
    measure,
    part,
    small_program,
)


@pytest.mark.slow
@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["wired", "chain"]), st.floats(0.0, 1.0))
def test_no_set_within_the_limit_goes_below_the_bound(seed: int, kind: str, share: float) -> None:
    reading = read_part(part(small_program(seed, Mesh(), kind)))
    assume(len(reading.sections) == 1)
    block = reading.sections[0].block
    every = [weigh(block, some) for some in list_subsets(sorted(list_droppable(block)))]
    peaks = [found.working(block.around) for found in every]
    limit = int(min(peaks) + share * (max(peaks) - min(peaks)))
    best = min(f.seconds for f, peak in zip(every, peaks, strict=True) if peak <= limit)
    (answer,) = solve([[reading]], [limit])
    assert answer.bound <= best * (1 + 1e-6) + 1e-15
    assert answer.seconds <= best * (1 + 2e-3) + 1e-15  # what it leaves out only makes it cheaper


@pytest.mark.slow
def test_the_gap_is_smaller_than_that_of_prices(capfd: pytest.CaptureFixture[str]) -> None:
    program = blocks_of(4)
    frontier = Frontier(read_part(part(program)).sections)
    limit = int(0.8 * measure(program, ()).peaks[0])
    choice = choose(program, limit)
    assert capfd.readouterr() == ("", ""), "the solver prints nothing"
    assert choice.measured.peaks[0] <= limit
    assert choice.bound_by == "an integer program"
    others = choice.measured.peaks[0] - frontier.keep_all().peak
    assert choice.bound is not None
    assert choice.seconds - choice.bound < 0.02 * choice.seconds
    assert choice.bound > 1.1 * frontier.find_bound(limit - max(others, 0))


def test_micro_batches_in_flight_count_in_the_program() -> None:
    program = blocks_of(2)
    room = Frontier(read_part(part(program)).sections).keep_all().peak
    few, many = (
        solve([[read_part(LocalPart(program, SIMULATED, (), flight, 6))]], [room])[0]
        for flight in (1, 3)
    )
    assert few.bound == 0
    assert many.bound > 0


def test_parts_on_the_same_devices_share_their_memory() -> None:
    readings = [read_part(part(blocks_of(1))) for _ in range(2)]
    room = max(Frontier(reading.sections).keep_all().peak for reading in readings)
    (one,) = solve([readings[:1]], [room])
    (both,) = solve([readings], [room])
    assert one.bound == 0
    assert both.bound > 0


def test_whole_layers_and_large_programs_are_left_to_the_frontier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = blocks_of(2)
    assert solve([[read_part(LocalPart(program, SIMULATED, is_whole=True))]], [1000]) == []
    reading = read_part(part(program))
    room = Frontier(reading.sections).keep_all().peak
    assert solve([[reading]], [room])
    monkeypatch.setattr(integer_program, "LARGEST", 3)
    assert solve([[reading]], [room]) == []


def test_without_a_solver_the_bound_is_that_of_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=1))
    solved = evaluate(looped(), backend, checkpointing=0.7)
    monkeypatch.setattr(integer_program, "can_solve", lambda: False)
    priced = evaluate(looped(), backend, checkpointing=0.7)
    with_it, without = solved.compiled.plan.policy, priced.compiled.plan.policy
    assert with_it.bound_by == "an integer program"
    assert without.bound_by == "Lagrangian relaxation"
    assert without.bound < with_it.bound
    assert with_it.gap < without.gap
    assert with_it.seconds <= without.seconds
    for policy in (with_it, without):
        assert f"by {policy.bound_by}, gap " in str(policy)
