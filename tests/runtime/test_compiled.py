"""Compiled models: what they compute, when they plan anew, and what the plan says."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

F32 = np.float32


def close(found: object, expected: object) -> None:
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=rtol, atol=atol)


def gpt(heads: int = 4) -> ml.Model:
    model = ml.Model()
    model |= ml.Embedding(vocab_size=24, embedding_dim=16, name="embed")(input="tokens", output="e")
    model += ml.PositionalEncoding(max_len=8)(input="e", output="x")
    model += ml.LayerNorm(name="norm")(input="x", output="n")
    model += ml.MultiHeadAttention(num_heads=heads, causal=True, name="attn")(input="n", output="a")
    model += ml.Add()(inputs=["x", "a"], output="r")
    model += ml.FeedForward(hidden_dim=32, name="mlp")(input="r", output="f")
    model += ml.Linear(24, name="head")(input="f", output="logits")
    model += ml.CrossEntropy()(input="logits", target="target", output="loss")
    return model


def cnn() -> ml.Model:
    model = ml.Model()
    model |= ml.Conv2d(filters=8, kernel_size=3, padding=1, name="conv")(
        input="picture", output="c"
    )
    model += ml.Relu()(input="c", output="r")
    model += ml.MaxPool2d(kernel_size=2)(input="r", output="p")
    model += ml.Flatten()(input="p", output="f")
    model += ml.Linear(6, name="head")(input="f", output="output")
    return model


MEGATRON = {
    "attn.[qkv].weight": P("tensor", None),
    "attn.o.weight": P(None, "tensor"),
    "mlp.up.weight": P("tensor", None),
    "mlp.down.weight": P(None, "tensor"),
}
MESHES = [{}, {"data": 4}, {"tensor": 4}, {"data": 2, "tensor": 2}, {"data": 2, "tensor": 4}]


def results(model: ml.Model, mesh: dict[str, int], inputs: dict[str, np.ndarray], gradient: str):
    backend = ml.NumpyBackend(ml.Mesh(mesh))
    split = P("data") if "data" in mesh else P()
    arrays = {name: backend.array(x, sharding=split) for name, x in inputs.items()}
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params(seed=1)
    outputs = compiled.evaluate(params, arrays)
    seed = backend.ones_like(outputs[gradient])
    again, gradients = compiled.evaluate(params, arrays, {gradient: seed})
    for name, value in outputs.items():
        close(again[name], value)
    for name, value in gradients.items():
        assert value.sharding == params[name].sharding, name
    return {**outputs, **gradients}, compiled


@pytest.mark.parametrize("mesh", MESHES[1:], ids=str)
def test_gpt_on_a_mesh_equals_one_device(mesh: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    inputs = {name: rng.integers(0, 24, (8, 8)).astype(np.int32) for name in ("tokens", "target")}
    model = gpt()
    expected, _ = results(model, {}, inputs, "loss")
    if "tensor" in mesh:
        model.shard(MEGATRON)
    found, compiled = results(model, mesh, inputs, "loss")
    assert set(found) == set(expected)
    for name, value in expected.items():
        close(found[name], value)
    if "tensor" in mesh:
        spec = compiled.plan.specs["attn.q.weight"]
        assert spec.sharding.spec == P("tensor", None)
        assert spec.decided_by.startswith("the annotation P('tensor', None) (test_compiled.py:")


@pytest.mark.parametrize("mesh", [{"data": 4}, {"data": 2, "tensor": 2}], ids=str)
def test_cnn_on_a_mesh_equals_one_device(mesh: dict[str, int]) -> None:
    picture = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(F32)
    model = cnn()
    expected, _ = results(model, {}, {"picture": picture}, "output")
    if "tensor" in mesh:
        model.shard({"conv.weight": P("tensor")})
    found, compiled = results(model, mesh, {"picture": picture}, "output")
    for name, value in expected.items():
        close(found[name], value)
    if "tensor" in mesh:
        assert compiled.plan.specs["conv.bias"].sharding.spec == P("tensor")


def test_gradients_equal_finite_differences() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    model = ml.Model()
    model |= ml.Linear(5, name="a")(input="x", output="h")
    model += ml.Gelu()(input="h", output="g")
    model += ml.MeanSquaredError()(input="g", target="t", output="loss")
    compiled = ml.compile(model, backend)
    rng = np.random.default_rng(0)
    inputs = {
        "x": backend.array(rng.standard_normal((4, 3)), tensor_split=(0,)),
        "t": backend.array(rng.standard_normal((4, 5)), tensor_split=(0,)),
    }
    params = compiled.randomize_params()
    outputs, gradients = compiled.evaluate(params, inputs, {"loss": backend.ones()})
    for name, x in params.items():
        direction = rng.standard_normal(x.shape).astype(F32)
        step = 1e-2
        sides = []
        for sign in (1, -1):
            moved = {**params, name: x + sign * step * backend.array(direction)}
            sides.append(float(compiled.evaluate(moved, inputs)["loss"]))
        slope = float((gradients[name] * backend.array(direction)).sum())
        assert abs((sides[0] - sides[1]) / (2 * step) - slope) < 1e-3, name
    assert outputs["loss"].shape == ()


def test_output_gradients_may_cover_some_outputs() -> None:
    backend = ml.NumpyBackend()
    model = ml.Model()
    model |= ml.Linear(3, name="one")(input="x", output="a")
    model |= ml.Linear(3, name="two")(input="x", output="b")
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params()
    x = {"x": backend.ones(2, 4)}
    outputs, gradients = compiled.evaluate(params, x, {"a": backend.ones(2, 3)})
    assert set(outputs) == {"a", "b"}
    assert set(gradients) == set(params)
    close(gradients["two.weight"], np.zeros((3, 4)))
    close(gradients["one.bias"], np.full(3, 2.0))


def test_out_shardings_override_what_is_computed() -> None:
    backend = ml.NumpyBackend(device_mesh=(4,))
    x = {"input": backend.ones(8, 6, tensor_split=(0,))}
    for wanted, local in [(None, (2, 4)), (P(), (8, 4)), (P(None, "data"), (8, 1))]:
        compiled = ml.compile(ml.Linear(4), backend, out_shardings=wanted)
        output = compiled.evaluate(compiled.randomize_params(), x)["output"]
        assert output.addressable_shards[0].data.shape == local
    by_name = ml.compile(ml.Linear(4), backend, out_shardings={"output": P()})
    assert by_name.evaluate(by_name.randomize_params(), x)["output"].sharding.is_replicated


def test_a_signature_is_planned_once() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    compiled = ml.compile(ml.Linear(4), backend)
    params = compiled.randomize_params()
    x = backend.ones(4, 6)
    for _ in range(3):
        compiled.evaluate(params, {"input": x})
    assert compiled.recompiles == 1
    compiled.evaluate(params, {"input": backend.ones(4, 6, tensor_split=(0,))})
    assert compiled.recompiles == 2
    compiled.evaluate(params, {"input": x}, {"output": backend.ones(4, 4)})
    assert compiled.recompiles == 3
    compiled.evaluate({name: 2 * value for name, value in params.items()}, {"input": x})
    assert compiled.recompiles == 3


def test_a_compiled_model_is_a_snapshot() -> None:
    backend = ml.NumpyBackend()
    model = ml.Model()
    model |= ml.Linear(4)(input="input", output="output")
    compiled = ml.compile(model, backend)
    model += ml.Relu()(input="output", output="last")
    assert compiled.outputs == ("output",)
    outputs = compiled.evaluate(compiled.randomize_params(), {"input": np.ones((2, 3), F32)})
    assert set(outputs) == {"output"}


def test_a_concrete_array_beats_the_annotation() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    model = ml.Linear(4, sharding={"weight": P("data", None)})
    compiled = ml.compile(model, backend)
    params = {
        "weight": backend.ones(4, 6, sharding=P(None, "data")),
        "bias": backend.ones(4, sharding=P()),
    }
    outputs = compiled.evaluate(params, {"input": backend.ones(2, 6)})
    close(outputs["output"], np.full((2, 4), 7.0))
    assert compiled.plan.specs["weight"].sharding.spec == P(None, "data")
    assert [row.kind for row in compiled.plan.collectives()] == ["all_reduce"]


def test_annotations_are_ignored_on_one_device_and_the_plan_says_so() -> None:
    model = ml.Linear(4, weight_shard_spec=(0, None), device_mesh=(4,))
    compiled = ml.compile(model, ml.NumpyBackend(), shapes={"input": (2, 3)})
    note = "annotations ignored, because the backend has one device: 1"
    assert note in str(compiled.plan)
    assert f"note: {note}" in compiled.explain()


def test_dropout_is_one_mask_per_seed_on_every_mesh() -> None:
    def masks(mesh: tuple[int, ...], seed: int) -> np.ndarray:
        backend = ml.NumpyBackend(device_mesh=mesh or None)
        compiled = ml.compile(ml.Dropout(rate=0.25), backend)
        split = {"tensor_split": (0, 1)[: len(mesh)]} if mesh else {}
        x = backend.ones(64, 32, **split)
        return compiled.evaluate({}, {"input": x}, seed=seed)["output"].numpy()

    whole = masks((), 3)
    assert set(np.unique(whole)) == {F32(0), F32(1 / 0.75)}
    assert abs((whole == 0).mean() - 0.25) < 0.03
    np.testing.assert_array_equal(whole, masks((4,), 3))
    np.testing.assert_array_equal(whole, masks((2, 2), 3))
    assert not np.array_equal(whole, masks((), 4))


def test_dropout_forward_and_backward_agree_and_inference_turns_it_off() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    model = ml.Model()
    model |= ml.Linear(8, bias=False, name="fc")(input="x", output="h")
    model += ml.Dropout(rate=0.5)(input="h", output="output")
    compiled = ml.compile(model, backend)
    params = {"fc.weight": backend.array(np.eye(8))}
    x = {"x": backend.ones(4, 8, tensor_split=(0,))}
    outputs, gradients = compiled.evaluate(params, x, {"output": backend.ones(4, 8)}, seed=5)
    close(gradients["fc.weight"].numpy()[:, 0], outputs["output"].numpy().sum(0))
    inference = ml.compile(model, backend, inference=True)
    close(inference.evaluate(params, x, seed=5)["output"], np.ones((4, 8)))


def test_a_layer_used_twice_shares_its_parameters() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    shared = ml.Linear(4, bias=False, name="fc")
    model = ml.Model()
    model |= shared(input="x", output="y")
    model |= shared(input="y", output="z")
    compiled = ml.compile(model, backend)
    assert compiled.parameters == ("fc.weight",)
    params = {"fc.weight": backend.array(2 * np.eye(4))}
    outputs, gradients = compiled.evaluate(
        params, {"x": backend.ones(2, 4, tensor_split=(0,))}, {"z": backend.ones(2, 4)}
    )
    close(outputs["z"], np.full((2, 4), 4.0))
    close(gradients["fc.weight"], np.full((4, 4), 8.0))


def test_an_intermediate_value_lies_where_the_user_says() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    model = ml.Model()
    model |= ml.Linear(8, name="a")(input="input", output="hidden")
    model += ml.Relu()(input="hidden", output="output")
    model.shard({"hidden": P(None, "tensor")})
    compiled = ml.compile(model, backend, shapes={"input": (4, 6)})
    report = compiled.plan.specs["hidden"]
    assert report.sharding.spec == P(None, "tensor")
    assert report.decided_by == "the user"
    assert compiled.plan.specs["a.weight"].sharding.spec == P("tensor", None)


def test_executed_collectives_are_the_plan() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    model = gpt()
    model.shard(MEGATRON)
    compiled = ml.compile(model, backend)
    tokens = backend.randint(0, 24, (8, 8), sharding=P("data"))
    executed: list[tuple[str, tuple[str, ...], int]] = []
    compiled.evaluate(
        compiled.randomize_params(),
        {"tokens": tokens, "target": tokens},
        {"loss": backend.ones()},
        observe=lambda told: executed.append(told.row),
    )
    rows = [(row.kind, row.axes, row.bytes) for row in compiled.plan.collectives()]
    assert executed == rows
    assert rows
    assert sum(compiled.plan.bytes_by_axis().values()) == sum(row[2] for row in rows)


def test_every_collective_is_explained_with_layer_and_line() -> None:
    backend = ml.NumpyBackend(ml.Mesh(data=2, tensor=2))
    model = gpt()
    model.shard(MEGATRON)
    spec = ml.TensorSpec((8, 8), "int32", P("data"))
    compiled = ml.compile(model, backend, shapes={"tokens": spec, "target": spec})
    text = compiled.explain()
    for row in compiled.plan.collectives():
        assert f"{row.kind} over {' x '.join(row.axes)}, {row.bytes} bytes" in text
        assert row.cause.parts or (row.scope and row.source.startswith("test_compiled.py:")), row
    assert "from attn.o (test_compiled.py:" in text
    assert "gradients.head.weight" in text


def test_an_axis_of_one_device_moves_nothing() -> None:
    backend = ml.NumpyBackend(device_mesh=(1, 2))
    x = backend.ones(4, 6, sharding=P("data"))
    assert x.sharding.is_replicated
    compiled = ml.compile(ml.Linear(3), backend)
    compiled.evaluate(compiled.randomize_params(), {"input": x}, {"output": backend.ones(4, 3)})
    assert compiled.plan.collectives() == ()


TWO_AXES = [
    None, P("data"), P("model"), P(None, "data"), P(None, "model"), P("data", "model"),
    P("model", "data"), P(("data", "model")),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("first", TWO_AXES, ids=str)
def test_two_linears_in_every_sharding_equal_one_device(first: P | None) -> None:
    """Forward alone, then forward and backward with the parameters the first plan laid out."""
    values = np.random.default_rng(0).standard_normal((4, 8)).astype(F32)

    def evaluate(mesh: tuple[int, ...] | None, rules: dict[str, P], split: P):
        model = ml.Model()
        model |= ml.Linear(8, name="a")(input="x", output="h")
        model += ml.Linear(8, name="b")(input="h", output="o")
        model.shard(rules)
        backend = ml.NumpyBackend(mesh)
        compiled = ml.compile(model, backend)
        params = compiled.randomize_params()
        x = {"x": backend.array(values, sharding=split)}
        alone = compiled.evaluate(params, x)
        outputs, gradients = compiled.evaluate(params, x, {"o": backend.ones(4, 8)})
        assert not any(x.sharding.partial for x in params.values())
        close(outputs["o"], alone["o"])
        return {**outputs, **gradients}

    expected = evaluate(None, {}, P())
    for second in TWO_AXES:
        for split in (P(), P("data"), P(None, ("model", "data"))):
            rules = {"a.weight": first, "b.weight": second}
            found = evaluate((2, 2), {k: v for k, v in rules.items() if v}, split)
            for name, value in expected.items():
                close(found[name], value)


def test_a_layout_the_plan_chose_does_not_bind_later_plans() -> None:
    backend = ml.NumpyBackend(device_mesh=(4,))

    def collectives(evaluated_before: bool) -> int:
        model = ml.Model()
        model |= ml.Linear(8, name="a")(input="x", output="h")
        model += ml.Linear(8, name="b")(input="h", output="o")
        compiled = ml.compile(model, backend)
        params = compiled.randomize_params()
        if evaluated_before:
            compiled.evaluate(params, {"x": backend.ones(8, 8, sharding=P(None, "data"))})
            assert params["a.weight"].sharding.spec == P(None, "data")
        x = backend.ones(8, 8, sharding=P("data"))
        compiled.evaluate(params, {"x": x})
        assert compiled.plan.specs["o"].sharding.spec == P("data")
        return len(compiled.plan.collectives())

    assert collectives(evaluated_before=False) == 0
    assert collectives(evaluated_before=True) == 1  # the weight is gathered, nothing else


def test_a_missing_collective_is_said_when_planning() -> None:
    from dataclasses import dataclass

    from mithril.engine.numpy_engine import NumpyEngine

    @dataclass(frozen=True, slots=True)
    class Mute(NumpyEngine):
        @property
        def capabilities(self) -> frozenset[str]:
            return frozenset()

    backend = ml.Backend(Mute(ml.Mesh(data=2)))
    x = backend.ones(4, sharding=P("data"))
    with pytest.raises(
        ml.BackendError, match=r"'numpy' has no all_reduce, and .* needs one over data"
    ):
        x.sum()


def test_forward_reductions_are_not_called_gradients() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    model = ml.Model()
    model |= ml.MeanSquaredError(name="one")(input="x", target="t", output="a")
    model |= ml.MeanSquaredError(name="two")(input="t", target="x", output="b")
    spec = ml.TensorSpec((4, 4), sharding=P("data"))
    compiled = ml.compile(model, backend, shapes={"x": spec, "t": spec}, inference=True)
    (row,) = compiled.plan.collectives()
    assert (row.cause.value, row.cause.consumer) == ("2 values", "value bucket")


def test_an_input_the_user_placed_is_reported_where_it_is_used() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    model = ml.Model()
    model |= ml.Relu()(input="x", output="y")
    model.shard({"x": P("data")})
    compiled = ml.compile(model, backend, shapes={"x": (4, 4)})
    report = compiled.plan.specs["x"]
    assert (report.sharding.spec, report.decided_by) == (P("data"), "the user")


def test_an_input_may_be_named_seed() -> None:
    model = ml.Model()
    model |= ml.Relu()(input="seed", output="output")
    compiled = ml.compile(model, ml.NumpyBackend())
    outputs = compiled.evaluate({}, {"seed": np.array([-1.0, 2.0], F32)}, seed=7)
    close(outputs["output"], [0.0, 2.0])


def test_a_plugin_shares_the_plans_of_evaluations() -> None:
    backend = ml.NumpyBackend(device_mesh=(2,))
    compiled = ml.compile(ml.Linear(3), backend, differentiable=["input"])
    shapes = {"input": (4, 2)}
    planned = compiled.plan_for(shapes)
    program = compiled.program_for(shapes, gradients=True, differentiable=["input"])
    assert program.plan.stages[0].program is planned.stages[0].program
    assert compiled.recompiles == 1
    assert compiled.program_for(shapes, gradients=True, differentiable=[]).gradients.keys() == {
        "weight", "bias"
    }  # fmt: skip
    assert compiled.recompiles == 1
