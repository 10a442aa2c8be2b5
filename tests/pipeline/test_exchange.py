"""Pipelines whose stages exchange samples between replicas, or loop, equal one device."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops

from tests.pipeline.models import FEATURES, block, compared, followed, head, samples

MESH = ml.Mesh(data=2, pipeline=2)


@ml.layer
def Merge(input: ml.ir.Tensor) -> ml.ir.Tensor:  # noqa: N802 - a layer
    """Double every sample, by way of another shape."""
    return ops.reshape(ops.reshape(input, (-1, input.shape[-1])) * 2.0, input.shape)


def experts() -> ml.MoE:
    return ml.MoE(
        num_experts=4,
        expert_dim=8,
        sharding={"experts.in.weight": P("data"), "experts.out.weight": P("data")},
    )


@pytest.mark.parametrize(
    ("first", "batch", "exchanges"), [(experts, 8, True), (Merge, 8, False), (Merge, 6, True)]
)
def test_samples_stay_in_order(first, batch: int, exchanges: bool) -> None:
    stage = ml.Model()
    stage |= first()(input="x", output="h")
    model = ml.Model()
    model |= ml.Pipeline([stage, ml.Linear(3)], microbatch_size=2)(input="input", output="output")
    x = np.random.default_rng(0).standard_normal((batch, 4, FEATURES)).astype(np.float32)
    alone = ml.compile(model, ml.NumpyBackend(), inference=True)
    expected = alone.evaluate(alone.randomize_params(), {"input": x})["output"].numpy()
    backend = ml.NumpyBackend(MESH)
    for spec in (None, P("data")):
        shardings = None if spec is None else {"output": spec}
        compiled = ml.compile(model, backend, inference=True, out_shardings=shardings)
        given = {"input": backend.array(x, sharding=P("data"))}
        found = compiled.evaluate(compiled.randomize_params(), given)["output"]
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-5)
        assert spec is None or found.sharding == ml.Sharding.of(MESH, spec, 3)
        assert any("exchange samples" in note for note in compiled.plan.notes) == exchanges


def deep(rate: float) -> ml.Model:
    inner = block()
    inner += ml.Dropout(rate=rate)
    model = ml.Model()
    model |= ml.Repeat(inner, 2)(input="x", output="y")
    return model


@pytest.mark.parametrize(("batch", "rate"), [(7, 0.0), (8, 0.3), (7, 0.3)])
@pytest.mark.parametrize("mesh", [ml.Mesh(pipeline=2), MESH], ids=str)
def test_loops_know_their_microbatch(batch: int, rate: float, mesh: ml.Mesh) -> None:
    model = ml.Model()
    model |= ml.Pipeline([deep(rate), followed(deep(rate), head())], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    spec = P("data") if "data" in mesh.names else None
    compared(model, ml.NumpyBackend(mesh), samples(batch), spec=spec)


@pytest.mark.parametrize("spec", [P(), P("data"), P("pipeline"), P(("data", "pipeline"))], ids=str)
@pytest.mark.parametrize("arrives", [None, P("data")], ids=str)
def test_outputs_leave_as_they_are_asked_to(spec: P, arrives: P | None) -> None:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="output")
    given = {"input": samples(8)["input"]}
    compiled = compared(
        model, ml.NumpyBackend(MESH), given, spec=arrives, out_shardings={"output": spec}
    )
    (port, *_) = compiled.plan.outputs
    assert port.sharding == ml.Sharding.of(MESH, spec, 2)


def test_stacks_at_rest_inside_stages() -> None:
    model = ml.Model()
    model |= ml.Pipeline([deep(0.0), followed(deep(0.0), head())], microbatch_size=2)(
        input="input", targets="targets", output="loss"
    )
    model.at_rest({"*weight": P("data")})
    compared(model, ml.NumpyBackend(MESH), samples(8), spec=P("data"))


def norm(params: dict[str, ml.Array]) -> ml.Array | float:
    total: ml.Array | float = 0.0
    for x in params.values():
        total = total + (x * x).sum()
    return total


def clipped(params: dict[str, ml.Array], slopes: dict[str, ml.Array]) -> dict[str, ml.Array]:
    scale = 1.0 / (1.0 + norm(slopes))
    return {name: params[name] - scale * slopes[name] for name in params}


def two_stages(backend: ml.Backend) -> ml.CompiledModel:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="output")
    return ml.compile(model, backend, shapes={"input": (8, FEATURES)})


def test_functions_leave_parameters_on_their_stages() -> None:
    params = two_stages(ml.NumpyBackend(MESH)).randomize_params()
    where = {name: x.sharding for name, x in params.items()}
    slopes = ml.grad(norm)(params)
    assert {name: x.sharding for name, x in slopes.items()} == where
    updated = ml.jit(clipped)(params, slopes)
    assert {name: x.sharding for name, x in updated.items()} == where
    scale = 1.0 / (1.0 + sum(float((x.numpy() ** 2).sum()) for x in slopes.values()))
    for name, x in updated.items():
        expected = (1 - 2 * scale) * params[name].numpy()
        np.testing.assert_allclose(x.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_model_without_stages_takes_arrays_that_lie_on_some() -> None:
    backend = ml.NumpyBackend(MESH)
    params = two_stages(backend).randomize_params()
    weight, bias = (params[f"pipeline_0.stage_1.{name}"] for name in ("weight", "bias"))
    compiled = ml.compile(ml.Linear(4), backend)
    x = samples(8)["input"]
    found = compiled.evaluate({"weight": weight, "bias": bias}, {"input": x})["output"]
    np.testing.assert_allclose(found.numpy(), x @ weight.numpy().T + bias.numpy(), rtol=1e-5)


@ml.layer
def MaskedMean(input: ml.ir.Tensor, keep: ml.ir.Tensor) -> ml.ir.Tensor:  # noqa: N802 - a layer
    """Return the mean square of the samples that count."""
    counts = ops.cast(keep > 0, input.dtype)
    return ops.sum(ops.sum(input * input, axis=-1) * counts) / ops.sum(counts)


@pytest.mark.parametrize("batch", [8, 7])
@pytest.mark.parametrize("mesh", [ml.Mesh(pipeline=2), MESH], ids=str)
def test_a_mean_over_the_samples_that_count(batch: int, mesh: ml.Mesh) -> None:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="h")
    model |= MaskedMean()(input="h", keep="targets", output="loss")
    spec = P("data") if "data" in mesh.names else None
    compared(model, ml.NumpyBackend(mesh), samples(batch), spec=spec, pipeline_schedule="1f1b")


def test_the_batch_may_be_another_input() -> None:
    model = ml.Model()
    model |= ml.Linear(FEATURES, name="table")(input="table", output="rows")
    model |= ml.MatMul(name="mix")(left="input", right="rows", output="h")
    model |= ml.Linear(3, name="last")(input="h", output="output")
    for pattern, stage in (("table", 0), ("mix", 0), ("last", 1)):
        model.stage(pattern, stage)
    rng = np.random.default_rng(0)
    shapes = {"table": (6, FEATURES), "input": (8, 6)}
    given = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    options = ml.PipelineOptions(microbatch_size=2, batch="input")
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    compiled = compared(model, backend, given, pipeline=options)
    times = {stage["name"]: stage["runs"] for stage in compiled.get_partition_map()["stages"]}
    assert times["stage 0 forward"] == times["stage 1 forward"] == 4
    assert times["stage 0 before 0"] == 1  # the table is the same for all


@ml.layer
def Scaled(input: ml.ir.Tensor, weights: ml.ir.Tensor) -> ml.ir.Tensor:  # noqa: N802 - a layer
    """Return the weighted sum of squares, the largest weight counting as 1."""
    weights = ops.cast(weights, input.dtype)
    return ops.sum(ops.sum(input * input, axis=-1) * weights) / ops.max(weights)


@pytest.mark.parametrize("mesh", [ml.Mesh(pipeline=2), MESH], ids=str)
def test_the_largest_of_an_input(mesh: ml.Mesh) -> None:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="h")
    model |= Scaled()(input="h", weights="targets", output="loss")
    given = {**samples(8), "targets": np.arange(1, 9, dtype=np.int32)}
    spec = P("data") if "data" in mesh.names else None
    compared(model, ml.NumpyBackend(mesh), given, spec=spec)


def test_the_largest_of_what_a_layer_makes_is_refused() -> None:
    model = ml.Model()
    model |= ml.Pipeline([block(), ml.Linear(4)], microbatch_size=2)(input="input", output="h")
    model |= Scaled()(input="h", weights="made", output="loss")
    model |= ml.Linear(1, name="weigh")(input="input", output="columns")
    model |= ml.Reshape((-1,), name="flat")(input="columns", output="made")
    compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(pipeline=2)))
    with pytest.raises(ml.PlanError, match=r"needs all of them at once|takes the max of all"):
        compiled.evaluate(compiled.randomize_params(), {"input": samples(8)["input"]})


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_stages_pass_on_values_split_as_is_said_of_them(schedule: str) -> None:
    """And their gradients; nothing is gathered on either side."""
    model = ml.Model()
    model |= ml.Linear(6, name="first")(input="x", output="h")
    model |= ml.MultiHeadAttention(2, causal=True, context_parallel="all_gather", name="second")(
        input="h", output="a"
    )
    model |= ml.Linear(4, name="third")(input="a", output="y")
    for stage, name in enumerate(("first", "second", "third")):
        model.stage(name, stage)
    model.shard({"h": P("data", "seq"), "a": P("data", "seq"), "y": P("data", "seq")})
    x = np.random.default_rng(0).standard_normal((8, 6, 6)).astype(np.float32)
    compiled = compared(
        model,
        ml.NumpyBackend(ml.Mesh(pipeline=3, data=2, seq=2)),
        {"x": x},
        spec=P("data", "seq"),
        differentiable=("x",),
        pipeline=ml.PipelineOptions(schedule=schedule, microbatch_size=2, axis="pipeline"),
    )
    rows = compiled.plan.collectives()
    between = [row for row in rows if row.kind == "send" and row.cause.value != "gradients.x"]
    assert {row.bytes for row in between} == {4 * 2 * 3 * 6}, "a half of the sequence of 2 samples"
    assert len(between) == 4
    (gathered,) = (row for row in rows if row.kind == "all_gather")
    assert gathered.bytes == 2 * 4 * 2 * 6 * 6, "keys and values, in one message"


def test_gradients_of_one_shape_that_may_be_of_several_values_are_whole() -> None:
    model = ml.Model()
    model |= ml.Linear(6, name="one")(input="x", output="a")
    model |= ml.Linear(6, name="other")(input="x", output="b")
    model |= ml.Multiply(name="last")(inputs=["a", "b"], output="y")
    for name, stage in (("one", 0), ("other", 0), ("last", 1)):
        model.stage(name, stage)
    model.shard({"a": P("data", "seq"), "b": P("data", None, "seq")})
    compiled = compared(
        model,
        ml.NumpyBackend(ml.Mesh(pipeline=2, data=2, seq=2)),
        {"x": np.random.default_rng(0).standard_normal((8, 4, 6)).astype(np.float32)},
        spec=P("data"),
        pipeline=ml.PipelineOptions(schedule="gpipe", microbatch_size=2, axis="pipeline"),
    )
    sent = [row for row in compiled.plan.collectives() if row.kind == "send"]
    whole = 4 * 2 * 4 * 6  # 2 samples
    assert [(row.phase, row.bytes) for row in sent] == [
        *[("forward", whole // 2)] * 2, *[("backward", whole)] * 2,
    ]  # fmt: skip
