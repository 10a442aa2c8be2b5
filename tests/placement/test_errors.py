"""Mistakes about stages and devices are answered in the user's words."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import mithril as ml
import pytest
from mithril import P

from tests.placement.models import FEATURES, block, classifier, samples


def run(model: ml.Model, mesh: ml.Mesh, batch: int = 8, **options: object) -> None:
    compiled = ml.compile(model, ml.NumpyBackend(mesh), **options)
    names = set(compiled.input_names)
    inputs = {name: x for name, x in samples(batch).items() if name in names}
    outputs = compiled.evaluate(compiled.randomize_params(), inputs)
    gradients = {name: x for name, x in outputs.items() if x.dtype.is_float}
    compiled.evaluate(compiled.randomize_params(), inputs, gradients)


def staged(*stages: int) -> ml.Model:
    model = ml.Model()
    for number, stage in enumerate(stages):
        model += ml.Linear(FEATURES, name=f"layer_{number}")
        model.stage(f"layer_{number}", stage)
    return model


def normed() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(FEATURES)(input="x", output="h")
    model |= ml.Softmax(axis=0)(input="h", output="y")
    return model


PIPE = ml.Mesh(pipeline=2)


def _around(inner: ml.Model | ml.Layer) -> ml.Model:
    model = ml.Model()
    if isinstance(inner, ml.Model) and "targets" in inner.freeze().input_ports:
        model |= ml.Pipeline([block(), block()])(input="input", output="h")
        model |= inner(input="h", targets="targets", loss="loss")
        return model
    model |= ml.Pipeline([block(), inner], microbatch_size=2)(input="input", output="output")
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


def _wired() -> None:
    compiled = ml.compile(classifier(2, microbatch_size=2), ml.NumpyBackend(PIPE))
    shapes = {"input": (8, FEATURES), "targets": ml.TensorSpec((8,), "int32")}
    compiled.wiring(shapes, gradients=False)


TABLE = ["0F0,0F1,0B0,0B1", "1F0,1F1,1B0"]
CASES: dict[str, tuple[Callable[[], object], type[ml.MithrilError], str]] = {
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
        "give a Model or a layer, such as ml.Linear(dimension=10)",
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
    "micro-batch larger than the batch": (
        lambda: run(classifier(2, microbatch_size=9), PIPE),
        ml.PlanError,
        "micro-batch of 9 samples is larger than the batch of 8; use at most 8",
    ),
    "micro-batch larger than that of a replica": (
        lambda: run(
            classifier(2, microbatch_size=5, data_parallel=True), ml.Mesh(data=2, pipeline=2)
        ),
        ml.PlanError,
        "micro-batch of 5 samples is larger than the batch of 8, 4 on each of 2 replicas; use at "
        "most 4",
    ),
    "ragged and refused": (
        lambda: run(classifier(2, microbatch_size=3), PIPE, uneven="error"),
        ml.PlanError,
        "batch of 8 does not divide into micro-batches of 3 samples; use one of 1, 2, 4, 8, "
        'or allow padding with uneven="pad"',
    ),
    "empty micro-batches": (
        lambda: run(
            classifier(2, microbatch_size=1, data_parallel=True), ml.Mesh(data=2, pipeline=2), 7
        ),
        ml.PlanError,
        "batch of 7, 4 on each of 2 replicas does not divide into micro-batches of 1 samples; use "
        "one of 2, 3, 4",
    ),
    "stages that are not dealt out in turn": (
        lambda: run(
            classifier(3, device_assignment=[0, 1, 0], microbatch_size=2),
            PIPE,
            pipeline_schedule="interleaved",
        ),
        ml.PlanError,
        "schedule 'interleaved' deals stages out to the devices in turn, each the same number; the "
        "3 stages are on [0, 1, 0]; use another schedule, or leave out device_assignment",
    ),
    "two inputs of one name": (
        lambda: ml.Pipeline([block(), _mixing()]),
        ml.OptionError,
        "stage_1 of the pipeline has an input 'input', which is also what the pipeline calls the "
        "first input of its first stage, 'x'; rename one of them",
    ),
    "no number of samples": (
        lambda: classifier(2, microbatch_size=0),
        ml.OptionError,
        "Pipeline option microbatch_size is 0; give a positive integer",
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
    "unknown schedule": (
        lambda: run(classifier(2, microbatch_size=2), PIPE, pipeline_schedule="1f2b"),
        ml.PlanError,
        "pipeline schedule '1f2b' does not exist; did you mean '1f1b'?",
    ),
    "no schedule": (
        lambda: run(classifier(2), PIPE, pipeline_schedule=[]),
        ml.OptionError,
        "pipeline_schedule=[] is no pipeline schedule; give a name, such as '1f1b'",
    ),
    "a table without a backward": (
        lambda: run(classifier(2, microbatch_size=4), PIPE, pipeline_schedule=TABLE),
        ml.PlanError,
        "schedule 'table' lacks 1B1; every stage needs a forward and a backward",
    ),
    "a table of other numbers": (
        lambda: run(classifier(2, microbatch_size=8), PIPE, pipeline_schedule=TABLE),
        ml.PlanError,
        "schedule 'table' has 0F1; there are 2 stages and 1 micro-batches",
    ),
    "a table that never ends": (
        lambda: run(
            classifier(2, microbatch_size=8),
            PIPE,
            pipeline_schedule=["0B0,0F0", "1F0,1B0"],
        ),
        ml.PlanError,
        "schedule 'table' never gets to 0B0 on device 0; it needs 0F0",
    ),
    "a table that moves stages": (
        lambda: run(
            classifier(2, microbatch_size=8, device_assignment=[0, 1]),
            PIPE,
            pipeline_schedule=["0F0,1F0,1B0,0B0"],
        ),
        ml.PlanError,
        "has 1F0 in the row of stage 0; the stages are on devices 1 and 0 of the pipeline",
    ),
    "a file that is not there": (
        lambda: run(classifier(2), PIPE, pipeline_schedule="nowhere.csv"),
        ml.OptionError,
        "schedule file 'nowhere.csv' cannot be read; No such file or directory",
    ),
    "too many activations": (
        lambda: run(
            classifier(2, microbatch_size=2),
            PIPE,
            pipeline=ml.PipelineOptions(schedule="gpipe", most_held=2),
        ),
        ml.PlanError,
        "holds activations of 3 micro-batches on device 0 at 0F2; at most 2 may be held",
    ),
    "interleaved without enough micro-batches": (
        lambda: run(classifier(4, microbatch_size=4), PIPE, 12, pipeline_schedule="interleaved"),
        ml.PlanError,
        "schedule 'interleaved' on 2 devices needs a multiple of 2 micro-batches, not 3; use a "
        "microbatch_size of 2 or 3 or 6",
    ),
    "a layer over the whole batch": (
        lambda: run(_around(normed()), PIPE),
        ml.PlanError,
        "pipeline cannot cut the batch into micro-batches; 'pipeline_0.stage_1.softmax_0",
    ),
    "two forms of a schedule": (
        lambda: run(
            classifier(2),
            PIPE,
            pipeline=ml.PipelineOptions(schedule="gpipe"),
            pipeline_schedule="1f1b",
        ),
        ml.OptionError,
        "pipeline_schedule='1f1b' is given together with pipeline=PipelineOptions(",
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
    "a batch that is no input": (
        lambda: run(
            staged(0, 1), PIPE, pipeline=ml.PipelineOptions(batch="inptu", microbatch_size=2)
        ),
        ml.GraphError,
        "PipelineOptions(batch='inptu') names no input of the model; did you mean 'input'?",
    ),
    "a batch of no name": (
        lambda: ml.PipelineOptions(batch=0),
        ml.OptionError,
        "batch=0 is no name of an input; give one",
    ),
    "an axis of no name": (
        lambda: ml.PipelineOptions(axis=1),
        ml.OptionError,
        "axis=1 is no name of a mesh axis",
    ),
    "no samples": (
        lambda: ml.PipelineOptions(microbatch_size=-1),
        ml.OptionError,
        "microbatch_size=-1 is no number of samples above 0",
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
        "device_mesh_partition=(True,) has no effect without device_mesh",
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
        lambda: run(_around(classifier(2)), PIPE),
        ml.PlanError,
        "model has 2 pipelines; give it one, with all stages",
    ),
    "a placed layer in a pipeline": (
        lambda: run(_around(ml.Linear(FEATURES, device_id=1)), PIPE),
        ml.PlanError,
        "is placed on device 1, and the model is a pipeline, which places its stages",
    ),
    "a closed pipeline": (
        lambda: _added_to(ml.Pipeline([ml.Relu()])),
        ml.OptionError,
        "Pipeline takes no further layers",
    ),
    "a model of several programs as one function": (
        _wired,
        ml.BackendError,
        "programs on parts of the mesh and is no single function of backend 'numpy'",
    ),
    "a schedule of no stages": (
        lambda: ml.compile(ml.Relu(), ml.NumpyBackend(PIPE), pipeline_schedule="1f1b"),
        ml.OptionError,
        "has no effect on a model without stages; use Pipeline or model.stage",
    ),
    "a schedule of nothing": (
        lambda: run(classifier(2), PIPE, pipeline_schedule="1f1b"),
        ml.OptionError,
        "pipeline option schedule='1f1b' has no effect without micro-batches; give microbatch_size",
    ),
    "a batch that is not cut": (
        lambda: run(classifier(2), PIPE, pipeline=ml.PipelineOptions(batch="input")),
        ml.OptionError,
        "pipeline option batch='input' has no effect without micro-batches",
    ),
    "a device in two rows": (
        lambda: run(
            classifier(2, microbatch_size=8, device_assignment=[1, 1]),
            PIPE,
            pipeline_schedule=["0F0,0B0", "1F0,1B0"],
        ),
        ml.PlanError,
        "has stages 0 and 1 in two rows, and both are on device 1 of the pipeline; write one line",
    ),
    "replicas without devices": (
        lambda: run(classifier(2, data_parallel=True), PIPE),
        ml.PlanError,
        "has data_parallel=True, and its stages take all of Mesh(pipeline=2)",
    ),
    "placed inside a loop": (
        lambda: run(_around(ml.Repeat(ml.Linear(FEATURES, device_id=1), 2)), PIPE),
        ml.PlanError,
        "repeats a block with device_id or stages, which cannot be somewhere else in every",
    ),
    "an axis of time": (
        lambda: run(classifier(2), ml.Mesh({"micro-batch": 2, "pipeline": 2})),
        ml.MeshError,
        "mesh axis 'micro-batch' has the name of the axis along which a pipeline cuts a batch",
    ),
    "a stage split over the stages": (
        lambda: run(_split(), PIPE),
        ml.ShardingError,
        "parameter 'pipeline_0.stage_0.weight' cannot be split over mesh axis 'pipeline'; its layer "
        "runs on stage 0, which is one place along it; leave out the axis, or what puts it there",
    ),
    "no batch": (
        lambda: run(_around(ml.Linear(3)), PIPE, 0),
        ml.PlanError,
        "batch 'input' is empty, and a pipeline has nothing to cut",
    ),
    "a multiple of the replicas": (
        lambda: run(
            classifier(2, microbatch_size=2, data_parallel=True),
            ml.Mesh(data=2, pipeline=2),
            7,
            uneven="error",
        ),
        ml.PlanError,
        "micro-batches of 2 samples; use a batch that is a multiple of 2, or allow padding",
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
    make, kind, text = CASES[case]
    with pytest.raises(kind, match=re.escape(text)) as caught:
        make()
    assert "fault of Mithril" not in str(caught.value)


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ml.OptionError, match="is no text in UTF-8; save it as CSV"):
        run(classifier(2), PIPE, pipeline_schedule=str(tmp_path / "table.csv"))


def test_a_pipeline_takes_layers_neither_way() -> None:
    pipeline = ml.Pipeline([ml.Relu()])
    with pytest.raises(ml.OptionError, match="Pipeline takes no further layers"):
        pipeline |= ml.Relu()(input="a", output="b")


def test_a_scalar_has_no_microbatches() -> None:
    model = ml.Model()
    model |= ml.Pipeline([ml.Relu(), ml.Tanh()])(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(PIPE))
    with pytest.raises(ml.ShapeError, match="pipeline cuts 'input' into micro-batches, and it is"):
        compiled.evaluate({}, {"input": 1.0})


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
