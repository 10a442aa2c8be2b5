"""Strategies: what they say reaches the plan, files keep all of it, and what does not fit is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.runtime.strategy import Alternative, Findings
from mithril.runtime.strategy.difference import list_changes

from tests.tolerances import TOLERANCE
from tests.tuning.models import H100, IDS, TOKENS, make_deep, make_gpt, make_mlp

MESH = ml.Mesh(data=2, tensor=2)
X = np.random.default_rng(0).standard_normal((8, 16), np.float32)
MEGATRON = ml.Strategy(
    mesh={"data": 2, "tensor": 2},
    parameters={
        "up.weight": (64, 16), "up.bias": (64,), "down.weight": (8, 64), "down.bias": (8,),
    },
    inputs={"x": (8, 16)},
    shardings={"up.weight": P("tensor", None), "up.bias": P("tensor"), "down.weight": P(None, "tensor")},
    in_shardings={"x": P("data", None)},
    findings=Findings(profile=H100, alternatives=(Alternative("data=4", 1.0, 0.5, True, True),)),
)  # fmt: skip


def compile_with(
    strategy: object, model: ml.Model | None = None, **options: object
) -> ml.CompiledModel:
    backend = ml.NumpyBackend(MESH)
    return ml.compile(model or make_mlp(), backend, partition_strategy=strategy, **options)  # type: ignore[arg-type]


def test_a_strategy_does_what_annotations_do() -> None:
    mine = compile_with(MEGATRON, shapes={"x": (8, 16)}).plan
    model = make_mlp()
    model.shard(dict(MEGATRON.shardings))
    shapes = {"x": ml.TensorSpec((8, 16), sharding=P("data"))}
    theirs = ml.compile(model, ml.NumpyBackend(MESH), shapes=shapes).plan
    assert mine.list_issued() == theirs.list_issued() != ()
    assert {p.name: p.sharding for p in mine.inputs} == {p.name: p.sharding for p in theirs.inputs}


def test_values_between_layers_lie_as_a_strategy_says() -> None:
    split = replace(MEGATRON, value_shardings={"h": P("data", "tensor")}, shardings={})
    mine = compile_with(split, shapes={"x": (8, 16)}).plan
    model = make_mlp()
    model.shard({"h": P("data", "tensor")})
    shapes = {"x": ml.TensorSpec((8, 16), sharding=P("data"))}
    theirs = ml.compile(model, ml.NumpyBackend(MESH), shapes=shapes).plan
    assert mine.list_issued() == theirs.list_issued() != ()
    said = make_mlp()
    said.shard({"h": P("data")})
    kept = compile_with(split, said, shapes={"x": (8, 16)}).plan  # what the model says stays
    assert kept.list_issued() != mine.list_issued()
    lone = ml.Linear(4, name="l")
    strategy = ml.Strategy(
        mesh={"data": 2, "tensor": 2}, parameters={"weight": (4, 8), "bias": (4,)},
        inputs={"input": (8, 8)}, value_shardings={"h": P("data")},
    )  # fmt: skip
    with pytest.raises(
        ml.OptionError, match="partition_strategy splits values between layers, and"
    ):
        ml.compile(lone, ml.NumpyBackend(MESH), partition_strategy=strategy)


@pytest.mark.parametrize("axis", ["data", "model"])
def test_how_an_input_is_said_to_lie_is_kept(axis: str) -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, model=2))
    specs = {"x": ml.TensorSpec((64, 32), sharding=P(axis))}
    asked = {"input_shapes": specs, "strategy_space": "data", "measure": False}
    found = ml.auto_tune(make_mlp(), backend, **asked)
    assert found.in_shardings == {"x": P(axis)}
    compiled = ml.compile(make_mlp(), backend, partition_strategy=found, shapes={"x": (64, 32)})
    assert compiled.plan.timeline().seconds == found.findings.seconds


def test_results_are_those_of_one_device() -> None:
    compiled = compile_with(MEGATRON)
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, {"x": X}, {"y": np.ones((8, 8), np.float32)})
    one = ml.compile(make_mlp(), ml.NumpyBackend())
    wanted, slopes = one.evaluate(
        one.randomize_params(seed=0), {"x": X}, {"y": np.ones((8, 8), np.float32)}
    )
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["y"].numpy(), wanted["y"].numpy(), rtol, atol)
    for name, slope in slopes.items():
        np.testing.assert_allclose(gradients[name].numpy(), slope.numpy(), rtol, atol)


@pytest.mark.slow
def test_stages_micro_batches_and_zero_reach_the_plan() -> None:
    model = make_deep()
    shapes = dict.fromkeys(ml.compile(model, ml.NumpyBackend()).inputs, (8, 32))
    found = ml.auto_tune(model, H100, input_shapes=shapes, devices=2, strategy_space="pipeline")
    backend = ml.NumpyBackend(found.make_mesh())
    plan = ml.compile(model, backend, shapes=shapes, partition_strategy=found).plan
    assert len({stage.devices for stage in plan.stages}) == 2
    assert plan.timetable.schedule is not None
    step = ml.train_step(model, backend, ml.optim.sgd(0.1), shapes=shapes, partition_strategy=found)
    assert {stage.devices for stage in step.plan.stages} >= {stage.devices for stage in plan.stages}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_of_a_strategy_is_that_of_the_option(stage: int) -> None:
    strategy = replace(MEGATRON, zero=stage, zero_axes=("data",), shardings={})
    shapes = {"x": (8, 16)}
    model = make_mlp(out=16)
    model |= ml.MeanSquaredError(name="end")(input="y", target="x", output="loss")
    strategy = replace(
        strategy, parameters={**strategy.parameters, "down.weight": (16, 64), "down.bias": (16,)}
    )
    options = {"in_shardings": {"x": P("data")}, "zero": stage, "zero_axis": "data"}
    backend = ml.NumpyBackend(MESH)
    mine = ml.train_step(
        model, backend, ml.optim.adam(0.1), shapes=shapes, partition_strategy=strategy
    )
    theirs = ml.train_step(model, backend, ml.optim.adam(0.1), shapes=shapes, **options)
    assert mine.plan.list_issued() == theirs.plan.list_issued() != ()
    assert mine.plan.memory().peak == theirs.plan.memory().peak
    if stage == 1:  # a model alone has no state
        compiled = ml.compile(model, backend, shapes=shapes, partition_strategy=strategy)
        assert compiled.settings.zero.stage == 0


def test_files_keep_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    full = replace(
        MEGATRON, stages={"up": 0, "blocks": (0, 1)}, axis="tensor", schedule="1f1b",
        microbatch_size=2, zero=3, zero_axes=("data",), checkpointing=0.5,
        in_shardings={"x": P(("data", "tensor"), None)}, context_parallel="ring",
        value_shardings={"h": P("data", "tensor")},
    )  # fmt: skip
    full.save(path)
    again = ml.Strategy.load(path)
    assert again == full
    assert again.findings == full.findings
    assert list(tmp_path.iterdir()) == [path]


def change(**fields: object) -> str:
    content = json.loads(MEGATRON.to_json())
    return json.dumps({**content, **fields})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "strategy is no JSON; "),
        ("[]", "JSON holds no strategy: its 'format' is not 'mithril strategy'"),
        (change(version=2), "strategy has version 2, and this Mithril reads versions up to 1"),
        (change(zerro=1), "strategy has a field 'zerro', which says nothing here"),
        (change(mesh={"data": "two"}), "strategy has a field of the wrong form; "),
        (change(schedule="2f2b", axis="data"), "strategy says what cannot be; "),
        (
            change(microbatch_size="two"),
            "microbatch_size is 'two'; give a number of samples, or null",
        ),
        (change(microbatch_size=-1), "microbatch_size is -1; give a number of samples"),
        (change(accumulate=-1), "accumulate is -1; give a number of micro-batches, at least 1"),
        (change(accumulate=None), "accumulate is None; give a number of micro-batches"),
        (change(zero=4), "zero is 4; give a stage from 0 to 3"),
        (change(schedule=["1f1b"]), "schedule is ['1f1b']; give a text, which may be empty"),
        (change(checkpointing=-0.5), "checkpointing is -0.5; give a policy as checkpointing="),
        (change(findings={"objective": "speed"}), "strategy says what cannot be; findings"),
    ],
)
def test_files_that_hold_no_strategy(text: str, error: str, tmp_path: Path) -> None:
    path = tmp_path / "strategy.json"
    path.write_text(text)
    with pytest.raises(ml.OptionError) as caught:
        ml.Strategy.load(path)
    assert str(caught.value).startswith(f"file '{path}': ")
    assert error in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ml.OptionError, match=r"strategy '.*none.json' cannot be read; "):
        ml.Strategy.load(tmp_path / "none.json")
    with pytest.raises(ml.OptionError, match="strategy 'None' cannot be read; "):
        ml.Strategy.load(None)  # type: ignore[arg-type]


def test_another_mesh_and_another_model() -> None:
    with pytest.raises(
        ml.MeshError,
        match=r"for Mesh\(data=2, tensor=2\), and the backend has Mesh\(data=4\); open a backend on that mesh",
    ):
        ml.compile(make_mlp(), ml.NumpyBackend(ml.Mesh(data=4)), partition_strategy=MEGATRON)
    with pytest.raises(
        ml.OptionError, match=r"is for another model, which has parameter 'up.weight'; tune for"
    ):
        compile_with(MEGATRON, make_gpt())
    bigger = make_mlp()
    bigger += ml.Linear(3, name="more")
    with pytest.raises(ml.OptionError, match=r"which has no parameter 'more.weight'"):
        compile_with(MEGATRON, bigger)
    with pytest.raises(
        ml.OptionError,
        match=r"parameter 'up.weight' has shape \(64, 16\) there and \(32, 16\) here",
    ):
        compile_with(MEGATRON, make_mlp(32), shapes={"x": (8, 16)})
    with pytest.raises(ml.OptionError, match="partition_strategy=a str is no strategy; give what"):
        compile_with("data")
    with pytest.raises(
        ml.OptionError, match=r"splits 'up.wait', which is no parameter of its model"
    ):
        compile_with(replace(MEGATRON, shardings={"up.wait": P("tensor")}))


def test_what_is_said_besides_must_not_contradict_it() -> None:
    zero = replace(MEGATRON, zero=3, zero_axes=("data",))
    with pytest.raises(
        ml.OptionError, match="zero=2 contradicts partition_strategy, which says 3; leave it out"
    ):
        compile_with(zero, zero=2)
    assert compile_with(zero, zero=3, zero_axis="data").settings.zero.stage == 3
    for given in (P(None, "tensor"), {"x": P(None, "tensor")}):
        with pytest.raises(
            ml.OptionError,
            match=r"input 'x' lies as P\('data', None\) by partition_strategy, and as P\(None, 'tens",
        ):
            compile_with(MEGATRON, in_shardings=given)
    annotated = make_mlp()
    annotated.shard({"up.weight": P(None, "tensor")})
    with pytest.raises(
        ml.OptionError, match=r"splits parameter 'up.weight' as .*, and the model says "
    ):
        compile_with(MEGATRON, annotated)
    staged = replace(MEGATRON, stages={"up": 0, "act": 0, "down": 1}, axis="tensor", shardings={})
    placed = make_mlp()
    placed.stage("up", 0)
    placed.stage("act", 0)
    placed.stage("down", 1)
    with pytest.raises(ml.OptionError, match="the model places its layers itself; remove one"):
        compile_with(staged, placed)
    lone = ml.Linear(4)
    with pytest.raises(ml.OptionError, match="is one layer; add it to a Model"):
        compile_with(
            replace(staged, parameters={"weight": (4, 8), "bias": (4,)}, inputs={"input": (8, 8)}),
            lone,
        )  # type: ignore[arg-type]


def test_how_a_scalar_lies_is_said_by_an_array_too() -> None:
    model = ml.Model()
    model |= ml.Multiply()(inputs=["x", "scale"], output="y")
    strategy = ml.Strategy(
        mesh={"data": 2, "tensor": 2}, parameters={}, inputs={"x": (8, 4), "scale": ()},
        in_shardings={"scale": P()},
    )  # fmt: skip
    whole = ml.NumpyBackend(MESH).array(1.0, sharding=P()).sharding
    compiled = compile_with(strategy, model, in_shardings={"scale": whole})
    assert compiled.settings.in_shardings == {"scale": P()}


def test_a_strategy_agrees_with_a_shorter_spec() -> None:
    model = make_mlp()
    model.shard({"up.weight": P("tensor")})
    assert compile_with(MEGATRON, model).settings.strategy is MEGATRON


def test_changes_of_a_strategy() -> None:
    other = replace(MEGATRON, zero=3, zero_axes=("data",), shardings={"up.bias": P("tensor")})
    rows = list(map(str, list_changes(MEGATRON, other)))
    assert "  zero: 0 -> 3" in rows
    assert "  parameter 'up.weight': P('tensor', None) -> nothing" in rows
    assert list_changes(MEGATRON, MEGATRON) == []


@pytest.mark.slow
def test_context_of_attention_is_set_in_all_layers() -> None:
    found = ml.auto_tune(make_gpt(), H100, input_shapes=TOKENS, devices=2, strategy_space="data")
    mesh = {"context": 2}
    split = {name: P(None, "context") for name in TOKENS}
    ring = replace(
        found, mesh=mesh, in_shardings=split, context_parallel="ring", zero=0, zero_axes=()
    )
    backend = ml.NumpyBackend(ml.Mesh(mesh))
    plan = ml.compile(make_gpt(), backend, shapes=TOKENS, partition_strategy=ring).plan
    assert "permute" in {kind for kind, *_ in plan.list_issued()}
    plain = replace(ring, context_parallel="")
    plan = ml.compile(make_gpt(), backend, shapes=TOKENS, partition_strategy=plain).plan
    assert "permute" not in {kind for kind, *_ in plan.list_issued()}
    assert IDS.shape == (16, 32)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    found = ml.auto_tune(
        ml.Linear(4), "h100-sxm", input_shapes={"input": (64, 8)}, devices=2, strategy_space="data"
    )
    missing = tmp_path / "none" / "s.json"
    for path, text in (
        (tmp_path, f"path='{tmp_path}' is a directory; give the path of a file"),
        (missing, f"path='{missing}' lies in '{missing.parent}', which is no directory; make it f"),
        (3, "path=3 is no path of a file; give a text or a pathlib.Path"),
        ("", "path='' is no path of a file"),
    ):
        with pytest.raises(ml.OptionError, match=f"^{re.escape(text)}"):
            found.save(path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"loss": "y"}, "loss='y' has no effect without optimizer=, whose train step makes it sma"),
        ({"precision": "bfloat16"}, "precision='bfloat16' is no Precision"),
    ],
)
def test_options_that_have_no_effect(options: dict[str, object], text: str) -> None:
    with pytest.raises(ml.OptionError, match=text):
        ml.auto_tune(
            ml.Linear(4), "h100-sxm", input_shapes={"input": (64, 8)}, devices=2, **options
        )
