"""Frozen parameters: no gradient of theirs is computed, reduced or returned."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

RTOL, ATOL = TOLERANCE["float32"]
X = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
SLOPE = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
MESHES = [None, ml.Mesh(data=4), ml.Mesh(data=2, tensor=2)]


def mlp() -> ml.Model:
    model = ml.Model()
    model |= ml.Linear(8, name="up")(input="x", output="h")
    model += ml.Gelu()
    model += ml.Linear(4, name="down")(output="y")
    return model


def evaluate(
    model: ml.Model, mesh: ml.Mesh | None = None, **options: object
) -> tuple[ml.CompiledModel, dict[str, np.ndarray], dict[str, np.ndarray]]:
    backend = ml.NumpyBackend(mesh)
    compiled = ml.compile(model, backend, **options)
    x = backend.array(X, sharding=P("data")) if mesh else X
    params = compiled.randomize_params(3)
    outputs, gradients = compiled.evaluate(params, {"x": x}, {"y": SLOPE})
    return compiled, {n: a.numpy() for n, a in outputs.items()}, {
        n: a.numpy() for n, a in gradients.items()
    }  # fmt: skip


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("at_rest", [False, True])
def test_gradients_are_those_of_the_trained_parameters_alone(
    mesh: ml.Mesh | None, at_rest: bool
) -> None:
    _, expected, slopes = evaluate(mlp())
    frozen = mlp()
    frozen.freeze("up.*")
    if at_rest and mesh:
        frozen.at_rest({"*": P("data")})
    compiled, outputs, gradients = evaluate(frozen, mesh)
    np.testing.assert_allclose(outputs["y"], expected["y"], rtol=RTOL, atol=ATOL)
    assert list(gradients) == list(compiled.trainable) == ["down.weight", "down.bias"]
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, slopes[name], rtol=RTOL, atol=ATOL, err_msg=name)


def test_the_plan_neither_computes_nor_reduces_their_gradients() -> None:
    whole, frozen = mlp(), mlp()
    frozen.freeze("up.*")
    plans = [evaluate(model, ml.Mesh(data=4))[0].plan for model in (whole, frozen)]
    reduced = [sum(row.bytes for row in p.collectives() if row.kind == "all_reduce") for p in plans]
    assert reduced == [4 * (8 * 6 + 8 + 4 * 8 + 4), 4 * (4 * 8 + 4)]
    scopes = [
        {node.scope for node in p.stages[0].program.graph.nodes if str(node.phase) == "backward"}
        for p in plans
    ]
    assert any(scope.startswith("up") for scope in scopes[0])
    assert not any(scope.startswith(("up", "gelu")) for scope in scopes[1])


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_all_may_be_frozen_and_an_input_still_differentiated(mesh: ml.Mesh | None) -> None:
    _, _, slopes = evaluate(mlp(), differentiable=["x"])
    model = mlp()
    model.freeze("*")
    compiled, _, gradients = evaluate(model, mesh)
    assert compiled.trainable == ()
    assert gradients == {}
    assert not [row for row in compiled.plan.collectives() if str(row.phase) == "backward"]
    _, _, gradients = evaluate(model, mesh, differentiable=["x"])
    assert list(gradients) == ["x"]
    np.testing.assert_allclose(gradients["x"], slopes["x"], rtol=RTOL, atol=ATOL)


def test_the_last_rule_wins_and_nested_rules_come_first() -> None:
    inner, model = ml.Model(name="block"), ml.Model()
    inner += ml.Linear(4, name="q")
    inner += ml.Linear(4, name="k")
    inner.freeze("q.*", "k.bias")
    model += inner
    model += ml.Linear(2, name="head")
    assert ml.compile(model, ml.NumpyBackend()).trainable == (
        "block.k.weight", "head.weight", "head.bias",
    )  # fmt: skip
    model.trainable({"*": False, "*.weight": True, "head.weight": False})
    assert ml.compile(model, ml.NumpyBackend()).trainable == ("block.q.weight", "block.k.weight")


def test_a_compiled_model_stays_as_it_was() -> None:
    model = mlp()
    compiled = ml.compile(model, ml.NumpyBackend())
    model.freeze("*")
    assert len(compiled.trainable) == 4


def test_rules_of_a_repeated_block_and_of_a_model_used_twice() -> None:
    block = ml.Model()
    block |= ml.Linear(6, name="fc")(input="x", output="h")
    block += ml.Tanh()
    block.freeze("fc.bias")
    model = ml.Model()
    model |= ml.Repeat(block, 3, name="blocks")(input="x", output="h")
    model |= block(x="h", output="a")
    model |= block(x="a", output="b")
    model += ml.Linear(4, name="out")(output="y")
    _, _, gradients = evaluate(model, ml.Mesh(data=2))
    assert list(gradients) == [
        "blocks.fc.weight", "model_0.fc.weight", "out.weight", "out.bias",
    ]  # fmt: skip
    model.freeze("blocks.*")
    assert list(evaluate(model)[2]) == ["model_0.fc.weight", "out.weight", "out.bias"]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1"])
def test_a_frozen_stage_of_a_pipeline(schedule: str) -> None:
    model = mlp()
    model.stage("up", 0)
    model.stage("down", 1)
    model.freeze("up.*")
    options = ml.PipelineOptions(schedule=schedule, microbatch_size=2)
    _, expected, slopes = evaluate(mlp())
    backend = ml.NumpyBackend(ml.Mesh(pipeline=2))
    compiled = ml.compile(model, backend, pipeline=options)
    outputs, gradients = compiled.evaluate(compiled.randomize_params(3), {"x": X}, {"y": SLOPE})
    np.testing.assert_allclose(outputs["y"].numpy(), expected["y"], rtol=RTOL, atol=ATOL)
    assert list(gradients) == ["down.weight", "down.bias"]
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient.numpy(), slopes[name], rtol=RTOL, atol=ATOL)


# ------------------------------------------------------------------ LoRA


@ml.layer(parameters=("weight", "lora_a", "lora_b"))
def LoraLinear(input, *, dimension: int, rank: int):  # noqa: N802
    """Multiply by a weight and add a product of two narrow ones (Hu et al., 2021)."""
    features = input.shape[-1]
    weight = ml.parameter("weight", (dimension, features), ml.Normal(0.3))
    down = ml.parameter("lora_a", (rank, features), ml.Normal(0.3))
    up = ml.parameter("lora_b", (dimension, rank), ml.Constant(0.0))
    return input @ weight.T + (input @ down.T) @ up.T


def lora() -> ml.Model:
    model = ml.Model()
    model |= LoraLinear(dimension=8, rank=2, name="up")(input="x", output="h")
    model += ml.Gelu()
    model += LoraLinear(dimension=4, rank=2, name="down")(output="y")
    model += ml.MeanSquaredError()(target="target", output="loss")
    model.trainable({"*": False, "*.lora_*": True})
    return model


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_lora_trains_its_narrow_weights_only(mesh: ml.Mesh | None) -> None:
    backend = ml.NumpyBackend(mesh)
    model = lora()
    if mesh and "tensor" in mesh.sizes:
        model.shard({"up.weight": P("tensor", None), "down.weight": P(None, "tensor")})
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params(1)
    inputs = {"x": backend.array(X, sharding=P("data") if mesh else None), "target": SLOPE}
    losses = []
    for step in range(4):
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": 1.0}, seed=step)
        assert set(gradients) == {"up.lora_a", "up.lora_b", "down.lora_a", "down.lora_b"}
        if step == 0:
            before = {name: x.numpy() for name, x in params.items()}
        for name, gradient in gradients.items():
            params[name] = params[name] - 0.5 * gradient
        losses.append(float(outputs["loss"].numpy()))
    assert losses == sorted(losses, reverse=True)
    for name in ("up.weight", "down.weight"):
        np.testing.assert_array_equal(params[name].numpy(), before[name])
    reduced = [row for row in compiled.plan.collectives() if str(row.phase) == "backward"]
    # And the loss.
    assert sum(row.bytes for row in reduced if row.axes == ("data",)) <= 4 * 2 * (6 + 8 + 8 + 4) + 4


# ------------------------------------------------------------------ what is refused


def test_a_pattern_that_matches_nothing_is_refused_with_near_names() -> None:
    model = mlp()
    model.freeze("upp.weight")
    with pytest.raises(
        ml.GraphError,
        match=r"pattern 'upp.weight' of model.freeze \(test_trainable.py:\d+\) matches no "
        r"parameter; near names: 'up.weight'",
    ):
        ml.compile(model, ml.NumpyBackend())


def test_freeze_says_where_its_old_meaning_went() -> None:
    with pytest.raises(
        ml.OptionError,
        match=r"model.freeze names no parameter \(test_trainable.py:\d+\); give patterns, .*; the "
        r"model as it is now is model.snapshot\(\)",
    ):
        mlp().freeze()
    with pytest.raises(ml.OptionError, match=r"model.freeze got 3 \(.*; give name patterns, such"):
        mlp().freeze(3)


def test_trainable_takes_a_mapping_of_flags() -> None:
    model = mlp()
    before = model.snapshot()
    with pytest.raises(ml.OptionError, match=r"model.trainable of 'up\.\*' \(.*\) is 0; give True"):
        model.trainable({"up.*": 0})
    with pytest.raises(
        ml.OptionError,
        match=r"got \['up'\] \(.*; give a mapping from name patterns, such as \{\"\*\.weight\": …\}",
    ):
        model.trainable(["up"])
    assert model.snapshot() is before


def test_rules_of_models_that_a_layer_calls() -> None:
    inner = ml.Model(name="inner")
    inner |= ml.Linear(6, name="a")(input="x", output="h")
    inner += ml.Linear(6, name="b", initializer=ml.Ones())(output="y")
    inner += ml.Linear(6, name="c")(output="z")
    inner.freeze("a.*")
    inner.initialize({"a.weight": ml.Zeros()})
    inner.tie("c.weight", "b.weight")

    @ml.layer
    def Wrapped(input):  # noqa: N802
        """Call a model, and a layer that says how it starts."""
        return ml.Linear(4, name="out", initializer=ml.Constant(2.0))(inner(input))

    model = ml.Model()
    model |= Wrapped(name="w")(input="x", output="y")
    assert "w.inner.c.weight" not in model.parameters
    backend = ml.NumpyBackend()
    compiled = ml.compile(model, backend, shapes={"x": (8, 6)})
    assert [name for name in compiled.parameters if name not in compiled.trainable] == [
        "w.inner.a.weight", "w.inner.a.bias",
    ]  # fmt: skip
    params = compiled.randomize_params()
    values = {name: set(x.numpy().ravel().tolist()) for name, x in params.items()}
    assert values["w.inner.a.weight"] == {0.0}
    assert values["w.inner.b.weight"] == {1.0}
    assert values["w.out.weight"] == {2.0}
    _, gradients = compiled.evaluate(params, {"x": X}, {"y": SLOPE})
    assert list(gradients) == list(compiled.trainable)
