"""Accumulation and the precision policy, as `compile` and `train_step` take them."""

from __future__ import annotations

from typing import Any

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.conformance.engines import BACKENDS, opened
from tests.profiles import quick
from tests.tolerances import TOLERANCE
from tests.training.test_step import (
    BATCH,
    Momentum,
    batches,
    model,
    shapes,
)


def evaluate(backend: ml.Backend, **options: Any) -> tuple[ml.CompiledModel, Any, Any]:
    compiled = ml.compile(model(), backend, **options)
    params = compiled.randomize_params(seed=0)
    outputs, gradients = compiled.evaluate(params, batches(1)[0], {"loss": 1.0})
    return compiled, outputs, gradients


@quick(lambda backend: backend == "torch in lockstep")
@pytest.mark.parametrize("backend", BACKENDS)
def test_micro_batches_give_the_gradients_of_the_batch(backend: str) -> None:
    _, outputs, gradients = evaluate(ml.NumpyBackend())
    options = {"gradient_accumulation": True, "gradient_accumulation_steps": 4}
    _, found, slopes = evaluate(opened(backend, data=2), in_shardings=P("data"), **options)
    np.testing.assert_allclose(
        found["loss"].numpy(), outputs["loss"].numpy(), *TOLERANCE["float32"]
    )
    for name, x in gradients.items():
        np.testing.assert_allclose(slopes[name].numpy(), x.numpy(), *TOLERANCE["float32"], name)


def test_micro_batches_take_less_memory() -> None:
    def peak(count: int) -> int:
        wide = {"x": (512, 12), "t": (512, 6)}
        compiled = ml.compile(model(), ml.NumpyBackend(), shapes=wide, accumulate=count)
        return compiled.plan.memory().peak

    assert peak(8) < 0.6 * peak(1)


def test_gradients_are_exchanged_once() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    compiled = ml.compile(model(), backend, shapes=shapes(P("data")), accumulate=4)
    rows = [row for row in compiled.plan.collectives() if row.bytes > 8]
    assert [(row.kind, row.times) for row in rows] == [("all_reduce", 1)]


def test_a_policy_says_dtypes() -> None:
    policy = {"params": "bfloat16", "compute": "float32", "gradients": "float32"}
    compiled, _, gradients = evaluate(ml.NumpyBackend(), mixed_precision_policy=policy)
    assert {str(x.dtype) for x in compiled.randomize_params().values()} <= {"bfloat16"}
    assert {str(x.dtype) for x in gradients.values()} == {"float32"}
    _, _, plain = evaluate(ml.NumpyBackend(), mixed_precision_policy={"params": "bfloat16"})
    assert {str(x.dtype) for x in plain.values()} == {"bfloat16"}


def test_a_step_takes_the_policy() -> None:
    policy = {"params": "bfloat16", "gradients": "float32"}
    step = ml.train_step(
        model(), ml.NumpyBackend(ml.Mesh(data=2)), Momentum(), shapes=shapes(P("data")),
        mixed_precision_policy=policy, zero=3,
    )  # fmt: skip
    state, metrics = step(step.init(), batches(1)[0])
    assert {str(x.dtype) for x in state.params.values()} == {"bfloat16"}
    assert np.isfinite(metrics["loss"].item())


REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no number": (
        {"accumulate": 1.5},
        "accumulate=1.5 is no number of micro-batches; give 1 or more",
    ),
    "zero": (
        {"gradient_accumulation_steps": 0},
        "gradient_accumulation_steps=0 is no number of micro-batches; give 1 or more",
    ),
    "two numbers": (
        {"accumulate": 2, "gradient_accumulation_steps": 4},
        "accumulate=2 and gradient_accumulation_steps=4 are two names of one option and differ; "
        "give one of them",
    ),
    "no steps": (
        {"gradient_accumulation": True},
        "gradient_accumulation=True does not say over how many micro-batches; give "
        "gradient_accumulation_steps, too",
    ),
    "no flag": ({"gradient_accumulation": 4}, "gradient_accumulation=4 is neither True nor False"),
    "off": (
        {"gradient_accumulation": False, "accumulate": 2},
        "gradient_accumulation=False is given together with accumulate=2; leave one out",
    ),
    "policy": (
        {"mixed_precision_policy": "bfloat16"},
        "mixed_precision_policy='bfloat16' is no mapping; write "
        '{"params": "bfloat16", "compute": "float32"}; '
        "entries: 'params', 'compute', 'gradients'",
    ),
    "entry": (
        {"mixed_precision_policy": {"param": "bfloat16"}},
        "mixed_precision_policy has no entry 'param'; did you mean 'params'?; entries: 'params', "
        "'compute', 'gradients'",
    ),
    "two forms": (
        {"mixed_precision_policy": {}, "precision": ml.Precision()},
        "precision= is given together with mixed_precision_policy=; give one form",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    options, text = REFUSED[case]
    with pytest.raises(ml.OptionError) as raised:
        ml.compile(model(), ml.NumpyBackend(), **options)  # type: ignore[arg-type]
    assert str(raised.value) == text


def test_float8_is_refused_with_its_reason() -> None:
    with pytest.raises(ml.OptionError, match=r"^mixed_precision_policy 'compute'"):
        ml.compile(model(), ml.NumpyBackend(), mixed_precision_policy={"compute": "float8_e4m3"})


def test_stages_accumulate_over_their_own_micro_batches() -> None:
    with pytest.raises(ml.OptionError, match=r"^accumulate=2 is given for a model with stages or"):
        ml.compile(model(stages=True), ml.NumpyBackend(ml.Mesh(pipeline=2)), accumulate=2)


def test_a_batch_that_does_not_divide() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2))
    with pytest.raises(ml.PlanError) as raised:
        ml.compile(model(), backend, shapes=shapes(P("data")), accumulate=3)
    assert str(raised.value) == (
        f"accumulate=3 cuts a batch of {BATCH}, 8 on each of 2 replicas, which does not divide "
        f"into 3 micro-batches; use a batch that is a multiple of 6"
    )


def test_each_stage_updates_its_own_parameters_when_gradients_are_clipped() -> None:
    """The norm goes to every stage, and no state of an optimiser to another one."""
    clipping = ml.optim.chain(ml.optim.clip_by_global_norm(0.1), ml.optim.adamw(1e-2))
    pipeline = ml.PipelineOptions(microbatch_size=4)
    stages = ml.NumpyBackend(ml.Mesh(pipeline=2))
    found = []
    for backend, options in ((ml.NumpyBackend(), {}), (stages, {"pipeline": pipeline})):
        cut = model(stages=backend.mesh.size > 1)
        step = ml.train_step(cut, backend, clipping, shapes=shapes(P()), **options)
        state, losses = step.init(seed=0), []
        for batch in batches(3):
            state, metrics = step(state, batch)
            losses.append(metrics["loss"].item())
        found.append(losses)
    np.testing.assert_allclose(*found, *TOLERANCE["float32"])
    held = [row.parts["optimizer"] for row in step.memory().rows]
    assert len(held) == 2
    assert min(held) > 100


# ------------------------------------------------------------------ ZeRO without an optimiser


def test_zero_2_scatters_gradients() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    compiled, _, gradients = evaluate(backend, in_shardings=P("data"), zero=2)
    assert gradients["up.weight"].sharding.spec == P("data", None)
    kinds = {row.kind for row in compiled.plan.collectives() if row.bytes > 8}
    assert kinds == {"reduce_scatter"}
    _, _, expected = evaluate(ml.NumpyBackend())
    for name, x in expected.items():
        np.testing.assert_allclose(gradients[name].numpy(), x.numpy(), *TOLERANCE["float32"], name)


def test_zero_3_keeps_parameters_split() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4))
    compiled, _, gradients = evaluate(backend, in_shardings=P("data"), zero=3)
    assert compiled.shardings["up.weight"].spec == P("data", None)
    assert gradients["up.weight"].sharding.spec == P("data", None)
    kinds = {row.kind for row in compiled.plan.collectives() if row.bytes > 8}
    assert kinds == {"all_gather", "reduce_scatter"}


def test_layers_of_a_loop_are_split_each() -> None:
    block = ml.Model()
    block |= ml.Linear(12, name="up")(input="x", output="y")
    made = ml.Model()
    made |= ml.Repeat(block, 4, name="blocks")(input="x", output="y")
    compiled = ml.compile(
        made, ml.NumpyBackend(ml.Mesh(data=4)), zero=3,
        shapes={"x": ml.TensorSpec((8, 12), "float32", P("data"))}, inference=True,
    )  # fmt: skip
    assert compiled.shardings["blocks.up.weight"].spec == P(None, "data", None)


def test_zero_1_needs_an_optimiser() -> None:
    with pytest.raises(ml.OptionError) as raised:
        ml.compile(model(), ml.NumpyBackend(ml.Mesh(data=2)), zero=1)
    assert str(raised.value) == (
        "zero=1 splits the state of an optimiser, which evaluate() does not have; give it to "
        "train_step(), or 2 or 3 to compile()"
    )


def test_small_tensors_stay_whole() -> None:
    step = ml.train_step(
        model(), ml.NumpyBackend(ml.Mesh(data=8)), Momentum(), shapes=shapes(P("data")), zero=3
    )
    assert step.shardings["down.bias"].spec == P(None)
    assert step.shardings["up.weight"].spec == P("data", None)


# ------------------------------------------------------------------ the guides' words of backends


def kinds_of(step: ml.TrainStep) -> dict[str, set[str]]:
    rows = [row for row in step.plan.collectives() if row.bytes > 8]
    return {phase: {r.kind for r in rows if r.phase == phase} for phase in ("forward", "update")}


def step_on(made: ml.Model | None = None, **options: Any) -> ml.TrainStep:
    backend = ml.NumpyBackend((4, 2), mesh_axis_names=["data", "model"], **options)
    return ml.train_step(made or model(), backend, Momentum(), shapes=shapes(P("data")))


def test_fully_sharded_is_zero() -> None:
    assert kinds_of(step_on()) == {"forward": set(), "update": set()}
    full = step_on(parallel_mode="fully_sharded")
    assert kinds_of(full) == {"forward": {"all_gather"}, "update": set()}
    config = {"sharding_strategy": "SHARD_GRAD_OP", "flatten_parameters": True}
    split = step_on(parallel_mode="fully_sharded", fsdp_config=config)
    assert kinds_of(split) == {"forward": {"all_gather"}, "update": set()}
    again = [
        [r.phase for r in step.plan.collectives() if r.kind == "all_gather"]
        for step in (full, split)
    ]
    assert ["backward" in phases for phases in again] == [True, False]
    none = step_on(fsdp_config={"sharding_strategy": "NO_SHARD"})
    assert kinds_of(none) == {"forward": set(), "update": set()}


def test_what_is_said_by_the_caller_comes_first() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=4), parallel_mode="fully_sharded")
    step = ml.train_step(model(), backend, Momentum(), shapes=shapes(P("data")), zero=0)
    assert step.shardings["up.weight"].spec == P(None, None)
    compiled = ml.compile(model(), backend, shapes=shapes(P("data")))
    assert compiled.shardings["up.weight"].spec == P("data", None)


def test_mixed_precision_computes_in_bfloat16() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2), fsdp_config={"mixed_precision": True})
    assert str(backend.precision.compute) == "bfloat16"
    assert str(backend.precision.parameters) == "float32"
    named = ml.NumpyBackend(
        ml.Mesh(data=2), fsdp_config={"mixed_precision": True}, compute_dtype="float16"
    )
    assert str(named.precision.compute) == "float16"


@pytest.mark.parametrize(
    ("mode", "weight", "bias"),
    [("column", P("model", None), P("model")), ("row", P(None, "model"), P(None))],
)
def test_tensor_parallel_splits_linear_layers(mode: str, weight: P, bias: P) -> None:
    made = model()
    made.shard({"down.weight": P("model", None)})
    step = step_on(made, tensor_parallel_config={"tp_size": 2, "tp_mode": mode})
    assert step.shardings["up.weight"].spec == weight
    assert step.shardings["up.bias"].spec == bias
    assert step.shardings["down.weight"].spec == P("model", None)


MISSPELT: dict[str, tuple[dict[str, object], str]] = {
    "mode": (
        {"parallel_mode": "fully_shared"},
        "parallel_mode='fully_shared' is unknown; did you mean 'fully_sharded'?; modes: 'data', "
        "'fully_sharded', 'tensor'",
    ),
    "another mode": (
        {"parallel_mode": "data", "fsdp_config": {}},
        "fsdp_config is given with parallel_mode='data'; it is for 'fully_sharded'",
    ),
    "another mode's split": (
        {"parallel_mode": "data", "tensor_parallel_config": {"tp_size": 2}},
        "tensor_parallel_config is given with parallel_mode='data', which copies parameters; leave "
        "out either",
    ),
    "no size of an axis": (
        {"tensor_parallel_config": {"tp_size": True}},
        "tensor_parallel_config 'tp_size' is True, and no axis of Mesh(data=4, model=2) has that "
        "size; give the size of the axis that splits weights",
    ),
    "no name": (
        {"fsdp_config": {"sharding_strategy": ["FULL_SHARD"]}},
        "fsdp_config 'sharding_strategy' is ['FULL_SHARD']; did you mean 'FULL_SHARD'?; "
        "strategies: 'FULL_SHARD', 'SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD'",
    ),
    "no tensor": (
        {"parallel_mode": "tensor"},
        "parallel_mode='tensor' does not say how; give tensor_parallel_config, such as "
        '{"tp_size": 2, "tp_mode": "column"}',
    ),
    "no mapping": (
        {"fsdp_config": True},
        "fsdp_config=True is no mapping; write "
        """{"sharding_strategy": "FULL_SHARD"}; entries: 'sharding_strategy', """
        "'mixed_precision', 'flatten_parameters'",
    ),
    "entry": (
        {"fsdp_config": {"strategy": "FULL_SHARD"}},
        "fsdp_config has no entry 'strategy'; did you mean 'sharding_strategy'?; entries: "
        "'sharding_strategy', 'mixed_precision', 'flatten_parameters'",
    ),
    "strategy": (
        {"fsdp_config": {"sharding_strategy": "FULL"}},
        "fsdp_config 'sharding_strategy' is 'FULL'; strategies: 'FULL_SHARD', 'SHARD_GRAD_OP', "
        "'NO_SHARD', 'HYBRID_SHARD'",
    ),
    "hybrid": (
        {"fsdp_config": {"sharding_strategy": "HYBRID_SHARD"}},
        "fsdp_config 'sharding_strategy' is 'HYBRID_SHARD', which does not say which mesh axis is "
        "inside a node; say zero=3, zero_axis=… to compile() or train_step()",
    ),
    "flag": (
        {"fsdp_config": {"mixed_precision": "bfloat16"}},
        "fsdp_config['mixed_precision']='bfloat16' is neither True nor False; give one of them",
    ),
    "flat": (
        {"fsdp_config": {"flatten_parameters": False}},
        "fsdp_config 'flatten_parameters' is False, and parameters of a block travel together "
        "wherever that pays; leave it out",
    ),
    "overlap": (
        {"tensor_parallel_config": {"tp_size": 2, "overlap_comm": "yes"}},
        "tensor_parallel_config['overlap_comm']='yes' is neither True nor False; give one of them",
    ),
    "two overlaps": (
        {
            "overlap_communication": False,
            "tensor_parallel_config": {"tp_size": 2, "overlap_comm": True},
        },
        "overlap_communication=False and tensor_parallel_config['overlap_comm']=True are two names "
        "of one option and differ; give one of them",
    ),
    "way": (
        {"tensor_parallel_config": {"tp_size": 2, "tp_mode": "colum"}},
        "tensor_parallel_config 'tp_mode' is 'colum'; did you mean 'column'?; modes: 'column', "
        "'row'",
    ),
    "no size": (
        {"tensor_parallel_config": {"overlap_comm": True}},
        "tensor_parallel_config lacks 'tp_size'; give the size of the axis of Mesh(data=4, model=2) "
        "that splits weights",
    ),
    "size": (
        {"tensor_parallel_config": {"tp_size": 3}},
        "tensor_parallel_config 'tp_size' is 3, and no axis of Mesh(data=4, model=2) has that "
        "size; give the size of the axis that splits weights",
    ),
}


@pytest.mark.parametrize("case", MISSPELT)
def test_words_that_are_refused(case: str) -> None:
    options, text = MISSPELT[case]
    with pytest.raises(ml.OptionError) as raised:
        ml.NumpyBackend((4, 2), mesh_axis_names=["data", "model"], **options)  # type: ignore[arg-type]
    assert str(raised.value) == text


@pytest.mark.parametrize("mesh", [ml.Mesh(), ml.Mesh(data=2)], ids=str)
def test_gradients_that_no_sample_changes_are_accumulated_too(mesh: ml.Mesh) -> None:
    """That of a bias before a mean is the same for all micro-batches."""
    backend, found = ml.NumpyBackend(mesh), []
    x = np.random.default_rng(0).standard_normal((8, 3), dtype=np.float32)
    for accumulate in (1, 2, 4):
        model = ml.Model()
        model |= ml.Linear(4, name="l")(input="x", output="y")
        model |= ml.Mean(axis=(0, 1))(input="y", output="loss")
        step = ml.train_step(
            model, backend, ml.optim.sgd(0.5), loss="loss", shapes={"x": x.shape},
            in_shardings={"x": P(*mesh.names)}, accumulate=accumulate,
        )  # fmt: skip
        state, _ = step(step.init(seed=0), {"x": x})
        found.append({name: value.numpy() for name, value in state.params.items()})
    for other in found[1:]:
        for name, value in found[0].items():
            np.testing.assert_allclose(other[name], value, *TOLERANCE["float32"], err_msg=name)
