"""Loops in stages: parameters kept at rest, sequences, and what is stacked of each micro-batch."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.pipeline.models import compared, samples
from tests.tolerances import TOLERANCE


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("features", "rest"), [(8, "data"), (8, ("data", "tensor")), (7, "data")])
def test_a_loop_kept_at_rest_and_split_in_micro_batches(
    features: int, rest: str | tuple[str, ...], dtype: str
) -> None:
    """The gradient of a slice is gathered over one axis behind its sum over the other."""
    model = ml.Model()
    model |= ml.Linear(features, name="first")(input="input", output="h")
    model |= ml.Repeat(ml.Linear(features), 4, name="deep")(input="h", output="g")
    model |= ml.Linear(3, name="last")(input="g", output="output")
    model.shard({"deep.weight": P(None, "tensor")})
    model.at_rest({"deep.weight": P(None, None, rest)})
    for layer, stage in (("first", 0), ("deep", [0, 1]), ("last", 1)):
        model.stage(layer, stage)
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2, pipeline=2), compute_dtype=dtype)
    options = {"pipeline": ml.PipelineOptions(microbatch_size=2, axis="pipeline")}
    given = {"input": samples(8)["input"]}
    if dtype == "float32":
        compared(model, backend, given, spec=P("data"), **options)
        return
    found = []
    for on, more in ((backend, options), (ml.NumpyBackend(compute_dtype=dtype), {})):
        compiled = ml.compile(model, on, **more)
        made = compiled.evaluate(compiled.randomize_params(1), given, {"output": np.ones((8, 3))})
        found.append({**made[0], **made[1]})
    rtol, atol = TOLERANCE[dtype]
    for name, value in found[1].items():
        pair = found[0][name].numpy().astype("f"), value.numpy().astype("f")
        np.testing.assert_allclose(*pair, rtol, atol, err_msg=name)


@pytest.mark.parametrize("batch", [8, 7])
def test_recurrent_layers_as_stages(batch: int) -> None:
    """Loops over a sequence, in micro-batches of samples, their weights kept at rest."""
    model = ml.Model()
    model |= ml.LSTM(6, num_layers=2, dropout=0.2, name="first")(input="input", output="h")
    model |= ml.GRU(6, bidirectional=True, name="second")(
        input="h", output="g", last_hidden="second_hidden"
    )
    model |= ml.Linear(3, name="last")(input="g", output="output")
    model.at_rest({"first.*.weight": P(None, "data"), "second.*.weight": P(None, None, "data")})
    for layer, stage in (("first", 0), ("second", 1), ("last", 1)):
        model.stage(layer, stage)
    x = np.random.default_rng(0).standard_normal((batch, 5, 4)).astype(np.float32)
    backend = ml.NumpyBackend(ml.Mesh(data=2, pipeline=2))
    options = ml.PipelineOptions(microbatch_size=2, axis="pipeline")
    compared(model, backend, {"input": x}, spec=P("data"), pipeline=options)


def with_means(by_sample: bool) -> ml.Model:
    """Return a loop that stacks a mean over the batch, or what a sample has of it."""
    block = ml.Model()
    block |= ml.Linear(6, name="up")(input="x", output="y")
    block |= ml.Tanh()(input="x", output="active")
    block |= ml.Mean(0, keepdims=True)(input="active", output="mean")
    if by_sample:
        block |= ml.Multiply()(inputs=["mean", "active"], output="part")
    model = ml.Model()
    stacked = {"part": "parts"} if by_sample else {"mean": "means"}
    model |= ml.Repeat(block, 2, carry={"x": "y"}, name="loop")(x="input", y="h", **stacked)
    model |= ml.Linear(3, name="last")(input="h", output="output")
    model.stage("loop", 0)
    model.stage("last", 1)
    return model


IN_FOUR = {"pipeline": ml.PipelineOptions(microbatch_size=2, axis="pipeline")}


def test_a_stacked_mean_is_that_of_the_whole_batch() -> None:
    given = {"input": samples(8)["input"][:, :6]}
    for mesh in (ml.Mesh(pipeline=2), ml.Mesh(data=2, pipeline=2)):
        spec = P("data") if "data" in mesh.names else None
        compared(with_means(False), ml.NumpyBackend(mesh), given, spec=spec, **IN_FOUR)


def test_what_samples_have_of_a_mean_is_refused() -> None:
    """It is linear in the sum over micro-batches, and another one in each of them."""
    compiled = ml.compile(with_means(True), ml.NumpyBackend(ml.Mesh(pipeline=2)), **IN_FOUR)
    with pytest.raises(ml.PlanError, match=r"'loop.mean_0' .*needs all of them at once"):
        compiled.evaluate(compiled.randomize_params(), {"input": samples(8)["input"][:, :6]})
