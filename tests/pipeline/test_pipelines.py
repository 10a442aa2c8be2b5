"""Pipelines equal one device, whatever the schedule, the mesh and the model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import mithril as ml
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mithril import P
from mithril.plan import Plan
from mithril.plan.schedule import Work
from mithril.plan.serialize import plan_from_json, plan_to_json
from mithril.plan.timetable import Run

from tests.pipeline.models import (
    FEATURES,
    block,
    classifier,
    compared,
    followed,
    head,
    samples,
    stacked,
)
from tests.profiles import quick, scaled

SCHEDULES = ["gpipe", "1f1b", "interleaved", "zb-h1"]
CASES = [
    (schedule, stages, data, tensor)
    for schedule, stages, data, tensor in itertools.product(SCHEDULES, (1, 2, 4), (1, 2), (1, 2))
    if stages * data * tensor > 1
]
MEGATRON = {"*up.weight": P("tensor", None), "*down.weight": P(None, "tensor")}


@quick(lambda stages, data, tensor: stages > 1 and data * tensor == 2)
@pytest.mark.parametrize(("schedule", "stages", "data", "tensor"), CASES)
def test_every_schedule_on_every_mesh(schedule: str, stages: int, data: int, tensor: int) -> None:
    model = classifier(stages, microbatch_size=2)
    if tensor > 1:
        model.shard(MEGATRON)
    backend = ml.NumpyBackend(ml.Mesh(data=data, tensor=tensor, pipeline=stages))
    compiled = compared(
        model, backend, samples(8 * data), spec=P("data"), pipeline_schedule=schedule
    )
    check_order(compiled.plan)
    rows = compiled.plan.collectives()
    over_data = [row for row in rows if row.axes == ("data",) and row.phase == "backward"]
    assert all(row.times == 1 for row in over_data), "gradients are summed over replicas once"
    assert len(over_data) == (stages if data > 1 else 0)


@ml.layer
def CheckpointedBlock(x: Any) -> Any:  # noqa: N802
    """A block of which nothing but its input is kept for the backward."""

    def run(x: Any) -> Any:
        return x + ml.FeedForward(12, name="mlp")(ml.LayerNorm(name="norm")(x))

    return ml.checkpoint(run)(x)


def test_gradients_that_checkpoints_call_alike_go_each_to_their_stage() -> None:
    """Each of the blocks names the gradient of its input 'gradients.argument.0'."""
    model = ml.Model()
    model |= CheckpointedBlock(name="part0")(x="input", output="x1")
    model |= CheckpointedBlock(name="part1")(x="x1", output="x2")
    model |= CheckpointedBlock(name="part2")(x="x2", output="y")
    model |= head()(y="y", targets="targets", loss="loss")
    for stage in range(3):
        model.stage(f"part{stage}", stage)
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=3))
    options = ml.PipelineOptions(microbatch_size=2, axis="pipeline")
    compared(model, backend, samples(16), spec=P("data"), pipeline=options)


def check_order(plan: Plan) -> None:
    """Assert that the actions of each device are carried out in the order of the table."""
    table = plan.timetable
    assert table is not None and table.schedule is not None
    for row in table.schedule.rows:
        stages = {action.stage for action in row}
        done = [
            step.action
            for step in table.steps
            if isinstance(step, Run) and step.action and step.action.stage in stages
        ]
        order = list(dict.fromkeys(done))
        works = {Work.input_gradient, Work.weight_gradient}
        # A first stage has no gradient of its input to compute, so nothing runs for it.
        assert order == [a for a in row if a in order]
        assert all(a.work in works for a in row if a not in order)


@quick(lambda batch, data: data == 2 or batch == 7)
@pytest.mark.parametrize("batch", [5, 6, 7, 9, 10, 11, 13])
@pytest.mark.parametrize("data", [1, 2])
def test_a_ragged_last_microbatch(batch: int, data: int) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=data, pipeline=2))
    compared(classifier(2, microbatch_size=2), backend, samples(batch), spec=P("data"))


def test_dropout_masks_are_those_of_one_device() -> None:
    first = block()
    first += ml.Dropout(rate=0.5)
    model = ml.Model()
    model |= ml.Pipeline([first, followed(block(), head())], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    for mesh in (ml.Mesh(pipeline=2), ml.Mesh(data=2, pipeline=2)):
        compared(
            model,
            ml.NumpyBackend(mesh),
            samples(8),
            spec=P(mesh.names[0]) if mesh.size > 2 else None,
        )


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_stages_that_share_devices(schedule: str) -> None:
    model = classifier(4, microbatch_size=2)
    compiled = compared(
        model, ml.NumpyBackend(ml.Mesh(pipeline=2)), samples(8), pipeline_schedule=schedule
    )
    assert {s.devices for s in compiled.plan.stages} == {(0,), (1,)}
    check_order(compiled.plan)


def test_any_assignment_of_stages() -> None:
    model = classifier(4, microbatch_size=2, device_assignment=[2, 0, 0, 1])
    compiled = compared(model, ml.NumpyBackend(ml.Mesh(pipeline=3)), samples(8))
    where = {s.name.split()[1]: s.devices for s in compiled.plan.stages}
    assert where == {"0": (2,), "1": (0,), "2": (0,), "3": (1,)}


def test_parameters_of_two_stages_have_one_gradient() -> None:
    shared = ml.Linear(FEATURES, name="shared")
    model = ml.Model()
    model |= shared(input="input", output="h")
    model |= ml.Relu(name="middle")(input="h", output="r")
    model |= shared(input="r", output="y")
    model |= ml.Linear(3, name="last")(input="y", output="output")
    for pattern, stage in (("shared", 0), ("middle", 1), ("shared_1", 2), ("last", 2)):
        model.stage(pattern, stage)
    options = ml.PipelineOptions(microbatch_size=2)
    compiled = compared(
        model,
        ml.NumpyBackend(ml.Mesh(pipeline=3)),
        {"input": samples(8)["input"]},
        pipeline=options,
    )
    sent = {row.cause.value: row.times for row in compiled.plan.collectives() if row.kind == "send"}
    assert sent["shared.weight"] == sent["shared.bias"] == 1, "once a step, not per micro-batch"
    assert sum(n for name, n in sent.items() if "gradient" in name and n == 1) == 2


def test_a_connection_past_stages() -> None:
    model = ml.Model()
    model |= ml.Linear(FEATURES, name="first")(input="input", output="h")
    model |= ml.Linear(FEATURES, name="second")(input="h", output="g")
    model |= ml.Tanh(name="third")(input="g", output="t")
    model |= ml.Add(name="join")(inputs=["h", "t"], output="output")
    for stage, pattern in enumerate(("first", "second", "third")):
        model.stage(pattern, stage)
    compiled = compared(
        model,
        ml.NumpyBackend(ml.Mesh(pipeline=3)),
        {"input": samples(6)["input"]},
        pipeline=ml.PipelineOptions(microbatch_size=1, schedule="1f1b"),
        differentiable=("input",),
    )
    assert compiled.get_partition_map()["layers"]["join"]["devices"] == [2]


def test_stages_of_other_shapes_and_shardings() -> None:
    wide = ml.Model()
    wide |= ml.Linear(24, sharding={"weight": P("tensor", None)})(input="x", output="h")
    wide += ml.Gelu()
    narrow = ml.Model()
    narrow |= ml.Linear(6, sharding={"weight": P(None, "tensor")})(input="h", output="y")
    third = ml.Linear(3)
    model = ml.Model()
    model |= ml.Pipeline([wide, narrow, third], microbatch_size=2)(input="input", output="output")
    backend = ml.NumpyBackend(ml.Mesh(tensor=2, pipeline=3))
    compiled = compared(model, backend, {"input": samples(6)["input"]})
    assert any(r.axes == ("tensor",) for r in compiled.plan.collectives())


@pytest.mark.slow
def test_parameters_at_rest_inside_stages() -> None:
    model = classifier(2, microbatch_size=2)
    model.at_rest({"*weight": P("data")})
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    compiled = compared(model, backend, samples(8), spec=P("data"))
    kinds = {(row.kind, row.times) for row in compiled.plan.collectives() if row.axes == ("data",)}
    assert ("reduce_scatter", 1) in kinds, "gradients are scattered once, after the micro-batches"


def test_loops_inside_stages() -> None:
    def deep() -> ml.Model:
        model = ml.Model()
        model |= ml.Repeat(block(), 3)(input="x", output="y")
        return model

    model = ml.Model()
    model |= ml.Pipeline([deep(), followed(deep(), head())], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    for mesh in (ml.Mesh(pipeline=2), ml.Mesh(data=2, pipeline=2)):
        spec = P("data") if "data" in mesh.names else None
        compared(model, ml.NumpyBackend(mesh), samples(8), spec=spec)


def test_layers_around_a_pipeline_join_its_ends() -> None:
    model = ml.Model()
    model |= ml.Linear(FEATURES, name="before")(input="input", output="h")
    model |= ml.Pipeline([block(), block()], microbatch_size=2)(input="h", output="y")
    model |= head()(y="y", targets="targets", loss="loss")
    compiled = compared(
        model, ml.NumpyBackend(ml.Mesh(data=2, pipeline=2)), samples(8), spec=P("data")
    )
    layers = compiled.get_partition_map()["layers"]
    assert layers["before"]["devices"] == [0, 2]
    assert layers["model_0.cross_entropy_0"]["devices"] == [1, 3]


def test_a_layer_with_losses_besides_feeds_its_output_alone() -> None:
    pipeline = ml.Pipeline([ml.MoE(4, 12, name="moe"), ml.Linear(FEATURES), ml.MeanSquaredError()])
    assert pipeline.snapshot().input_ports == ("input", "target")
    model = ml.Model()
    model |= pipeline(input="input", target="target", output="loss")
    x = samples(8)["input"].reshape(2, 4, FEATURES)
    compared(model, ml.NumpyBackend(ml.Mesh(pipeline=3)), {"input": x, "target": x[::-1]})


def test_the_last_rule_that_matches_wins() -> None:
    def where(*rules: tuple[str, Any]) -> dict[str, list[int]]:
        model = ml.Model()
        model |= ml.Repeat(followed_twice(), 4, name="loop")(input="x", output="h")
        model |= followed_twice(name="pair")(x="h", y="z")
        model |= ml.Linear(FEATURES, name="last")(input="z", output="y")
        for pattern, stage in (*rules, ("last", 1)):
            model.stage(pattern, stage)
        backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
        compiled = ml.compile(model, backend, shapes={"x": (4, FEATURES)}, inference=True)
        layers = compiled.get_partition_map()["layers"]
        return {name: layers[name]["devices"] for name in ("loop.a", "pair.a", "pair.b")}

    cut, pair = ("loop", [0, 1]), ("pair", 1)
    assert where(cut, pair) == {"loop.a": [0, 1], "pair.a": [1], "pair.b": [1]}
    assert where(cut, ("loop", 0), pair)["loop.a"] == [0]
    assert where(("loop", 0), cut, pair)["loop.a"] == [0, 1]
    assert where(("loop", [0, 1, 2, 3]), cut, pair)["loop.a"] == [0, 1]
    first = ("loop", 0), ("pair", 0)
    assert where(*first, ("pair.b", 1))["pair.b"] == [1]
    assert where(*first, ("pair.b", 1), ("pair", 0))["pair.b"] == [0]


def followed_twice(name: str | None = None) -> ml.Model:
    model = ml.Model(name=name)
    model |= ml.Linear(FEATURES, name="a")(input="x", output="m")
    model |= ml.Linear(FEATURES, name="b")(input="m", output="y")
    return model


def test_a_batch_is_split_when_data_parallel_is_asked_for() -> None:
    options = {"microbatch_size": 2, "data_parallel": True, "data_parallel_devices": 2}
    backend = ml.NumpyBackend((2, 4))
    compiled = compared(classifier(4, **options), backend, samples(16))
    assert compiled.plan.only_stage is None and compiled.plan.timetable.schedule is not None
    assert compiled.plan.timetable.schedule.microbatches == 4
    forward = [
        row for row in compiled.plan.collectives() if row.kind == "send" and row.phase == "forward"
    ]
    assert {row.bytes for row in forward if row.times == 4} == {2 * FEATURES * 4}


def test_without_microbatches_stages_run_once() -> None:
    compiled = compared(classifier(2), ml.NumpyBackend(ml.Mesh(pipeline=2)), samples(6))
    assert compiled.plan.only_stage is None and compiled.plan.timetable.schedule is None


def test_inference_runs_forwards_only() -> None:
    model = classifier(3, microbatch_size=2)
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(pipeline=3)), inference=True)
    compiled.evaluate(compiled.randomize_params(), samples(8))
    assert compiled.plan.only_stage is None and compiled.plan.timetable.schedule is not None
    works = {action.work for action in compiled.plan.timetable.schedule.actions}
    assert works == {Work.forward}


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    lines = ["0F0,0F1,0B1,0B0", "1F0,1F1,1B1,1B0"]
    for table in (lines, tuple(lines), str(tmp_path / "mine.csv")):
        (tmp_path / "mine.csv").write_text("\n".join(lines))
        compiled = compared(
            classifier(2, microbatch_size=4),
            ml.NumpyBackend(ml.Mesh(pipeline=2)),
            samples(8),
            pipeline_schedule=table,
        )
        check_order(compiled.plan)


@settings(max_examples=scaled(40))
@given(
    schedule=st.sampled_from(["gpipe", "1f1b", "zb-h1"]),
    mesh=st.sampled_from(
        [
            ml.Mesh(pipeline=2),
            ml.Mesh(pipeline=3),
            ml.Mesh(data=2, pipeline=2),
            ml.Mesh(data=3, pipeline=2),
        ]
    ),
    batch=st.integers(6, 14),
    size=st.integers(1, 3),
    is_split=st.booleans(),
)
def test_random_pipelines(
    schedule: str, mesh: ml.Mesh, batch: int, size: int, is_split: bool
) -> None:
    stages = mesh.sizes["pipeline"]
    spec = P("data") if is_split and "data" in mesh.names else None
    replicas = mesh.sizes.get("data", 1) if spec else 1
    each = -(batch // -replicas)
    count = -(each // -size)
    assume(size <= each and (batch % (replicas * size) == 0 or batch > replicas * count))
    compared(
        classifier(stages, microbatch_size=size),
        ml.NumpyBackend(mesh),
        samples(batch),
        spec=spec,
        pipeline_schedule=schedule,
    )


def test_plans_of_stages_are_plain_data() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    compiled = compared(classifier(2, microbatch_size=2), backend, samples(8), spec=P("data"))
    again = plan_from_json(plan_to_json(compiled.plan))
    assert str(again) == str(compiled.plan)
    assert again.list_issued() == compiled.plan.list_issued()
    assert plan_to_json(again) == plan_to_json(compiled.plan)


@pytest.mark.parametrize("mesh", [ml.Mesh(pipeline=2), ml.Mesh(data=2, pipeline=2)], ids=str)
@pytest.mark.parametrize("size", [None, 2])
def test_a_loop_over_several_stages(mesh: ml.Mesh, size: int | None) -> None:
    model = stacked()
    backend = ml.NumpyBackend(mesh)
    spec = P("data") if "data" in mesh.names else None
    options = {"pipeline": ml.PipelineOptions(microbatch_size=size)}
    compiled = compared(model, backend, samples(8), spec=spec, **options)
    params = compiled.randomize_params()
    weight = params["deep.feed_forward_0.up.weight"]
    assert weight.sharding.dims[0] == ("pipeline",)
    assert {s.data.shape[0] for s in weight.addressable_shards} == {2}
    stacks = [r for r in compiled.plan.collectives() if r.cause.consumer.startswith("part ")]
    assert not stacks, "every stage holds its part of the stack"
    layers = compiled.get_partition_map()["layers"]
    assert layers["deep.part_1"]["devices"] == [d for d in range(mesh.size) if d % 2]


def test_a_loop_over_stages_that_share_devices() -> None:
    model = ml.Model()
    model |= ml.Repeat(block(), 6, name="deep")(input="input", output="output")
    model.stage("deep", (0, 1, 2))
    options = {"pipeline": ml.PipelineOptions(microbatch_size=2)}
    for mesh in (ml.Mesh(pipeline=3), ml.Mesh(pipeline=1, data=2)):
        compared(model, ml.NumpyBackend(mesh), {"input": samples(8)["input"]}, **options)


def test_a_loop_in_another_precision_over_stages() -> None:
    model = ml.Model()
    model |= ml.Repeat(ml.Linear(FEATURES), 4, name="deep")(input="input", output="output")
    model.stage("deep", (0, 1))
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2), compute_dtype="bfloat16")
    alone = ml.NumpyBackend(compute_dtype="bfloat16")
    given = {"input": samples(8)["input"]}
    found = {}
    for on in (backend, alone):
        compiled = ml.compile(model, on)
        params = compiled.randomize_params()
        outputs, slopes = compiled.evaluate(params, given, {"output": np.ones((8, FEATURES), "f")})
        found[on.mesh.size] = {**outputs, **slopes}
    for name, value in found[1].items():
        np.testing.assert_allclose(
            found[2][name].numpy().astype("f"), value.numpy().astype("f"), rtol=2e-2, atol=2e-2
        )
