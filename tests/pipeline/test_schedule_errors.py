"""Mistakes about schedules and micro-batches are answered in the user's words."""

from __future__ import annotations

from pathlib import Path

import mithril as ml
import pytest

from tests.pipeline.mistakes import PIPE, Case, answered, around, run, staged
from tests.pipeline.models import classifier

TABLE = ["0F0,0F1,0B0,0B1", "1F0,1F1,1B0"]
CASES: dict[str, Case] = {
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
    "no number of samples": (
        lambda: classifier(2, microbatch_size=0),
        ml.OptionError,
        "Pipeline option microbatch_size is 0; give a positive integer",
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
    "no samples": (
        lambda: ml.PipelineOptions(microbatch_size=-1),
        ml.OptionError,
        "microbatch_size=-1 is no number of samples above 0",
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
    "no batch": (
        lambda: run(around(ml.Linear(3)), PIPE, 0),
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
}


@pytest.mark.parametrize("case", CASES)
def test_mistake_is_answered(case: str) -> None:
    answered(CASES[case])


def test_a_table_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ml.OptionError, match="is no text in UTF-8; save it as CSV"):
        run(classifier(2), PIPE, pipeline_schedule=str(tmp_path / "table.csv"))


def test_a_scalar_has_no_microbatches() -> None:
    model = ml.Model()
    model |= ml.Pipeline([ml.Relu(), ml.Tanh()])(input="input", output="output")
    compiled = ml.compile(model, ml.NumpyBackend(PIPE))
    with pytest.raises(ml.ShapeError, match="pipeline cuts 'input' into micro-batches, and it is"):
        compiled.evaluate({}, {"input": 1.0})
