"""ZeRO 1 and 2 gather each parameter in the next forward, once; `zero="auto"` takes what is faster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.cost import SIMULATED
from mithril.plan import Execution
from mithril.runtime.planned import plan_backend

from tests.tolerances import TOLERANCE
from tests.training.test_step import Momentum, batches, model, shapes, train

SIZES = Sizes(layers=3, width=32, heads=2, hidden=64, context=8, batch=8)
BESIDE = replace(SIMULATED, execution=Execution(overlaps=True))
"""Devices on which collectives go on beside kernels."""


def make_step(profile: ml.Hardware = BESIDE, **options: Any) -> ml.TrainStep:
    ids = ml.TensorSpec((SIZES.batch, SIZES.context), "int32", P("data"))
    return ml.train_step(
        with_loss(gpt(64, SIZES)), plan_backend(ml.Mesh(data=2), profile), ml.optim.adamw(1e-3),
        shapes={"tokens": ids, "target": ids}, metrics=(), **options,
    )  # fmt: skip


def count(step: ml.TrainStep, kind: str) -> dict[str, int]:
    """Return the bytes of all collectives of a kind, by phase."""
    rows = [row for row in step.plan.collectives() if row.kind == kind]
    phases = dict.fromkeys(str(row.phase) for row in rows)
    return {phase: sum(r.bytes * r.times for r in rows if r.phase == phase) for phase in phases}


# ------------------------------------------------------------------ once, and hidden


@pytest.mark.parametrize("checkpointing", ["none", "all"])
@pytest.mark.parametrize("zero", [1, 2])
def test_the_bytes_are_those_of_a_sum_of_gradients(zero: int, checkpointing: str) -> None:
    """What is computed again says nothing of what is sent again."""
    (summed,) = count(make_step(checkpointing=checkpointing), "all_reduce").values()
    step = make_step(zero=zero, checkpointing=checkpointing)
    gradients = count(step, "reduce_scatter")
    assert set(gradients) == {"backward"}
    assert count(step, "all_gather") == {"forward": gradients["backward"]}
    assert sum(gradients.values()) + 4 == summed  # and the loss


def test_a_budget_gathers_again_what_has_no_room() -> None:
    """Between what stage 1 holds if it keeps all, and what it takes to compute layers again."""
    plain, again = make_step(zero=1), make_step(zero=1, checkpointing="all")
    limit = again.memory().peak
    assert limit < plain.memory().peak
    step = make_step(zero=1, checkpointing=f"{limit} B")
    assert step.memory().peak <= limit
    assert "backward" in count(step, "all_gather")


def test_both_halves_go_on_beside_what_computes() -> None:
    step = make_step(zero=1)
    gathers = [row for row in step.plan.collectives() if row.kind == "all_gather"]
    scatters = [row for row in step.plan.collectives() if row.kind == "reduce_scatter"]
    assert sum(row.cause.hidden or 0.0 for row in gathers) > 0
    assert sum(row.cause.hidden or 0.0 for row in scatters) > 0
    assert step.plan.timeline().seconds < make_step().plan.timeline().seconds


def test_what_is_kept_is_a_part() -> None:
    step = make_step(zero=1)
    lies = {name: x.split_axes for name, x in step.shardings.items() if name.startswith("gpt.")}
    assert len(lies) > 40 and set(lies.values()) == {("data",)}


def test_a_large_gather_was_asked_for() -> None:
    step = ml.train_step(
        model(), ml.NumpyBackend(ml.Mesh(data=2)), Momentum(), shapes=shapes(P("data")), zero=1,
        max_reshard_bytes=64,
    )  # fmt: skip
    assert max(row.bytes for row in step.plan.collectives() if row.kind == "all_gather") > 64


@pytest.mark.parametrize("zero", [1, 2])
def test_a_state_is_evaluated_as_it_lies(zero: int) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    step = ml.train_step(model(), backend, Momentum(), shapes=shapes(P("data")), zero=zero)
    (batch, *_) = batches()
    state, _ = step(step.init(seed=0), batch)
    params = {name: backend.array(x.numpy()) for name, x in state.params.items()}
    expected = ml.compile(model(), backend).evaluate(params, batch)["loss"].item()
    found = step.compiled.evaluate(state.params, batch)["loss"].item()
    np.testing.assert_allclose(found, expected, *TOLERANCE["float32"])
    rows = step.compiled.plan.collectives()
    assert {row.kind for row in rows if row.bytes > 8} == {"all_gather"}
    compiled = ml.compile(model(), backend, shapes=shapes(P("data")))
    placed = compiled.place(state.params)
    assert {str(x.sharding.spec) for x in placed.values()} == {"P(None, None)", "P(None)"}
    whole = compiled.evaluate(placed, batch)["loss"].item()
    np.testing.assert_allclose(whole, expected, *TOLERANCE["float32"])


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_so_is_that_of_stages(zero: int) -> None:
    """Each parameter is gathered on its stage, and nothing is computed in parts of it."""
    step = make_step_of_stages(zero)
    state = step.init(seed=0)
    (batch, *_) = batches()
    step.compiled.evaluate(state.params, batch)
    plan = step.compiled.plan
    assert {row.kind for row in plan.collectives()} == {"all_gather", "all_reduce", "send"}
    assert not [note for note in plan.notes if "stays so" in note]


def make_step_of_stages(zero: int) -> ml.TrainStep:
    return ml.train_step(
        model(stages=True), ml.NumpyBackend(ml.Mesh(pipeline=2, data=2)), Momentum(),
        shapes=shapes(P("data")), zero=zero,
        pipeline=ml.PipelineOptions(schedule="1f1b", microbatch_size=4),
    )  # fmt: skip


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_what_is_frozen_lies_alike_in_both(zero: int) -> None:
    """It has no state of an optimiser: only stage 3 splits it."""
    frozen = model()
    frozen.freeze("up*")
    step = ml.train_step(
        frozen, ml.NumpyBackend(ml.Mesh(data=2)), Momentum(), shapes=shapes(P("data")), zero=zero
    )
    assert step.shardings["up.weight"].spec == (P("data", None) if zero == 3 else P(None, None))
    step.compiled.evaluate(step.init(seed=0).params, batches(1)[0])
    for name, lies in step.compiled.shardings.items():
        assert step.shardings[name] == lies, name
    assert not [note for note in step.compiled.plan.notes if "stays so" in note]


def test_full_for_an_axis_gathers_again() -> None:
    policy = {"data": "full"}
    step = make_step(zero=1, checkpointing="all", rematerialization_policy=policy)
    assert "backward" in count(step, "all_gather")


# ------------------------------------------------------------------ zero="auto"


def note_of(step: ml.TrainStep) -> str:
    (note,) = [note for note in step.plan.notes if "zero=" in note]
    return note


def test_it_takes_what_is_predicted_to_be_faster() -> None:
    step = make_step(zero="auto")
    assert note_of(step).startswith("zero='auto' takes 1; a step is predicted to take ")
    assert " with 0, " in note_of(step) and note_of(step).endswith(" with 1")
    assert count(step, "all_gather") == count(make_step(zero=1), "all_gather") != {}
    assert note_of(step) in step.explain()


def test_where_starting_costs_more_than_bytes_one_sum_is_faster() -> None:
    (level,) = SIMULATED.levels
    slow = replace(BESIDE, levels=(replace(level, latency=1.0, bandwidth=1e12),))
    step = make_step(slow, zero="auto")
    assert note_of(step).startswith("zero='auto' takes 0; ")
    assert count(step, "all_gather") == {}


@pytest.mark.filterwarnings("error:plan needs")
def test_what_does_not_fit_is_split_further() -> None:
    peaks = {
        zero: make_step(zero=zero, communication_overlap_strategy="none").memory().peak
        for zero in (0, 1, 3)
    }
    assert peaks[3] < peaks[1] < peaks[0]
    between = replace(BESIDE, memory_bytes=(peaks[1] + peaks[0]) // 2)
    options = {"zero": "auto", "communication_overlap_strategy": "none"}
    step = make_step(between, **options)
    assert note_of(step).startswith("zero='auto' takes 1; ")
    assert "; with 0 there is none: plan needs " in note_of(step)
    step = make_step(replace(BESIDE, memory_bytes=(peaks[3] + peaks[1]) // 2), **options)
    assert note_of(step).startswith("zero='auto' takes 3; ")
    assert all(f"; with {zero} there is none: plan needs " in note_of(step) for zero in (0, 1, 2))
    assert "backward" in count(step, "all_gather")


def test_where_nothing_fits_it_is_as_for_the_last_stage() -> None:
    little = replace(BESIDE, memory_bytes=1000)
    options = {"zero": "auto", "communication_overlap_strategy": "none"}
    with pytest.warns(UserWarning, match="plan needs"):
        step = make_step(little, **options)
    assert "backward" in count(step, "all_gather")
    with pytest.raises(ml.PlanError, match="needs"):
        make_step(little, strict_memory=True, **options)


def test_it_trains_as_on_one_device() -> None:
    losses, params = train(
        ml.train_step(
            model(), ml.NumpyBackend(ml.Mesh(data=4)), Momentum(), shapes=shapes(P("data")),
            zero="auto",
        )
    )  # fmt: skip
    expected = train(
        ml.train_step(model(), ml.NumpyBackend(), Momentum(), shapes=shapes(), zero="auto")
    )
    np.testing.assert_allclose(losses, expected[0], *TOLERANCE["float32"])
    for name, x in params.items():
        np.testing.assert_allclose(x, expected[1][name], *TOLERANCE["float32"])


def test_parts_that_train_by_themselves_need_a_stage() -> None:
    text = "zero='auto' is given with ml.optim.diloco, whose parts are timed apart; say a stage"
    with pytest.raises(ml.OptionError, match=text):
        ml.train_step(
            model(), ml.NumpyBackend(ml.Mesh(pod=2)),
            ml.optim.diloco(ml.optim.sgd(0.1), every=2, axis="pod"), shapes=shapes(P("pod")),
            zero="auto", zero_axis="pod",
        )  # fmt: skip


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sizes_that_do_not_divide_are_refused_where_that_is_asked_for(zero: int) -> None:
    uneven = ml.Model()
    uneven |= ml.Linear(3, bias=False, name="line")(input="x", output="y")
    uneven += ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    given = {
        "x": ml.TensorSpec((4, 5), "float32", P("data")),
        "t": ml.TensorSpec((4, 3), "float32", P("data")),
    }
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    with pytest.raises(ml.ShardingError, match=r"parameter 'line\.weight'"):
        ml.train_step(uneven, backend, Momentum(), shapes=given, zero=zero, uneven="error")
