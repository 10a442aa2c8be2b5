"""Parameters at rest in a pipeline: gathered once for all micro-batches, or by every run."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril.cli.gpt import Sizes
from mithril.ops.collective import AllGather, collective_of
from mithril.plan import Plan

from benchmarks.training_cases import Case, Ours
from tests.profiles import quick
from tests.tolerances import TOLERANCE

CASE = Case(Sizes(layers=4, width=32, heads=4, hidden=96, context=8, batch=16), 32, 2)
MESH = ml.Mesh(pipeline=2, data=2)
BACKENDS = {
    "numpy": lambda: ml.NumpyBackend(MESH),
    "torch": lambda: ml.TorchBackend(MESH, device="cpu", executor="lockstep"),
    "jax": lambda: ml.JaxBackend(MESH),
}
FULL = {"checkpointing": "all", "rematerialization_policy": {"data": "full"}}


def make(backend: ml.Backend, zero: int = 3, **options: Any) -> Ours:
    pipeline = ml.PipelineOptions(microbatch_size=2) if "pipeline" in backend.mesh.names else None
    return Ours(backend, CASE, zero, pipeline=pipeline, **options)


def count_gathers(plan: Plan) -> dict[str, int]:
    """Return how many gathers each program has, by its name."""
    return {
        stage.name: sum(
            isinstance(collective_of(node.op), AllGather) for node in stage.program.graph.nodes
        )
        for stage in plan.stages
    }


@quick(lambda name: name != "jax")
@pytest.mark.parametrize("name", BACKENDS)
def test_steps_that_gather_again_are_those_of_one_device(name: str) -> None:
    one, ours = Ours(ml.NumpyBackend(), CASE), make(BACKENDS[name](), **FULL)
    gathers = count_gathers(ours.run.plan)
    assert not any(count for stage, count in gathers.items() if "before" in stage)
    for number in range(2):
        assert gathers[f"stage {number} forward"] > 0
        assert gathers[f"stage {number} backward"] > 0
    found, expected = ([side.loss() for _ in range(3)] for side in (ours, one))
    np.testing.assert_allclose(found, expected, *TOLERANCE["float32"])
    parameters = ours.parameters()
    for key, values in one.parameters().items():
        np.testing.assert_allclose(parameters[key], values, *TOLERANCE["float32"], err_msg=key)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zb-h1"])
def test_every_schedule_gathers_again(schedule: str) -> None:
    pipeline = ml.PipelineOptions(microbatch_size=2, schedule=schedule)
    one = Ours(ml.NumpyBackend(), CASE)
    ours = Ours(BACKENDS["numpy"](), CASE, 3, pipeline=pipeline, **FULL)
    gathers = count_gathers(ours.run.plan)
    assert not any(count for stage, count in gathers.items() if "before" in stage)
    found, expected = ([side.loss() for _ in range(3)] for side in (ours, one))
    np.testing.assert_allclose(found, expected, *TOLERANCE["float32"])


@pytest.mark.slow
def test_gathering_again_changes_no_bit_and_takes_less_memory() -> None:
    kept, again = make(BACKENDS["numpy"](), checkpointing="all"), make(BACKENDS["numpy"](), **FULL)
    assert sum(count for name, count in count_gathers(kept.run.plan).items() if "before" in name)
    assert again.run.plan.memory().peak < kept.run.plan.memory().peak
    assert [again.loss() for _ in range(3)] == [kept.loss() for _ in range(3)]
    parameters = again.parameters()
    for key, values in kept.parameters().items():
        np.testing.assert_array_equal(parameters[key], values, err_msg=key)


def test_what_is_gathered_again_comes_right_before_its_use() -> None:
    plan = make(BACKENDS["numpy"](), **FULL).run.plan
    (graph,) = (s.program.graph for s in plan.stages if s.name == "stage 0 backward")
    places = {node: number for number, node in enumerate(graph.nodes)}
    uses = graph.uses()
    gathers = [n for n in graph.nodes if isinstance(n.op, AllGather)]
    first_uses = [min(places[user] for user, _ in uses[n.outputs[0]]) for n in gathers]
    blocks = {node.scope.split(".")[1] for node in graph.nodes if "block" in node.scope}
    assert len(blocks) == 2
    longest = max(first - places[n] for first, n in zip(first_uses, gathers, strict=True))
    assert longest < len(graph.nodes) / len(blocks), "a gather is held through another block"


@pytest.mark.slow
def test_a_budget_is_kept_to_by_gathering_again_where_that_is_needed() -> None:
    budget = make(BACKENDS["numpy"](), **FULL).run.plan.memory().peak
    plan = make(BACKENDS["numpy"](), checkpointing=f"{budget} B").run.plan
    assert plan.memory().peak <= budget
    assert any("gathered over 'data' is gathered again" in note for note in plan.notes)
    policy = plan.policy
    assert policy is not None
    assert policy.bound is not None
    assert 0 < policy.bound <= policy.seconds
    peaks = [point.peak for point in policy.curve]
    assert peaks == sorted(peaks, reverse=True)


@pytest.mark.slow
def test_a_budget_that_all_of_it_fits_into_gathers_once() -> None:
    kept = make(BACKENDS["numpy"]()).run.plan
    plan = make(BACKENDS["numpy"](), checkpointing=f"{kept.memory().peak} B").run.plan
    assert not any("again" in note for note in plan.notes)
    assert count_gathers(plan) == count_gathers(kept)


@pytest.mark.slow
def test_what_shall_be_kept_is_not_gathered_again() -> None:
    policy = {"rematerialization_policy": {"data": "minimal"}}
    least = make(BACKENDS["numpy"](), **FULL).run.plan.memory().peak
    with pytest.raises(ml.PlanError, match="is too little; the least possible is"):
        make(BACKENDS["numpy"](), checkpointing=f"{least} B", **policy)


def test_accumulated_micro_batches_gather_again() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    one = Ours(ml.NumpyBackend(), CASE)
    ours = Ours(backend, CASE, 3, accumulate=4, **FULL)
    assert not any(n for stage, n in count_gathers(ours.run.plan).items() if "before" in stage)
    found, expected = ([side.loss() for _ in range(3)] for side in (ours, one))
    np.testing.assert_allclose(found, expected, *TOLERANCE["float32"])


def test_parameters_at_rest_over_two_axes_are_whole_for_each_micro_batch() -> None:
    """The gathers over one axis and then over another one stay in this order."""
    mesh = ml.Mesh(data=2, replica=2)
    backend, rng = ml.NumpyBackend(mesh), np.random.default_rng(0)
    model = ml.Model(name="model")
    model |= ml.Linear(16, name="up")(input="x", output="h")
    model += ml.Tanh()(input="h", output="a")
    model += ml.Linear(8, name="down")(input="a", output="y")
    model += ml.MeanSquaredError()(input="y", target="t", output="loss")
    shapes = {"x": (16, 8), "t": (16, 8)}
    batch = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}

    def train(backend: ml.Backend, **options: Any) -> tuple[list[float], Plan]:
        step = ml.train_step(
            model, backend, ml.optim.adam(0.01), shapes=shapes, accumulate=4, **options
        )
        state, losses = step.init(seed=0), []
        for _ in range(3):
            state, metrics = step(state, batch)
            losses.append(float(metrics["loss"]))
        return losses, step.plan

    rests = {"*.weight": ml.P("data", "replica")}
    policy = {"data": "full", "replica": "full"}
    losses, plan = train(
        backend, at_rest=rests, checkpointing="all", rematerialization_policy=policy
    )
    assert not any(n for stage, n in count_gathers(plan).items() if "before" in stage)
    np.testing.assert_allclose(losses, train(ml.NumpyBackend())[0], *TOLERANCE["float32"])


def test_a_shard_that_is_cut_once_is_gathered_by_every_run() -> None:
    """Where a parameter is cut over `model` before it is gathered over `data`, the cut is kept."""

    def make_mlp() -> ml.Model:
        model = ml.Model()
        model |= ml.Linear(16, name="up")(input="x", output="h")
        model |= ml.Relu(name="act")(input="h", output="a")
        model += ml.Linear(16, name="down")(output="y")
        model.shard({"up.weight": ml.P("model")})
        return model

    def evaluate(backend: ml.Backend, **options: Any) -> dict[str, ml.Array]:
        compiled = ml.compile(make_mlp(), backend, shapes={"x": (64, 16)}, **options)
        x, seed = backend.randn(64, 16, seed=1), backend.randn(64, 16, seed=2)
        return compiled.evaluate(compiled.randomize_params(seed=0), {"x": x}, {"y": seed})[1]

    backend = ml.NumpyBackend(ml.Mesh(data=4, model=2))
    found = evaluate(backend, zero=3, accumulate=2, in_shardings={"x": ml.P("data")}, **FULL)
    for name, expected in evaluate(ml.NumpyBackend()).items():
        np.testing.assert_allclose(
            found[name].numpy(), expected.numpy(), *TOLERANCE["float32"], err_msg=name
        )
