"""The benchmarks' harness: its statistics, its verdicts, and both sides of each benchmark, tiny."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace

import mithril as ml
import numpy as np
import pytest
from mithril.cli.gpt import Sizes

from benchmarks import (
    gpt_by_hand,
    numpy_gpt,
    numpy_mlp,
    overheads,
    planning,
    prediction_time,
    profiling,
    recompute_llama,
    search,
)
from benchmarks.harness import Estimate, Limit, estimate, interleave, ratio, report


class Clock:
    """Stands still but for what functions take."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def function(self, *seconds: float):
        left = itertools.cycle(seconds)

        def run() -> None:
            self.now += next(left)

        return run


def test_times_are_those_of_the_functions():
    clock = Clock()
    functions = {"a": clock.function(2.0), "b": clock.function(1.0, 1.0, 4.0)}
    times = interleave(functions, rounds=6, warm_up=0, clock=clock)
    assert times == {"a": [2.0] * 6, "b": [1.0, 1.0, 4.0, 1.0, 1.0, 4.0]}


def test_warm_up_rounds_do_not_count_and_calls_are_shared_out():
    clock = Clock()
    times = interleave(
        {"a": clock.function(9.0, 9.0, 3.0, 1.0)}, 1, warm_up=1, calls=2, clock=clock
    )
    assert times == {"a": [2.0]}


def test_order_changes_from_round_to_round():
    seen: list[str] = []
    interleave({name: lambda name=name: seen.append(name) for name in "ab"}, 40, warm_up=0)
    rounds = {"".join(seen[at : at + 2]) for at in range(0, len(seen), 2)}
    assert rounds == {"ab", "ba"}


@pytest.mark.slow
def test_collector_rests_while_functions_run_and_works_again_after():
    states: list[bool] = []
    interleave({"a": lambda: states.append(gc.isenabled())}, rounds=2, warm_up=1)
    assert states == [False] * 3
    assert gc.isenabled()


def test_ratio_is_taken_within_rounds():
    # One slow round of the machine: the medians would differ by more than the ratio.
    times = {"a": [2.0, 20.0, 2.2], "b": [1.0, 10.0, 1.0]}
    assert ratio(times, "a", "b").median == 2.0


@pytest.mark.parametrize(("count", "outside"), [(4, 0), (5, 0), (8, 1), (20, 5), (100, 41)])
def test_interval_by_order_statistics(count: int, outside: int):
    # Ranks as tabled for a 90 % interval of the median: (5, 1), (8, 2), (20, 6), (100, 42).
    found = estimate(list(range(count))[::-1])
    assert (found.low, found.high) == (outside, count - 1 - outside)
    assert found.median == (count - 1) / 2


def test_interval_covers_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    drawn = [estimate(rng.exponential(size=15)) for _ in range(2000)]
    covered = np.mean([e.low <= np.log(2) <= e.high for e in drawn])
    assert 0.9 <= covered <= 0.98  # at least 90 %; ranks are whole numbers


@pytest.mark.parametrize(
    ("found", "is_met"),
    [
        (Estimate(1.10, 1.05, 1.12), True),
        (Estimate(1.20, 1.14, 1.30), True),  # 4 % above, and the interval reaches it
        (Estimate(1.20, 1.16, 1.30), False),  # 4 % above, the interval does not
        (Estimate(1.22, 1.00, 1.30), False),  # 6 % above
    ],
)
def test_limit_is_met_at_most_5_percent_above_when_the_interval_reaches_it(
    found: Estimate, is_met: bool
):
    assert Limit("step", found, 1.15).is_met is is_met


def test_report_says_what_was_measured_and_returns_whether_all_is_met(
    capsys: pytest.CaptureFixture[str],
):
    met, broken = (Limit("step", Estimate(x, x, x), 1.15) for x in (1.0, 2.0))
    assert report("title", {"a": [0.001, 0.002, 0.003]}, [met]) == 0
    assert report("title", {}, [met, broken]) == 1
    text = capsys.readouterr().out
    assert "2.000 [1.000, 3.000] ms, best 1.000 ms, 3 rounds" in text
    assert "step: 1.000 [1.000, 1.000] x, limit 1.15 x: met" in text
    assert "step: 2.000 [2.000, 2.000] x, limit 1.15 x: NOT MET" in text
    assert f"NumPy {np.__version__}" in text


# ------------------------------------------------------------------ the benchmarks, tiny


def test_both_sides_of_the_mlp_agree():
    numpy_mlp.contestants((6, 5, 4, 3), batch=7)


def test_both_sides_of_the_gpt_agree():
    sizes = Sizes(layers=2, width=8, heads=2, hidden=12, context=5, batch=3)
    numpy_gpt.contestants(sizes, vocabulary=7)


def test_both_sides_of_tiny_layers_agree_and_eager_functions_run():
    backend = ml.NumpyBackend()
    sides = overheads.contestants(backend)
    assert [*sides] == [
        f"{side}{case}" for case in overheads.DEPTHS for side in ("mithril, ", "by hand, ")
    ]
    functions = overheads.eager(backend)
    found = {name: function().numpy()[0, 0] for name, function in functions.items()}
    assert found == {"x + x": 2, "x * 2.0": 2, "x @ x": overheads.SIDE}
    assert overheads.in_microseconds([1e-6, 2e-6, 3e-6]).median == pytest.approx(2)


def test_layers_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch):
    half = overheads.with_numpy
    monkeypatch.setitem(
        overheads.BY_HAND, "numpy", lambda case: lambda: [x / 2 for x in half(case)()]
    )
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        overheads.contestants(ml.NumpyBackend())


def test_sides_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpt_by_hand, "EPSILON", np.float32(0.1))
    sizes = Sizes(layers=1, width=8, heads=2, hidden=12, context=5, batch=3)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        numpy_gpt.contestants(sizes, vocabulary=7)


@pytest.mark.slow
def test_steps_inside_and_outside_a_profile_are_timed():
    sizes = Sizes(layers=1, width=8, heads=2, hidden=12, context=5, batch=4)
    mithril = profiling.side("numpy", 2, sizes, vocabulary=7)
    times = profiling.measure(mithril, rounds=2, calls=2)
    assert {name: len(samples) for name, samples in times.items()} == {
        "off": 2, "on": 2, "open and close": 2,
    }  # fmt: skip
    assert min(map(min, times.values())) > 0
    assert 0 <= profiling.cost_when_off() < 1


def test_planning_of_a_shallow_gpt():
    plan = planning.case(layers=1, data=2, tensor=2)().plan
    assert plan.mesh.size == 4
    assert plan.collectives()


def test_strategies_are_in_order_as_kendall_counts():
    in_order = [(1.0, 10.0), (2.0, 20.0), (3.0, 30.0), (4.0, 40.0)]
    assert prediction_time.kendall(in_order) == 1.0
    assert prediction_time.kendall([(a, -b) for a, b in in_order]) == -1.0
    swapped = [(1.0, 10.0), (3.0, 20.0), (2.0, 30.0), (4.0, 40.0)]
    assert prediction_time.kendall(swapped) == pytest.approx(4 / 6)


def test_predictions_that_are_too_far_off_are_not_met(capsys):
    def found(*ratios: float) -> dict[str, prediction_time.Timed]:
        return {str(i): prediction_time.Timed(ratio, 1.0) for i, ratio in enumerate(ratios)}

    assert prediction_time.report_cases(found(0.9, 1.1, 1.9))
    assert not prediction_time.report_cases(found(0.7, 1.0, 0.7))  # the median
    assert not prediction_time.report_cases(found(1.0, 1.0, 0.4))  # the worst
    assert "median error 0.0 %, limit 20 %; worst factor 2.50" in capsys.readouterr().out


@pytest.mark.slow
def test_every_strategy_of_the_gpt_is_another_plan():
    plans = set()
    for name, make in prediction_time.WAYS.items():
        case = make(1)
        plan = case.compile(ml.NumpyBackend(ml.Mesh(**case.mesh))).plan
        plans.add((str(plan.mesh), str(plan.bytes_by_axis()), len(plan.timetable.steps)))
        assert plan.timeline().seconds > 0, name
    assert len(plans) == 12


@pytest.mark.slow
def test_the_search_finds_what_the_integer_program_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("scipy.optimize")
    problem = search.record_problem(lambda: search.plan_loop(1, search.ONE))
    assert search.compare_with_program("one", problem, 60.0)
    shown = capsys.readouterr().out
    assert "elimination" in shown and "integer program" in shown
    twice = 2 * problem.answer.cost
    dearer = replace(problem, answer=replace(problem.answer, cost=twice, bound=twice))
    assert not search.compare_with_program("one", dearer, 60.0)


def test_a_budget_is_held_against_what_is_by_hand():
    found = {
        "everything kept": [1.0], "every layer again": [2.0], "by hand": [2.0], "budget": [1.5],
        "peak bytes of everything kept": [200.0], "peak bytes of every layer again": [80.0],
        "peak bytes of by hand": [75.0], "peak bytes of budget": [90.0],
        "bytes allowed to budget": [80.0],
    }  # fmt: skip
    limits = {limit.what: limit for limit in recompute_llama.limits(found)}
    assert limits["time of budget to by hand"].is_met
    assert not limits["measured peak to budget"].is_met
    assert limits["budget to the peak without"].is_met
    assert limits["peak of budget to by hand"].estimate.median == 1.2
    del found["by hand"]  # a fraction was asked for
    assert [limit.what for limit in recompute_llama.limits(found)] == [*limits][:2]
