"""Budgets as options: kept to by models, functions, pipelines and train steps, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import visualize
from mithril.errors import OptionError, PlanError
from mithril.plan.serialize import plan_from_json, plan_to_json

from tests.profiles import quick
from tests.recompute.models import check_same, evaluate, looped, staged, train, unrolled
from tests.visualize.pictures import find_overlaps, texts

ONE = ml.Mesh(data=1)


@pytest.mark.slow
@pytest.mark.parametrize("make", [unrolled, looped])
@pytest.mark.parametrize("budget", ["selective", 0.8, 0.6])
def test_a_budget_is_kept_to(make: Callable[[], ml.Model], budget: float | str) -> None:
    backend = ml.NumpyBackend(ONE)
    kept = evaluate(make(), backend)
    found = evaluate(make(), backend, checkpointing=budget)
    check_same(found, kept)
    policy = found.compiled.plan.policy
    assert policy.keeping == kept.peak
    if budget == "selective":
        assert policy.budget is policy.bound is policy.gap is None
        assert found.peak < 0.95 * kept.peak
        seconds = [ran.compiled.plan.timeline().seconds for ran in (found, kept)]
        assert seconds[0] <= 1.01 * seconds[1]
    else:
        assert found.peak <= policy.budget == int(budget * kept.peak)
        assert 0 <= policy.bound <= policy.seconds
        assert policy.gap == pytest.approx(policy.seconds - policy.bound)


@pytest.mark.slow
def test_bytes_are_the_peak_of_a_device() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    kept = evaluate(unrolled(), backend)
    found = evaluate(unrolled(), backend, checkpointing=f"{int(0.7 * kept.peak)} B")
    check_same(found, kept)
    assert found.peak <= int(0.7 * kept.peak)
    found = evaluate(unrolled(), backend, checkpointing="1 GB")
    assert found.compiled.plan.policy.recomputed == 0
    assert found.peak == kept.peak


@pytest.mark.slow
def test_more_memory_is_never_slower_and_less_never_faster() -> None:
    backend = ml.NumpyBackend(ONE)
    rows = []
    for budget in (0.9, 0.8, 0.7, 0.6, 0.5):
        plan = evaluate(unrolled(), backend, checkpointing=budget).compiled.plan
        rows.append((plan.timeline().seconds, plan.memory().peak))
    assert rows == sorted(rows, key=lambda row: row[0])
    assert [peak for _, peak in rows] == sorted((peak for _, peak in rows), reverse=True)


@pytest.mark.slow
def test_a_budget_is_no_slower_than_recomputing_every_layer_at_its_peak() -> None:
    backend = ml.NumpyBackend(ONE)
    layers = evaluate(unrolled(8), backend, checkpointing="all")
    found = evaluate(unrolled(8), backend, checkpointing=f"{layers.peak} B")
    check_same(found, layers)
    assert found.peak <= layers.peak
    seconds = [ran.compiled.plan.timeline().seconds for ran in (found, layers)]
    assert seconds[0] <= 0.97 * seconds[1]


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "share"), [("gpipe", 0.7), ("1f1b", 0.7), ("zb-h1", 0.97)])
def test_pipelines_keep_to_a_budget_on_every_device(schedule: str, share: float) -> None:
    backend = ml.NumpyBackend(ml.Mesh(pipe=2))
    kept = evaluate(staged(), backend, pipeline_schedule=schedule)
    found = evaluate(staged(), backend, pipeline_schedule=schedule, checkpointing=share)
    check_same(found, kept)
    limit = int(share * kept.peak)
    assert all(row.peak <= limit for row in found.compiled.plan.memory().rows)


@pytest.mark.slow
def test_accumulated_micro_batches_keep_to_a_budget() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    kept = evaluate(unrolled(), backend, accumulate=2)
    found = evaluate(unrolled(), backend, accumulate=2, checkpointing=0.8)
    check_same(found, kept)
    assert found.peak <= 0.8 * kept.peak


@pytest.mark.slow
@pytest.mark.parametrize("zero", [1, 3])
def test_the_budget_of_a_train_step_is_that_of_the_whole_step(zero: int) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    kept, expected = train(looped(), backend, zero=zero)
    found, losses = train(looped(), backend, zero=zero, checkpointing=0.75)
    assert losses == expected
    assert found.memory().peak <= 0.75 * kept.memory().peak


def test_functions_keep_to_a_budget() -> None:
    backend = ml.NumpyBackend()

    def loss(x: Any, weights: Any) -> Any:
        for _ in range(6):
            x = ml.numpy.tanh(x @ weights)
        return (x * x).sum()

    x, weights = backend.ones(64, 32), backend.ones(32, 32) * 0.01
    kept, found = ml.jit(ml.grad(loss)), ml.jit(ml.grad(loss), checkpointing=0.8)
    np.testing.assert_array_equal(found(x, weights).numpy(), kept(x, weights).numpy())
    peaks = [f.plan(x, weights).memory().peak for f in (found, kept)]
    assert peaks[0] <= 0.8 * peaks[1]


@pytest.mark.slow
def test_whole_layers_are_dearer_than_any_operation() -> None:
    backend = ml.NumpyBackend(ONE)
    rows = []
    for granularity in ("operation", "layer"):
        found = evaluate(
            unrolled(), backend, checkpointing=0.75, recomputation_granularity=granularity
        )
        rows.append(found.compiled.plan.timeline().seconds)
    assert rows[0] < rows[1]


@pytest.mark.slow
def test_what_a_collective_has_brought_is_kept_where_it_shall_be() -> None:
    backend = ml.NumpyBackend(ml.Mesh(tensor=2))

    def count(**options: Any) -> int:
        model = unrolled()
        model.shard({"*attention.q.weight": ml.P("tensor", None)})
        compiled = evaluate(model, backend, **options).compiled
        return len(compiled.plan.collectives())

    once = count()
    policy = {"tensor": "minimal"}
    assert count(checkpointing=0.6, rematerialization_policy=policy) == once


# ------------------------------------------------------------------ what is said


def test_too_small_a_budget_names_the_least_and_what_dominates_it() -> None:
    with pytest.raises(PlanError) as caught:
        evaluate(unrolled(), ml.NumpyBackend(ONE), checkpointing="20 KiB")
    assert str(caught.value).startswith(
        "checkpointing='20 KiB' leaves 20 KiB to a device, which is too little; the least possible"
    )
    assert "most of it " in str(caught.value)


@pytest.mark.slow
def test_what_is_on_the_host_dominates_no_device() -> None:
    with pytest.raises(PlanError, match="most of it ") as caught:
        evaluate(
            unrolled(),
            ml.NumpyBackend(ONE),
            checkpointing="20 KiB",
            activation_offload=True,
            offload_threshold=0,
        )
    assert "host" not in str(caught.value)


@pytest.mark.slow
def test_the_policy_has_a_curve_with_the_next_choices() -> None:
    plan = evaluate(unrolled(), ml.NumpyBackend(ONE), checkpointing=0.7).compiled.plan
    policy, peak = plan.policy, plan.memory().peak
    assert policy.find(dearer=True, peak=peak).peak < peak
    assert policy.find(dearer=True, peak=peak).seconds > policy.seconds
    assert policy.find(dearer=False, peak=peak).seconds < policy.seconds
    assert policy.curve[0].seconds == 0
    assert any("is part of the fastest choice" in layer.why for layer in policy.layers)
    assert plan_from_json(plan_to_json(plan)).policy == policy


@pytest.mark.slow
def test_the_trade_off_is_drawn_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    plan = evaluate(unrolled(), ml.NumpyBackend(ONE), checkpointing=0.7).compiled.plan
    figure = visualize.plot_memory_tradeoff(plan)
    assert find_overlaps(figure) == []
    shown = texts(figure)
    assert {"choices", "this plan"} <= set(shown)
    assert any(text.startswith("budget ") for text in shown)
    line = figure.axes[0].lines[0]
    assert len(line.get_xdata()) == len(plan.policy.curve)
    visualize.print_memory_tradeoff(plan)
    assert "this plan" in capsys.readouterr().out


def test_a_plan_without_a_budget_has_no_trade_off() -> None:
    plan = evaluate(unrolled(), ml.NumpyBackend(ONE), checkpointing="all").compiled.plan
    with pytest.raises(OptionError, match="plan was made without a memory budget"):
        visualize.plot_memory_tradeoff(plan)
    with pytest.raises(OptionError, match="a memory trade-off is drawn of a plan, not of"):
        visualize.print_memory_tradeoff(3)  # type: ignore[arg-type]


# ------------------------------------------------------------------ other backends


@pytest.mark.parametrize("make", [unrolled, looped])
@pytest.mark.parametrize("opened", [ml.TorchBackend, ml.JaxBackend, ml.MLXBackend])
@quick(lambda opened, make: opened is ml.TorchBackend and make is unrolled)
def test_every_backend_keeps_to_a_budget(
    opened: Callable[..., Any], make: Callable[[], ml.Model]
) -> None:
    kept = evaluate(make(), opened(ONE))
    found = evaluate(make(), opened(ONE), checkpointing=0.7)
    for name, gradient in kept.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-5, atol=1e-5)
    assert found.peak <= 0.7 * kept.peak
