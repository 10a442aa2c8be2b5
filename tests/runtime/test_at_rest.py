"""Parameters kept split between uses: where they live, what is moved, and that numbers stay."""

from __future__ import annotations

import re

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.graphs import members
from tests.tolerances import TOLERANCE

D, H = 8, 32
X = np.random.default_rng(0).standard_normal((8, D)).astype(np.float32)
G = {"output": np.random.default_rng(1).standard_normal((8, D)).astype(np.float32)}


def mlp(**options: object) -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(H, name="up", **options)(input="input", output="hidden")
    model += ml.Gelu()(input="hidden", output="active")
    model += ml.Linear(D, name="down", **options)(input="active", output="output")
    return model


OVER_DATA = P("data")


def zero(spec: P = OVER_DATA) -> ml.Model:
    model = mlp()
    model.at_rest({"*": spec})
    return model


def step(model: ml.Model, mesh: ml.Mesh | None, params: dict | None = None):
    backend = ml.NumpyBackend(mesh)
    compiled = ml.compile(model, backend)
    made = compiled.randomize_params(2) if params is None else params
    x = backend.array(X, sharding=P("data")) if mesh else X
    outputs, gradients = compiled.evaluate(made, {"input": x}, G)
    return compiled, made, outputs, gradients


def rows(compiled: ml.CompiledModel) -> list[tuple[str, str]]:
    """Return phase and kind of the collectives, those in one buffer each by itself."""
    return [
        (str(row.phase), row.kind)
        for row in compiled.plan.collectives()
        for _ in row.cause.parts or [row.cause.value]
    ]


MESH = ml.Mesh(data=4)


def test_zero_3_gathers_and_scatters_and_equals_one_device() -> None:
    _, _, expected, slopes = step(mlp(), None)
    compiled, params, outputs, gradients = step(zero(), MESH)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["output"], expected["output"], rtol=rtol, atol=atol)
    for name, value in slopes.items():
        np.testing.assert_allclose(gradients[name], value, rtol=rtol, atol=atol, err_msg=name)
        assert params[name].sharding.spec == gradients[name].sharding.spec == P("data")
    found = rows(compiled)
    assert found.count(("forward", "all_gather")) == 4
    assert found.count(("backward", "reduce_scatter")) == 4
    assert "all_reduce" not in {kind for _, kind in found}


def test_a_training_step_keeps_its_plan_and_its_place() -> None:
    compiled, params, _, gradients = step(zero(), MESH)
    x = {"input": compiled.backend.array(X, sharding=P("data"))}
    updated = {name: value - 0.1 * gradients[name] for name, value in params.items()}
    assert {value.sharding.spec for value in updated.values()} == {P("data")}
    compiled.evaluate(updated, x, G)
    assert compiled.recompiles == 1
    assert rows(compiled).count(("forward", "all_gather")) == 4


def test_each_device_stores_its_part_only() -> None:
    _, params, _, _ = step(zero(), MESH)
    stored = [shard.data.size for shard in params["up.weight"].addressable_shards]
    assert stored == [D * H // 4] * 4


def test_layers_say_it_too() -> None:
    by_layer, _, _, _ = step(mlp(at_rest={"weight": P("data")}), MESH)
    assert rows(by_layer).count(("forward", "all_gather")) == 2
    for_all, _, _, _ = step(mlp(at_rest=P("data")), MESH)
    assert rows(for_all).count(("forward", "all_gather")) == 4
    assert "weight at rest P('data')" in mlp(at_rest={"weight": P("data")}).summary()


def test_explain_says_who_decided() -> None:
    compiled, *_ = step(zero(), MESH)
    text = compiled.explain("up.weight")
    assert "decided by at_rest P('data')" in text
    assert "test_at_rest.py" in text
    assert "all_gather over data" in text


def test_compute_spec_and_place_at_rest_together() -> None:
    model = mlp()
    model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    model.at_rest({"*.weight": P(("tensor", "data"))})
    _, _, expected, slopes = step(mlp(), None)
    compiled, params, outputs, gradients = step(model, ml.Mesh(data=2, tensor=2))
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["output"], expected["output"], rtol=rtol, atol=atol)
    for name, value in slopes.items():
        np.testing.assert_allclose(gradients[name], value, rtol=rtol, atol=atol, err_msg=name)
    assert params["up.weight"].sharding.spec == P(("tensor", "data"))
    assert ("forward", "all_reduce") in rows(compiled), "the tensor-parallel sum stays"
    updated = {name: value - 0.1 * gradients[name] for name, value in params.items()}
    assert updated["up.weight"].sharding.spec == P(("tensor", "data")), "an update stays in place"
    compiled.evaluate(updated, {"input": compiled.backend.array(X, sharding=P("data"))}, G)
    assert compiled.recompiles == 1


def test_uneven_parameters_rest_too() -> None:
    _, _, expected, _ = step(mlp(), None)
    _, params, outputs, _ = step(zero(), ml.Mesh(data=3))
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["output"], expected["output"], rtol=rtol, atol=atol)
    sizes = [shard.data.shape[0] for shard in params["up.weight"].addressable_shards]
    assert sizes == [11, 11, 10]


def test_stacked_blocks_are_gathered_one_at_a_time() -> None:
    block = mlp()
    block.at_rest({"*.weight": P("data")})
    model = ml.Model()
    model |= ml.Repeat(block, 3, name="blocks")(input="input", output="output")
    compiled, params, _, _ = step(model, MESH)
    assert params["blocks.up.weight"].sharding.spec == P(None, "data")
    gathers = [row for row in members(compiled.plan, "forward") if row[0] == "all_gather"]
    assert gathers == [("all_gather", ("data",), 4 * D * H, 3)] * 2


def test_an_array_that_lies_otherwise_stays_so() -> None:
    _, params, _, _ = step(mlp(), MESH)
    compiled, _, _, gradients = step_with(zero(), params)
    assert gradients["up.weight"].sharding.spec == params["up.weight"].sharding.spec
    assert ("forward", "all_gather") not in rows(compiled)


def step_with(model: ml.Model, params: dict):
    backend = next(iter(params.values())).backend
    compiled = ml.compile(model, backend)
    outputs, gradients = compiled.evaluate(
        params, {"input": backend.array(X, sharding=P("data"))}, G
    )
    return compiled, params, outputs, gradients


def hint(model: ml.Model) -> tuple[str, ...]:
    return step(model, MESH)[0].plan.notes


def test_a_compute_spec_that_was_probably_meant_at_rest_is_pointed_out() -> None:
    meant_otherwise = mlp()
    meant_otherwise.shard({"*.weight": P("data")})
    (up, down) = hint(meant_otherwise)
    up = re.sub(r"\.py:\d+", ".py:19", up)
    assert up == (
        "parameter 'up.weight' and the activation it meets at 'up' (test_at_rest.py:19) are both "
        "split over 'data', so the activation is moved; if the parameter is only to be stored "
        "split, say at_rest instead of sharding"
    )
    assert "'down.weight'" in down
    assert hint(zero()) == ()
    assert hint(mlp()) == ()


def test_an_axis_that_rest_leaves_out_is_pointed_out() -> None:
    model = mlp()
    model.shard({"up.weight": P("tensor", None)})
    model.at_rest({"up.weight": P("data")})
    notes = step(model, ml.Mesh(data=2, tensor=2))[0].plan.notes
    assert notes == (
        "parameter 'up.weight' is split over 'tensor' to compute and not at rest, so it is laid "
        "out anew each time; at_rest P(('tensor', 'data'), None) would keep both",
    )


def test_rest_may_use_an_axis_in_another_dimension() -> None:
    model = mlp()
    model.shard({"up.weight": P(("tensor", "data"), None)})
    model.at_rest({"up.weight": P(None, "data")})
    notes = step(model, ml.Mesh(data=2, tensor=2))[0].plan.notes
    assert any(note.endswith("at_rest P('tensor', 'data') would keep both") for note in notes)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: mlp(at_rest="data"),
            ml.OptionError,
            r"Linear option at_rest is 'data'; give a mapping .* at_rest=",
        ),
        (
            lambda: ml.Relu(at_rest=P("data")),
            ml.OptionError,
            r"Relu has no parameters to keep; remove at_rest=P\('data'\)",
        ),
        (
            lambda: mlp(at_rest={"wieght": P("data")}),
            ml.OptionError,
            "Linear has no parameter 'wieght' to shard; .*did you mean 'weight'",
        ),
        (
            lambda: mlp(at_rest={"weight": "data"}),
            ml.OptionError,
            "Linear option at_rest gives 'weight' 'data'; give a partition spec",
        ),
        (
            lambda: mlp().at_rest({"up": "data"}),
            ml.ShardingError,
            r"model.at_rest got 'up': 'data'.*give a name pattern and a partition spec",
        ),
        (
            lambda: mlp().at_rest(P("data")),
            ml.ShardingError,
            r"model.at_rest got P\('data'\).*give a mapping from name patterns",
        ),
        (
            lambda: step(pattern("hidden"), MESH),
            ml.ShardingError,
            "pattern 'hidden' of model.at_rest .*matches no parameter; near names",
        ),
        (lambda: step(zero(P("tensor")), MESH), ml.MeshError, "has no axis 'tensor'"),
    ],
)
def test_mistakes(make, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def pattern(text: str) -> ml.Model:
    model = mlp()
    model.at_rest({text: P("data")})
    return model


@ml.layer(parameters=("scale", "weight"))
def scaled(input):
    """Have a number among the parameters."""
    weight = ml.parameter("weight", (8, input.shape[-1]), ml.Normal(0.2))
    return (input @ weight.T) * ml.parameter("scale", (), ml.Constant(1.5))


def with_number(rules: dict[str, P] | None = None, **options: object) -> ml.Model:
    model = ml.Model()
    model |= scaled(name="a", **options)(input="input", output="h")
    model |= ml.Repeat(scaled(**options), 4, name="b")(input="h", output="output")
    model.at_rest(rules or {})
    return model


def with_block() -> ml.Model:
    block = ml.Model()
    block |= scaled(name="a")(input="input", output="output")
    block.at_rest({"a.*": P("data")})
    model = ml.Model()
    model |= ml.Repeat(block, 4, name="b")(input="input", output="output")
    return model


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (with_number({"*": P("data")}), {}),
        (with_block(), {}),
        (with_number(at_rest=P("data")), {}),
        (with_number(), {"at_rest": P("data")}),
        (with_number(), {"at_rest": {"a.*": P("data"), "b.weight": P(None, "data")}}),
    ],
    ids=["rules", "in a block", "in layers", "one for all", "patterns"],
)
def test_what_is_said_of_many_leaves_out_numbers(model: ml.Model, options: dict) -> None:
    compiled = ml.compile(model, ml.NumpyBackend(MESH), **options)
    one = ml.compile(model, ml.NumpyBackend())
    params = compiled.randomize_params(0)
    found = compiled.evaluate(params, {"input": X}, G)
    expected = one.evaluate(one.randomize_params(0), {"input": X}, G)
    rtol, atol = TOLERANCE["float32"]
    for some, others in zip(found, expected, strict=True):
        for name, value in others.items():
            np.testing.assert_allclose(some[name], value, rtol=rtol, atol=atol, err_msg=name)
    whole = [name for name, value in params.items() if value.sharding.is_replicated]
    assert set(whole) <= {"a.scale", "b.scale", "b.a.scale"}
    assert "a.scale" in whole or "a.scale" not in params


def test_a_number_that_is_named_is_refused() -> None:
    compiled = ml.compile(with_number({"a.scale": P("data")}), ml.NumpyBackend(MESH))
    with pytest.raises(ml.ShardingError, match=r"'a\.scale'"):
        compiled.plan_for({"input": (8, 8)})


def test_functions_keep_no_numbers_that_are_said_with_others() -> None:
    backend = ml.NumpyBackend(MESH)
    weight, scale = np.ones((8, 8), np.float32), np.float32(2)
    for said in (P("data"), {"params.*": P("data")}, {"w": P("data")}):
        apply = ml.jit(lambda params, x: x @ params["w"] * params["scale"], at_rest=said)
        given = {"w": backend.array(weight), "scale": backend.array(scale)}
        found = apply(given, backend.ones(2, 8))
        np.testing.assert_allclose(found, np.full((2, 8), 16.0))
        assert given["w"].sharding.spec == P("data")
    named = ml.jit(lambda params: params["scale"] * 2, at_rest={"params.scale": P("data")})
    with pytest.raises(ml.ShardingError, match=r"argument 'params\.scale'"):
        named({"scale": backend.array(scale)})
