"""Loops in stages, whose parameters are split one way and kept at rest another."""

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
