"""Random models on random meshes with random annotations equal one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mithril as ml
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mithril import P

from tests.mesh.strategies import specs
from tests.profiles import scaled
from tests.tolerances import TOLERANCE

MESHES = [
    ml.Mesh(a=2), ml.Mesh(a=3), ml.Mesh(a=4), ml.Mesh(a=2, b=2), ml.Mesh(a=2, b=3),
    ml.Mesh(a=2, b=2, order=("b", "a")), ml.Mesh(a=2, b=3, order=("b", "a")),
]  # fmt: skip
D = 12


def residual(*layers: ml.Layer) -> ml.Model:
    """Return the layers one after another, and around them a connection past them."""
    model, wire = ml.Model(), "x"
    for number, layer in enumerate(layers):
        model |= layer(input=wire, output=f"h{number}")
        wire = f"h{number}"
    model |= ml.Add()(inputs=["x", wire], output="y")
    return model


BLOCKS = {
    "linear": lambda: ml.Linear(D),
    "norm": ml.LayerNorm,
    "gelu": ml.Gelu,
    "mlp": lambda: residual(ml.LayerNorm(), ml.FeedForward(20)),
    "attention": lambda: residual(ml.MultiHeadAttention(num_heads=3, causal=True)),
    "ring": lambda: residual(
        ml.MultiHeadAttention(num_heads=3, causal=True, rope=True, context_parallel="ring")
    ),
    "all_gather": lambda: residual(
        ml.MultiHeadAttention(num_heads=3, causal=True, rope=True, context_parallel="all_gather")
    ),
    "dropout": lambda: ml.Dropout(rate=0.4),
    "loop": lambda: ml.Repeat(residual(ml.Linear(D), ml.Relu()), 3),
    "recurrent": lambda: ml.LSTM(D // 2, bidirectional=True, bias=False),
    "loop in loop": lambda: ml.Repeat(ml.GRU(D), 2),
}
PORTS = dict.fromkeys(("mlp", "attention", "ring", "all_gather"), ("x", "y"))


def build(blocks: list[str], vocabulary: int) -> ml.Model:
    model = ml.Model()
    model |= ml.Embedding(vocabulary, D, name="table")(input="tokens", output="w0")
    for number, block in enumerate(blocks):
        source, target = PORTS.get(block, ("input", "output"))
        made = BLOCKS[block]()
        model |= made(**{source: f"w{number}", target: f"w{number + 1}"})
    model |= ml.Linear(vocabulary, name="head")(input=f"w{len(blocks)}", output="logits")
    model |= ml.CrossEntropy()(input="logits", target="targets", output="loss")
    return model


@pytest.mark.slow
@settings(max_examples=scaled(40))
@given(st.data())
def test_a_mesh_equals_one_device(data: st.DataObject) -> None:
    compiled, issued = compare(data, ml.NumpyBackend)
    assert tuple(issued) == compiled.plan.list_issued()


def compare(
    data: st.DataObject,
    opened: Callable[[ml.Mesh], ml.Backend],
    *,
    observed: bool = True,
    meshes: Sequence[ml.Mesh] = MESHES,
) -> tuple[ml.CompiledModel, list[tuple[str, tuple[str, ...], int]]]:
    """Compare a random model on a random mesh of a backend with one device of NumPy's.

    Args:
        data: draws.
        opened: opens the backend on a mesh.
        observed: whether collectives are noted.
        meshes: what the mesh is drawn from.

    Returns:
        The model on the mesh, and the collectives it carried out.
    """
    blocks = data.draw(st.lists(st.sampled_from(sorted(BLOCKS)), max_size=3), label="blocks")
    mesh = data.draw(st.sampled_from(meshes), label="mesh")
    batch, vocabulary = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([7, 16]))
    rng = np.random.default_rng(0)
    tokens, targets = (rng.integers(0, vocabulary, (batch, 4)).astype(np.int32) for _ in "12")
    alone = ml.compile(build(blocks, vocabulary), ml.NumpyBackend())
    params = alone.randomize_params(1)
    inputs = {"tokens": tokens, "targets": targets}
    expected, slopes = alone.evaluate(params, inputs, {"loss": 1.0}, seed=3)

    model = build(blocks, vocabulary)
    for name, value in params.items():
        if data.draw(st.booleans(), label=f"split {name}"):
            model.shard({name: data.draw(specs(mesh, value.ndim), label=name)})
    backend = opened(mesh)
    spec = data.draw(specs(mesh, 2), label="inputs")
    placed = {name: backend.array(value, sharding=spec) for name, value in inputs.items()}
    compiled = ml.compile(model, backend)
    issued: list[tuple[str, tuple[str, ...], int]] = []
    outputs, gradients = compiled.evaluate(
        compiled.randomize_params(1),
        placed,
        {"loss": 1.0},
        seed=3,
        observe=(lambda told: issued.append(told.row)) if observed else None,
    )
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["loss"], expected["loss"], rtol=rtol, atol=atol)
    for name, value in slopes.items():
        np.testing.assert_allclose(gradients[name], value, rtol=rtol, atol=atol, err_msg=name)
    return compiled, issued


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_vocabulary_of_50257(devices: int) -> None:
    """GPT-2's vocabulary divides by nothing; loss and gradients are those of one device."""
    vocabulary, width = 50257, 4

    def model(**options: object) -> ml.Model:
        found = ml.Model()
        found |= ml.Embedding(vocabulary, width, name="table", **options)(
            input="tokens", output="embedded"
        )
        found |= ml.Linear(vocabulary, name="head", **options)(input="embedded", output="logits")
        found |= ml.CrossEntropy()(input="logits", target="targets", output="loss")
        return found

    rng = np.random.default_rng(0)
    inputs = {n: rng.integers(0, vocabulary, (2, 3)) for n in ("tokens", "targets")}
    alone = ml.compile(model(), ml.NumpyBackend())
    expected, slopes = alone.evaluate(alone.randomize_params(), inputs, {"loss": 1.0})
    backend = ml.NumpyBackend(ml.Mesh(tensor=devices))
    split = ml.compile(model(sharding={"weight": P("tensor")}), backend)
    params = split.randomize_params()
    outputs, gradients = split.evaluate(params, inputs, {"loss": 1.0})
    assert params["head.weight"].addressable_shards[0].data.shape == (-(-vocabulary // devices), 4)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["loss"], expected["loss"], rtol=rtol, atol=atol)
    for name, value in slopes.items():
        np.testing.assert_allclose(gradients[name], value, rtol=rtol, atol=atol, err_msg=name)
    tokens = 4 * 2 * 3
    loss = 4  # travels with a gradient
    assert max(row.bytes for row in split.plan.collectives()) == tokens * width + loss
