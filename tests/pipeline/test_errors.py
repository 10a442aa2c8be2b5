"""Mistakes about stages and devices are answered in the user's words."""

from __future__ import annotations

import mithril as ml
import pytest
from mithril import P

from tests.pipeline.mistakes import PIPE, Case, answered, around, run, staged
from tests.pipeline.models import FEATURES, block, classifier


def normed() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(FEATURES)(input="x", output="h")
    model |= ml.Softmax(axis=0)(input="h", output="y")
    return model


def _mixing() -> ml.Model:
    model = ml.Model()
    model |= ml.Add()(inputs=["y", "input"], output="sum")
    return model


def _split() -> ml.Model:
    model = ml.Model()
    first = ml.Linear(FEATURES, sharding={"weight": P("pipeline", None)})
    model |= ml.Pipeline([first, ml.Relu()], microbatch_size=2)(input="input", output="output")
    return model


def _misnamed() -> None:
    model = ml.Model()
    model += ml.Linear(4)
    model.stage("block_*", 0)
    ml.compile(model, ml.NumpyBackend(PIPE))


def _added_to(pipeline: ml.Pipeline) -> None:
    pipeline += ml.Relu()


CASES: dict[str, Case] = {
    "stage without input": (
        lambda: ml.Pipeline([ml.Linear(4), ml.Model()]),
        ml.OptionError,
        "stage 1 of the pipeline has no layers; add some to it first",
    ),
    "no stage": (
        lambda: ml.Pipeline([]),
        ml.OptionError,
        "Pipeline option stages is []; give a list of models or layers, one for each stage",
    ),
    "no model": (
        lambda: ml.Pipeline([ml.Linear]),
        ml.OptionError,
        "stage 0 of the pipeline is <class",
    ),
    "more stages than devices": (
        lambda: run(classifier(3, microbatch_size=2), PIPE),
        ml.PlanError,
        "has 3 stages; mesh axis 'pipeline' has 2 devices; use as many stages as devices or a "
        "multiple, or say device_assignment",
    ),
    "one stage for two devices": (
        lambda: run(staged(0, 0), PIPE),
        ml.PlanError,
        "has 1 stage; mesh axis 'pipeline' has 2 devices; use as many stages as devices or a "
        "multiple, giving layers a number each with model.stage",
    ),
    "no axis": (
        lambda: run(classifier(3, microbatch_size=2), ml.Mesh(data=2, tensor=2)),
        ml.PlanError,
        "has 3 stages; Mesh(data=2, tensor=2) has no axis 'pipeline', and none of that many devices",
    ),
    "device out of range": (
        lambda: run(classifier(2, device_assignment=[0, 2]), PIPE),
        ml.MeshError,
        "is assigned to index 2 of mesh axis 'pipeline', which has 2; use 0 to 1",
    ),
    "assignment of another length": (
        lambda: classifier(2, device_assignment=[0]),
        ml.OptionError,
        "Pipeline has 2 stages and device_assignment [0] names 1 devices; give one for each stage",
    ),
    "assignment of words": (
        lambda: classifier(2, device_assignment=["gpu", 1]),
        ml.OptionError,
        "device_assignment is ['gpu', 1]; give an index of 0 or more for each stage",
    ),
    "two inputs of one name": (
        lambda: ml.Pipeline([block(), _mixing()]),
        ml.OptionError,
        "stage_1 of the pipeline has an input 'input', which is also what the pipeline calls the "
        "first input of its first stage, 'x'; rename one of them",
    ),
    "stages that wait for each other": (
        lambda: run(staged(0, 1, 0), PIPE),
        ml.PlanError,
        "stages 0 and 1 of the pipeline wait for each other; 'layer_2'",
    ),
    "a gap in the stages": (
        lambda: run(staged(0, 2), PIPE),
        ml.OptionError,
        "names 3 stages and gives stage 1 no layer; number the stages from 0 without gaps",
    ),
    "a stage of nothing": (
        _misnamed,
        ml.OptionError,
        "pattern 'block_*' of model.stage",
    ),
    "a stage of no number": (
        lambda: ml.Model().stage("a", -1),
        ml.OptionError,
        "model.stage got 'a' and -1",
    ),
    "a layer over the whole batch": (
        lambda: run(around(normed()), PIPE),
        ml.PlanError,
        "pipeline cannot cut the batch into micro-batches; 'pipeline_0.stage_1.softmax_0",
    ),
    "options of no kind": (
        lambda: run(classifier(2), PIPE, pipeline="1f1b"),
        ml.OptionError,
        "pipeline='1f1b' is no PipelineOptions; write ml.PipelineOptions(",
    ),
    "an axis that is not there": (
        lambda: run(classifier(2), PIPE, pipeline=ml.PipelineOptions(axis="pipe")),
        ml.MeshError,
        "has no axis 'pipe'",
    ),
    "an axis of no name": (
        lambda: ml.PipelineOptions(axis=1),
        ml.OptionError,
        "axis=1 is no name of a mesh axis",
    ),
    "another mesh": (
        lambda: run(classifier(2, device_mesh=(2, 2), device_mesh_partition=(False, True)), PIPE),
        ml.MeshError,
        "is for device_mesh=(2, 2), and the backend has Mesh(pipeline=2); give both the same shape",
    ),
    "partition of two dimensions": (
        lambda: classifier(2, device_mesh=(2, 2), device_mesh_partition=(True, True)),
        ml.OptionError,
        "device_mesh_partition is (True, True); a pipeline goes along one dimension: give True once",
    ),
    "partition of words": (
        lambda: classifier(2, device_mesh=(2, 2), device_mesh_partition=(0, 1)),
        ml.OptionError,
        "device_mesh_partition is (0, 1); give True or False for each dimension of device_mesh",
    ),
    "partition of nothing": (
        lambda: classifier(2, device_mesh_partition=(True,)),
        ml.OptionError,
        "device_mesh_partition=(True,) has no effect without device_mesh; give that, too, or stage_to",
    ),
    "two dimensions": (
        lambda: run(
            classifier(2, device_mesh=(2,), device_mesh_partition=(True,), stage_to_mesh_dim=1),
            PIPE,
        ),
        ml.MeshError,
        "goes along mesh dimension 1 by stage_to_mesh_dim and 0 by device_mesh_partition",
    ),
    "a dimension that is not there": (
        lambda: run(classifier(2, stage_to_mesh_dim=3), PIPE),
        ml.MeshError,
        "goes along mesh dimension 3; Mesh(pipeline=2) has 1 dimensions, counted from 0",
    ),
    "no dimension": (
        lambda: classifier(2, stage_to_mesh_dim="pipeline"),
        ml.OptionError,
        "stage_to_mesh_dim is 'pipeline'; give a mesh dimension",
    ),
    "replicas of another number": (
        lambda: run(
            classifier(2, data_parallel=True, data_parallel_devices=4), ml.Mesh(data=2, pipeline=2)
        ),
        ml.PlanError,
        "has data_parallel_devices=4; Mesh(data=2, pipeline=2) leaves 2 devices for each stage",
    ),
    "replicas without a word": (
        lambda: classifier(2, data_parallel_devices=2),
        ml.OptionError,
        "data_parallel_devices=2 has no effect without data_parallel=True",
    ),
    "replicas of no kind": (
        lambda: classifier(2, data_parallel="yes"),
        ml.OptionError,
        "Pipeline option data_parallel is 'yes'; give True or False",
    ),
    "two pipelines": (
        lambda: run(around(classifier(2)), PIPE),
        ml.PlanError,
        "model has 2 pipelines; give it one, with all stages",
    ),
    "a placed layer in a pipeline": (
        lambda: run(around(ml.Linear(FEATURES, device_id=1)), PIPE),
        ml.PlanError,
        "is placed on device 1, and the model is a pipeline, which places its stages",
    ),
    "a closed pipeline": (
        lambda: _added_to(ml.Pipeline([ml.Relu()])),
        ml.OptionError,
        "Pipeline takes no further layers",
    ),
    "replicas without devices": (
        lambda: run(classifier(2, data_parallel=True), PIPE),
        ml.PlanError,
        "has data_parallel=True, and its stages take all of Mesh(pipeline=2)",
    ),
    "placed inside a loop": (
        lambda: run(around(ml.Repeat(ml.Linear(FEATURES, device_id=1), 2)), PIPE),
        ml.PlanError,
        "repeats a block with device_id or stages, which cannot be somewhere else in every",
    ),
    "a stage split over the stages": (
        lambda: run(_split(), PIPE),
        ml.ShardingError,
        "parameter 'pipeline_0.stage_0.weight' cannot be split over mesh axis 'pipeline'; its layer "
        "runs on stage 0, which is one place along it; leave out the axis, or what puts it there",
    ),
    "an option that is misspelt": (
        lambda: ml.Pipeline([ml.Relu()], micro_batch_size=2),
        ml.OptionError,
        "Pipeline has no option 'micro_batch_size'",
    ),
    "a device that is no number": (
        lambda: ml.Linear(4, device_id="cuda"),
        ml.OptionError,
        "Linear option device_id is 'cuda'; give the flat index of a device, from 0",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake_is_answered(case: str) -> None:
    answered(CASES[case])


def test_a_pipeline_takes_layers_neither_way() -> None:
    pipeline = ml.Pipeline([ml.Relu()])
    with pytest.raises(ml.OptionError, match="Pipeline takes no further layers"):
        pipeline |= ml.Relu()(input="a", output="b")


def test_spec_of_another_mesh() -> None:
    backend = ml.NumpyBackend(PIPE)
    other = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    compiled = ml.compile(
        classifier(2), other, shapes={"input": (4, 8), "targets": ml.TensorSpec((4,), "int32")}
    )
    (first, *_) = compiled.randomize_params().values()
    with pytest.raises(ml.MeshError, match="sharding of tensor is on Mesh"):
        backend.zeros(4, 8, sharding=first.sharding)
    assert other.zeros(4, 8, sharding=ml.Sharding.of(first.sharding.mesh, P(), 2)).shape == (4, 8)


def test_only_loops_are_cut_over_stages() -> None:
    model = staged(0, 1)
    model.stage("layer_1", [0, 1])
    with pytest.raises(ml.OptionError, match=r"gives 'layer_1' the stages \[0, 1\]; only a Repeat"):
        ml.compile(model, ml.NumpyBackend(PIPE))
    deep = ml.Model()
    deep += ml.Repeat(block(), 3)
    deep.stage("repeat_0", [0, 1])
    with pytest.raises(
        ml.OptionError, match="cuts 'repeat_0' into 2 parts, and it repeats 3 times"
    ):
        ml.compile(deep, ml.NumpyBackend(PIPE))


def test_a_backend_without_parts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from mithril.engine.numpy_engine import NumpyEngine

    monkeypatch.delattr(NumpyEngine, "part")
    with pytest.raises(ml.BackendError, match="backend 'numpy' runs one program on all of its dev"):
        run(classifier(2), PIPE)
