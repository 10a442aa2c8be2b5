"""Models whose parameters come as NumPy arrays: annotations hold as for those that are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mithril as ml
import numpy as np
from mithril import P

from tests.tolerances import TOLERANCE

X = np.random.default_rng(1).standard_normal((8, 16), dtype=np.float32)
Y = np.random.default_rng(2).standard_normal((8, 16), dtype=np.float32)
WEIGHTS = {"up.weight": P("tensor", None), "down.weight": P(None, "tensor")}
INPUTS: dict[str, Any] = {"x": X, "t": Y}
SEED = {"loss": 1.0}
Row = tuple[str, tuple[str, ...], int]


def megatron(at_rest: bool = False) -> ml.Model:
    """Return two layers split as Megatron splits them, and a loss."""
    model = ml.Model()
    model |= ml.Linear(32, name="up", bias=False)(input="x", output="h")
    model += ml.Relu()
    model += ml.Linear(16, name="down")(output="y")
    model += ml.MeanSquaredError()(target="t", output="loss")
    model.shard(WEIGHTS)
    if at_rest:
        model.at_rest({"*.weight": P("tensor", "data"), "down.bias": P("data")})
    return model


def staged() -> ml.Model:
    """Return two layers on stages of a pipeline, and a loss."""
    model = ml.Model()
    model |= ml.Linear(16, name="up")(input="x", output="h")
    model |= ml.Linear(16, name="down")(input="h", output="y")
    model |= ml.MeanSquaredError(name="end")(input="y", target="t", output="loss")
    for layer, stage in (("up", 0), ("down", 1), ("end", 1)):
        model.stage(layer, stage)
    return model


def train(
    compiled: ml.CompiledModel, params: Mapping[str, Any], inputs: Mapping[str, Any]
) -> tuple[ml.Parameters, list[Row]]:
    """Return the gradients, and what was issued for them."""
    issued: list[Row] = []
    _, gradients = compiled.evaluate(
        params, inputs, SEED, observe=lambda told: issued.append(told.row)
    )
    return gradients, issued


def check_loaded(
    backend: ml.Backend, model: ml.Model, inputs: Mapping[str, Any], **options: Any
) -> None:
    """Compare arrays that nobody placed with the parameters that a model draws."""
    compiled = ml.compile(model, backend, shapes=inputs, **options)
    drawn = compiled.randomize_params(3)
    values = {name: x.numpy() for name, x in drawn.items()}
    shardings = dict(compiled.shardings)
    expected, issued = train(compiled, drawn, inputs)
    moved = compiled.plan.bytes_by_axis()
    loaded = {
        "NumPy": dict(values),
        "arrays": {name: backend.array(x) for name, x in values.items()},
        "updated": compiled.randomize_params(4),
        "placed": compiled.place(values),
    }
    loaded["updated"].update(values)
    for how, params in loaded.items():
        found, own = train(compiled, params, inputs)
        assert own == issued, how
        assert compiled.plan.bytes_by_axis() == moved, how
        for name, x in expected.items():
            rtol, atol = TOLERANCE["float32"]
            np.testing.assert_allclose(found[name].numpy(), x.numpy(), rtol=rtol, atol=atol)
            assert found[name].sharding == x.sharding == shardings[name], (how, name)
    assert compiled.recompiles == 1
    for name, x in loaded["arrays"].items():  # in place: each device holds its part alone
        assert not x.is_placed
        assert x.sharding == shardings[name]
        assert parts(x) == parts(drawn[name])
    again = compiled.randomize_params(3)
    assert {name: x.sharding for name, x in again.items()} == shardings


def parts(x: ml.Array) -> list[tuple[int, ...]]:
    """Return the shapes of what devices hold."""
    return [shard.data.shape for shard in x.addressable_shards]
