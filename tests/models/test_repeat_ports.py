"""Repeat of blocks with several inputs and outputs: carried, shared by all repetitions, stacked."""

from __future__ import annotations

import mithril as ml
import numpy as np
import pytest
from mithril import P

from tests.tolerances import TOLERANCE

N, D = 4, 8


def cross_block(dropout: float = 0.0) -> ml.Model:
    """Return a block of a decoder: it attends to itself, behind a cache, and to a memory."""
    model = ml.Model()
    model |= ml.LayerNorm(name="norm")(input="x", output="normed")
    model |= ml.Linear(D, name="q", sharding={"weight": P("tensor", None)})(
        input="normed", output="query"
    )
    model |= ml.MatMul()(left="query", right="turned", output="scores")
    model |= ml.Add()(inputs=["scores", "mask"], output="masked")
    model |= ml.Softmax()(input="masked", output="seen")
    model |= ml.MatMul()(left="seen", right="memory", output="read")
    model |= ml.Dropout(dropout, name="drop")(input="read", output="kept")
    model |= ml.Concat(axis=1)(inputs=["cache", "normed"], output="longer")
    model |= ml.Mean(axis=1, keepdims=True)(input="longer", output="mean")
    model |= ml.Tanh()(input="longer", output="new_cache")
    model |= ml.Add()(inputs=["x", "kept", "mean"], output="y")
    return model


PORTS = ("cache", "turned", "mask", "memory")


def decoder(dropout: float = 0.0, looped: bool = True) -> ml.Model:
    """Return the blocks as a loop, or one after another."""
    model = ml.Model()
    model |= ml.Transpose()(input="memory", output="turned")
    if looped:
        blocks = ml.Repeat(
            cross_block(dropout), N, carry={"x": "y"}, stacked=("cache",), name="blocks"
        )
        model |= blocks(
            x="input", cache="caches", turned="turned", mask="mask", memory="memory", y="output",
            new_cache="new_caches",
        )  # fmt: skip
        return model
    wire = "input"
    for i in range(N):
        block = cross_block()
        model |= block(
            x=wire, cache=f"cache_{i}", turned="turned", mask="mask", memory="memory",
            y=f"y_{i}", new_cache=f"new_{i}",
        )  # fmt: skip
        wire = f"y_{i}"
    return model


def decoder_inputs(batch: int = 4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    shapes = {
        "input": (batch, 3, D), "memory": (batch, 5, D), "mask": (3, 5), "caches": (N, batch, 2, D),
    }  # fmt: skip
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


SPLIT = {"input": P("data"), "memory": P("data"), "mask": P(), "caches": P(None, "data")}


def decode(mesh: ml.Mesh, dropout: float = 0.0, model: ml.Model | None = None, **options: object):
    """Return outputs and gradients, also of the inputs, and the compiled model."""
    backend, inputs = ml.NumpyBackend(mesh), decoder_inputs()
    compiled = ml.compile(
        decoder(dropout) if model is None else model,
        backend,
        differentiable=list(inputs),
        **options,
    )
    axes = mesh.names
    given = {
        name: backend.array(value, sharding=SPLIT[name] if "data" in axes else P())
        for name, value in inputs.items()
    }
    rng = np.random.default_rng(3)
    cotangents = {
        "output": rng.standard_normal((4, 3, D)).astype(np.float32),
        "new_caches": rng.standard_normal((N, 4, 5, D)).astype(np.float32),
    }
    params = compiled.randomize_params(0)
    return params, *compiled.evaluate(params, given, cotangents, seed=5), cotangents, compiled


def agree(found: dict, expected: dict) -> None:
    rtol, atol = TOLERANCE["float32"]
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


def test_carried_shared_and_stacked_inputs_equal_the_blocks_written_out() -> None:
    params, outputs, gradients, cotangents, _ = decode(ml.Mesh())
    backend, inputs = ml.NumpyBackend(), decoder_inputs()
    caches = {f"cache_{i}": inputs["caches"][i] for i in range(N)}
    apart = {n: v for n, v in inputs.items() if n != "caches"} | caches
    compiled = ml.compile(decoder(looped=False), backend, differentiable=list(apart))
    own = {
        name.replace("blocks", f"model_{i}"): backend.array(value.numpy()[i])
        for name, value in params.items()
        for i in range(N)
    }
    slopes = {f"new_{i}": cotangents["new_caches"][i] for i in range(N)}
    slopes[f"y_{N - 1}"] = cotangents["output"]
    expected, wanted = compiled.evaluate(own, apart, slopes)

    def together(found: dict, part: str) -> np.ndarray:
        return np.stack([found[part.format(i)].numpy() for i in range(N)])

    agree(outputs, {"output": expected[f"y_{N - 1}"], "new_caches": together(expected, "new_{}")})
    shared = {name: wanted[name] for name in ("input", "memory", "mask")}
    stacked = {n: together(wanted, n.replace("blocks", "model_{}")) for n in params}
    agree(gradients, {**shared, **stacked, "caches": together(wanted, "cache_{}")})


MESHES = [{"data": 2}, {"tensor": 2}, {"data": 2, "tensor": 2}, {"data": 3}]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_decoder_on_a_mesh_equals_one_device(mesh: dict[str, int], dropout: float) -> None:
    _, expected, slopes, _, _ = decode(ml.Mesh(), dropout)
    on = ml.Mesh(mesh if "tensor" in mesh else {**mesh, "tensor": 1})
    _, outputs, gradients, _, _ = decode(on, dropout)
    agree(outputs, expected)
    agree(gradients, slopes)


def test_a_cut_decoder_hands_stacks_to_its_stages() -> None:
    """In micro-batches: what is stacked has the batch in its second dimension."""
    _, expected, slopes, _, _ = decode(ml.Mesh(), 0.4)
    model = decoder(0.4)
    model.stage("transpose_0", 0)
    model.stage("blocks", [0, 1])
    mesh = ml.Mesh(data=2, tensor=1, pipeline=2)
    pipeline = ml.PipelineOptions(microbatch_size=1, axis="pipeline")
    _, outputs, gradients, _, compiled = decode(mesh, model=model, pipeline=pipeline)
    agree(outputs, expected)
    agree(gradients, slopes)
    assert compiled.plan.specs["blocks.q.weight"].sharding.spec.axes(0) == ("pipeline",)


def mixture() -> ml.Model:
    block = ml.Model()
    block |= ml.MoE(4, 6, device_mesh=(2,), jitter=0.1, name="moe")(input="x", output="mixed")
    block |= ml.Add()(inputs=["x", "mixed"], output="y")
    model = ml.Model()
    model |= ml.Repeat(block, 3, carry={"x": "y"}, name="blocks")(
        x="input", y="output", load_balancing_loss="losses"
    )
    return model


def test_a_mixture_of_experts_stacks_its_losses() -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, D)).astype(np.float32)
    found = []
    for mesh in (ml.Mesh(), ml.Mesh(data=2)):
        backend = ml.NumpyBackend(mesh)
        compiled = ml.compile(mixture(), backend)
        given = {"input": backend.array(x, sharding=P("data") if mesh.size > 1 else P())}
        wanted = {"output": x, "losses": np.ones(3, np.float32)}
        found.append(compiled.evaluate(compiled.randomize_params(0), given, wanted, seed=2))
    for one, other in zip(*found, strict=True):
        agree(other, one)
    outputs, slopes = found[0]
    assert outputs["losses"].shape == (3,)
    assert outputs["tokens_per_expert"].shape == (3, 4)
    assert slopes["blocks.moe.router.weight"].shape == (3, 4, D)
    kinds = [(row.kind, row.times) for row in compiled.plan.collectives()]
    assert kinds.count(("all_to_all", 3)) == 4, "there and back, each way"


def test_a_lone_mixture_carries_its_output() -> None:
    layer = ml.Repeat(ml.MoE(4, 6), 2)
    assert layer.input_ports == ("input",)
    assert layer.output_ports[:2] == ("output", "load_balancing_loss")


def test_experts_of_a_loop_need_their_devices() -> None:
    model = ml.Model()
    model |= ml.Repeat(ml.MoE(4, 6, expert_distribution={0: 0, 1: 0, 2: 1, 3: 1}), 2)(input="x")
    with pytest.raises(ml.OptionError, match="experts"):
        ml.compile(model, ml.NumpyBackend(ml.Mesh(data=4)), shapes={"x": (4, 3, D)})


def test_several_values_are_carried() -> None:
    """The sums of Fibonacci's numbers, as a block of two inputs and two outputs."""
    block = ml.Model()
    block |= ml.Add()(inputs=["a", "b"], output="next")
    block |= ml.Mean(())(input="b", output="same")
    model = ml.Model()
    loop = ml.Repeat(block, 5, carry={"a": "same", "b": "next"})
    model |= loop(a="x", b="y", same="u", next="v")
    assert loop.described == "Repeat(model, 5, carry={'a': 'same', 'b': 'next'})"
    one = np.ones((1, 1), np.float32)
    made = ml.compile(model, ml.NumpyBackend()).evaluate({}, {"x": one * 0, "y": one})
    assert (made["u"].item(), made["v"].item()) == (5, 8)


def test_nothing_need_be_carried() -> None:
    model = ml.Model()
    model |= ml.Repeat(ml.Linear(3), 2, carry={}, stacked=("input",))(input="x", output="y")
    backend = ml.NumpyBackend()
    compiled = ml.compile(model, backend, shapes={"x": (2, 5, 4)})
    params = compiled.randomize_params()
    x = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
    weight, bias = (params[f"repeat_0.{name}"].numpy() for name in ("weight", "bias"))
    expected = np.einsum("nby,nzy->nbz", x, weight) + bias[:, None]
    agree(compiled.evaluate(params, {"x": x}), {"y": expected})


def test_inputs_that_a_layer_does_not_need_are_shared() -> None:
    layer = ml.Repeat(ml.MultiHeadAttention(2), 2)
    assert layer.input_ports == ("input",)
    assert "mask" in layer.optional_ports
    x = np.random.default_rng(0).standard_normal((2, 4, D)).astype(np.float32)
    seen = np.tril(np.ones((4, 4), bool))
    made = {}
    for causal in (True, False):
        model = ml.Model()
        loop = ml.Repeat(ml.MultiHeadAttention(2, causal=causal), 2, name="loop")
        model |= loop(input="x", output="y") if causal else loop(input="x", mask="m", output="y")
        compiled = ml.compile(model, ml.NumpyBackend())
        given = {"x": x} if causal else {"x": x, "m": seen}
        made[causal] = compiled.evaluate(compiled.randomize_params(0), given)
    agree(made[True], made[False])


def test_dropout_of_a_decoder_differs_between_repetitions_and_seeds() -> None:
    inner = ml.Model()
    inner |= ml.Dropout(0.5)(input="x", output="y")
    inner |= ml.Mean(())(input="y", output="seen")
    model = ml.Model()
    model |= ml.Repeat(inner, 3, carry={}, stacked=("x",))(x="input", seen="masks")
    ones = np.ones((3, 40), np.float32)
    compiled = ml.compile(model, ml.NumpyBackend())
    masks = compiled.evaluate({}, {"input": ones}, seed=1)["masks"].numpy()
    assert len({row.tobytes() for row in masks}) == 3
    mesh = ml.compile(model, ml.NumpyBackend(ml.Mesh(data=4)))
    np.testing.assert_array_equal(mesh.evaluate({}, {"input": ones}, seed=1)["masks"], masks)
    assert (compiled.evaluate({}, {"input": ones}, seed=2)["masks"].numpy() != masks).any()


def test_a_block_all_of_whose_inputs_are_stacked_carries_nothing() -> None:
    model = ml.Model()
    model |= ml.Repeat(ml.Relu(), 3, stacked=("input",))(input="x", output="y")
    x = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
    found = ml.compile(model, ml.NumpyBackend()).evaluate({}, {"x": x})["y"]
    np.testing.assert_array_equal(found.numpy(), np.maximum(x, 0))
