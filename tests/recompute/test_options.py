"""What the options of recomputation do: the same numbers, less memory, and a policy that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
import pytest
from mithril.plan import Plan
from mithril.plan.policy import LayerPolicy, MemoryPolicy, TradeOff
from mithril.plan.serialize import plan_from_json, plan_to_json

from tests.profiles import quick
from tests.recompute.models import check_same, evaluate, looped, staged, train, unrolled

ONE, FOUR = ml.Mesh(data=1), ml.Mesh(data=2, tensor=2)
SPLIT = {f"*attention.{name}.weight": ml.P("tensor", None) for name in "qkv"}
STACKED = {f"*attention.{name}.weight": ml.P(None, "tensor", None) for name in "qkv"}


@pytest.mark.parametrize("make", [unrolled, looped])
def test_all_keeps_what_enters_each_block(make: Callable[[], ml.Model]) -> None:
    backend = ml.NumpyBackend(ONE)
    kept = evaluate(make(), backend)
    found = evaluate(make(), backend, checkpointing="all")
    check_same(found, kept)
    assert kept.compiled.plan.policy is None
    assert found.peak < 0.5 * kept.peak
    policy = found.compiled.plan.memory().policy
    assert policy.keeping == kept.peak
    assert policy.recomputed > 10 * policy.kept


@pytest.mark.slow
def test_with_stages_fewer_activations_are_in_flight() -> None:
    backend = ml.NumpyBackend(ml.Mesh(pipe=2))
    for schedule, share in (("gpipe", 0.5), ("1f1b", 0.7), ("zb-h1", 1.0)):
        kept = evaluate(staged(), backend, pipeline_schedule=schedule)
        found = evaluate(staged(), backend, pipeline_schedule=schedule, checkpointing="all")
        check_same(found, kept)
        assert found.peak < share * kept.peak, schedule


@pytest.mark.slow
def test_stages_may_rest_split() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipe=2))
    kept = evaluate(staged(), backend, zero=3)
    found = evaluate(staged(), backend, zero=3, checkpointing="all")
    check_same(found, kept)
    assert found.peak < 0.7 * kept.peak


@pytest.mark.parametrize("make", [unrolled, looped])
def test_accumulated_micro_batches_recompute(make: Callable[[], ml.Model]) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    kept = evaluate(make(), backend, accumulate=2)
    found = evaluate(make(), backend, accumulate=2, checkpointing="all")
    check_same(found, kept)
    assert found.peak < 0.8 * kept.peak


def annotated(make: Callable[[], ml.Model]) -> ml.Model:
    model = make()
    model.shard(STACKED if make is looped else SPLIT)
    return model


def count_again(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(row.kind, row.axes) for row in plan.collectives() if row.cause.is_again]


def test_a_policy_says_what_is_exchanged_again() -> None:
    backend = ml.NumpyBackend(FOUR)
    kept = evaluate(annotated(unrolled), backend)
    full = evaluate(annotated(unrolled), backend, rematerialization=True)
    minimal = evaluate(
        annotated(unrolled), backend, rematerialization=True,
        rematerialization_policy={"tensor": "minimal", "data_parallel": "full"},
    )  # fmt: skip
    check_same(full, kept)
    check_same(minimal, kept)
    assert count_again(full.compiled.plan) == [("all_reduce", ("tensor",))] * 4
    assert count_again(minimal.compiled.plan) == []
    assert full.compiled.plan.policy.kept < minimal.compiled.plan.policy.kept


def test_model_parallel_is_the_axis_of_the_model() -> None:
    backend = ml.NumpyBackend(FOUR)
    found = evaluate(
        annotated(looped), backend, checkpointing="all",
        rematerialization_policy={"model_parallel": "minimal"},
    )  # fmt: skip
    check_same(found, evaluate(annotated(looped), backend))
    assert count_again(found.compiled.plan) == []
    full = evaluate(annotated(looped), backend, checkpointing="all")
    assert count_again(full.compiled.plan) == [("all_reduce", ("tensor",))]


def test_zero_and_recomputation_go_together() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    for make in (unrolled, looped):
        kept = evaluate(make(), backend, zero=3)
        found = evaluate(make(), backend, zero=3, checkpointing="all")
        check_same(found, kept)
        assert found.peak < 0.6 * kept.peak


def test_patterns_say_which_layers() -> None:
    backend = ml.NumpyBackend(ONE)
    kept = evaluate(unrolled(), backend)
    some = evaluate(unrolled(), backend, checkpointing={"model_*": "all", "model_1": "none"})
    check_same(some, kept)
    rows = {layer.layer: layer.recomputed for layer in some.compiled.plan.policy.layers}
    assert all(rows[name] > 30_000 for name in ("model_0", "model_2", "model_3"))
    assert rows["model_1"] == rows["embed"] == 0


def test_patterns_reach_into_loops() -> None:
    backend = ml.NumpyBackend(ONE)
    kept = evaluate(looped(), backend)
    some = evaluate(looped(), backend, checkpointing={"*.mlp": "all"})
    everything = evaluate(looped(), backend, checkpointing="all")
    check_same(some, kept)
    assert everything.peak < some.peak < kept.peak


def test_other_names_mean_the_same() -> None:
    backend = ml.NumpyBackend(ONE)
    plans = [
        str(evaluate(unrolled(), backend, **options).compiled.plan.stages[0].program.graph)
        for options in (
            {"checkpointing": "all"},
            {"activation_checkpointing": "all"},
            {"rematerialization": True},
            {"checkpointing": "all", "rematerialization": True},
            {"checkpointing": "all", "recomputation_granularity": "layer"},
        )
    ]
    assert len(set(plans)) == 1


def test_none_keeps_everything() -> None:
    backend = ml.NumpyBackend(ONE)
    expected = str(evaluate(unrolled(), backend).compiled.plan)
    for options in ({"checkpointing": "none"}, {"rematerialization": False}):
        assert str(evaluate(unrolled(), backend, **options).compiled.plan) == expected


def test_a_forward_alone_keeps_nothing_anyway() -> None:
    shapes = {"input": (8, 8, 8)}
    compiled = ml.compile(
        unrolled(), ml.NumpyBackend(), shapes=shapes, inference=True, checkpointing="all"
    )
    assert compiled.plan.policy is None


# ------------------------------------------------------------------ functions and training


def loss(weights: Any, x: Any) -> Any:
    """A chain of layers as a loop."""

    def layer(x: Any, weight: Any) -> tuple[Any, None]:
        return mnp.tanh(mnp.matmul(x, weight)) * mnp.sin(x), None

    last, _ = ml.scan(layer, x, weights)
    return (last * last).mean()


def test_functions_recompute_inside_loops() -> None:
    backend = ml.NumpyBackend()
    rng = np.random.default_rng(0)
    weights = backend.array(rng.normal(size=(6, 16, 16)).astype(np.float32))
    x = backend.array(rng.normal(size=(64, 16)).astype(np.float32))
    kept, found = ml.jit(ml.grad(loss)), ml.jit(ml.grad(loss), checkpointing="all")
    np.testing.assert_array_equal(found(weights, x).numpy(), kept(weights, x).numpy())
    assert found.plan(weights, x).memory().peak < 0.7 * kept.plan(weights, x).memory().peak


def test_gradients_that_a_loop_takes_inside_recompute() -> None:
    backend = ml.NumpyBackend()
    rng = np.random.default_rng(0)
    weights = backend.array(rng.normal(size=(6, 16, 16)).astype(np.float32))
    batches = backend.array(rng.normal(size=(3, 64, 16)).astype(np.float32))

    def accumulate(weights: Any, batches: Any) -> Any:
        def add(total: Any, x: Any) -> tuple[Any, None]:
            return total + ml.grad(loss)(weights, x), None

        return ml.scan(add, weights * 0, batches)[0]

    kept, found = ml.jit(accumulate), ml.jit(accumulate, checkpointing="all")
    np.testing.assert_array_equal(found(weights, batches).numpy(), kept(weights, batches).numpy())
    peaks = [f.plan(weights, batches).memory().peak for f in (found, kept)]
    assert peaks[0] < 0.8 * peaks[1]


@pytest.mark.slow
def test_a_train_step_recomputes() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    kept, expected = train(unrolled(), backend, zero=1)
    found, losses = train(unrolled(), backend, zero=1, checkpointing="all")
    assert losses == expected
    assert found.plan.memory().peak < 0.7 * kept.plan.memory().peak


# ------------------------------------------------------------------ what the plan says of it


def test_the_policy_is_shown_and_saved() -> None:
    plan = evaluate(unrolled(), ml.NumpyBackend(ONE), checkpointing="all").compiled.plan
    again = " in 200 µs (layer is computed again from what enters it)"
    assert str(plan.policy) == (
        "checkpointing='all': keeps 10 KiB for the backward, computes 136 KiB again in 799 µs; "
        "keeping everything takes 169 KiB at most\n"
        "  embed: keeps 2 KiB\n"
        f"  model_0: keeps 2.01 KiB, computes 34 KiB again{again}\n"
        f"  model_1 to model_3 (3 layers, each): keeps 2 KiB, computes 34 KiB again{again}"
    )
    assert str(plan.policy) in str(plan.memory())
    assert plan_from_json(plan_to_json(plan)).policy == plan.policy


def test_explain_says_what_is_computed_again() -> None:
    compiled = evaluate(annotated(unrolled), ml.NumpyBackend(FOUR), checkpointing="all").compiled
    text = compiled.explain()
    assert str(compiled.plan.policy) in text
    assert "required  P('data', None, None) by model_0.attention.o.add, again" in text


def test_policies_know_their_neighbours_on_the_curve() -> None:
    curve = (TradeOff(100, 0.0), TradeOff(60, 0.1), TradeOff(40, 0.3))
    layer = LayerPolicy("a", kept=10, recomputed=20, offloaded=5, seconds=0.1, why="so")
    policy = MemoryPolicy(
        "checkpointing=0.6", (layer,), 100, 0.1, 70, 0.05, curve, "an integer program"
    )
    assert policy.find(dearer=True, peak=60) == curve[2]
    assert policy.find(dearer=False, peak=60) == curve[0]
    assert policy.find(dearer=True, peak=40) is None
    assert policy.gap == pytest.approx(0.05)
    assert str(policy).splitlines()[1:] == [
        "  budget 70 B; at least 50 ms by an integer program, gap 50 ms",
        "  a: keeps 10 B, computes 20 B again in 100 ms, moves 5 B to the host (so)",
    ]


# ------------------------------------------------------------------ other backends


@pytest.mark.parametrize("make", [unrolled, looped])
@pytest.mark.parametrize("opened", [ml.TorchBackend, ml.JaxBackend, ml.MLXBackend])
@quick(lambda opened, make: opened is ml.TorchBackend and make is unrolled)
def test_every_backend_computes_the_same(
    opened: Callable[..., Any], make: Callable[[], ml.Model]
) -> None:
    kept = evaluate(make(), opened(ONE))
    found = evaluate(make(), opened(ONE), checkpointing="all")
    for name, gradient in kept.gradients.items():
        # XLA fuses a loop's body otherwise when it computes more, and rounds otherwise.
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-5, atol=1e-5)
    if opened is not ml.JaxBackend:
        check_same(found, kept)
    assert found.peak < 0.7 * kept.peak
