"""Layers and functions on sequences that are split over a mesh equal one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mithril as ml
import numpy as np
import pytest
from mithril import P, ops
from mithril.errors import OptionError

from tests.tolerances import TOLERANCE

B, S, D = 2, 11, 16
SEQUENCE = P(None, "seq")
EXCHANGE = {"ring": "permute", "ulysses": "all_to_all", "all_gather": "all_gather"}
"""The collective by which each way brings together what attention needs."""
HOW = list(EXCHANGE)
Rows = list[tuple[str, tuple[str, ...], int]]


def block(how: str | None, **options: object) -> ml.Model:
    """A block of grouped-query attention with rotary positions."""
    model = ml.Model()
    model |= ml.RMSNorm()(input="x", output="n")
    model |= ml.MultiHeadAttention(
        num_heads=4, num_kv_heads=2, rope=True, context_parallel=how, **options
    )(input="n", output="a", **({"mask": "mask"} if options.get("name") == "masked" else {}))
    model |= ml.Add()(inputs=["x", "a"], output="r")
    model |= ml.FeedForward(24, activation="swiglu")(input="r", output="f")
    model |= ml.Add()(inputs=["r", "f"], output="y")
    return model


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def step(
    model: ml.Model,
    backend: ml.Backend,
    spec: P = P(),  # noqa: B008 - frozen
    *,
    observe: Callable[..., None] | None = None,
    length: int = S,
    **more: np.ndarray,
) -> tuple[ml.CompiledModel, Mapping[str, np.ndarray]]:
    """Return output and gradients, that of the input included."""
    compiled = ml.compile(model, backend, differentiable=("x",))
    x = backend.array(floats(B, length, D), sharding=spec)
    outputs, gradients = compiled.evaluate(
        compiled.randomize_params(1), {"x": x, **more}, {"y": floats(B, length, D, seed=1)},
        observe=observe,
    )  # fmt: skip
    return compiled, {n: v.numpy() for n, v in {**outputs, **gradients}.items()}


def agree(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert set(found) == set(expected)
    rtol, atol = TOLERANCE["float32"]
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


# ------------------------------------------------------------------ the layer


@pytest.mark.parametrize("mesh", [{"seq": 2}, {"seq": 4}, {"data": 2, "seq": 2}])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", HOW)
def test_a_block_on_split_sequences(how: str, causal: bool, mesh: dict[str, int]) -> None:
    """Of a length that does not divide; rotary positions are those of the whole sequence."""
    _, expected = step(block(None, causal=causal), ml.NumpyBackend())
    issued: Rows = []
    spec = P("data" if "data" in mesh else None, "seq")
    backend = ml.NumpyBackend(ml.Mesh(mesh))
    model = block(how, causal=causal)
    compiled, found = step(model, backend, spec, observe=lambda told: issued.append(told.row))
    agree(found, expected)
    assert tuple(issued) == compiled.plan.list_issued()
    kinds = {row.kind for row in compiled.plan.collectives() if row.phase == "forward"}
    shares_heads = how == "ulysses" and mesh["seq"] == 4  # two heads of keys on four devices
    others = {"all_gather"} if shares_heads else set()
    if how == "all_gather" and causal:
        others = {"permute"}  # of queries, to zig-zag order and back
    assert kinds == {EXCHANGE[how]} | others
    port = next(port for port in compiled.plan.stages[0].program.outputs if port.name == "y")
    axes = port.sharding.mesh.join_axes(port.sharding.dims[1])
    assert axes == ("seq",), "what is behind stays split"


@pytest.mark.parametrize("how", HOW)
def test_padding_is_hidden_by_a_mask(how: str) -> None:
    seen = np.arange(S) < np.array([[7], [S]])
    mask = seen.reshape(B, 1, 1, S)
    model = block(how, name="masked", causal=True)
    _, expected = step(model, ml.NumpyBackend(), mask=mask)
    _, found = step(model, ml.NumpyBackend(ml.Mesh(seq=4)), SEQUENCE, mask=mask)
    agree(found, expected)


@pytest.mark.parametrize("how", HOW)
def test_sequence_and_heads_over_two_axes(how: str) -> None:
    """Context parallelism over one axis, tensor parallelism over another."""
    model = block(how, causal=True)
    _, expected = step(model, ml.NumpyBackend())
    model.shard({"*.[qkv].weight": P("tensor"), "*.[qkv].bias": P("tensor")})
    model.shard({"*.o.weight": P(None, "tensor")})
    mesh = ml.Mesh(seq=2, tensor=2)
    compiled, found = step(model, ml.NumpyBackend(mesh), SEQUENCE)
    agree(found, expected)
    rows = [row for row in compiled.plan.collectives() if row.phase == "forward"]
    assert {row.axes for row in rows if row.kind != "all_reduce"} == {("seq",)}
    sums = [row.axes for row in rows if row.kind == "all_reduce"]
    assert sums == [("tensor",)], "of the output projection"


@pytest.mark.parametrize("how", HOW)
def test_a_loop_of_layers_passes_blocks_round_in_each(how: str) -> None:
    def stacked(how: str | None) -> ml.Model:
        model = ml.Model()
        layer = ml.MultiHeadAttention(4, causal=True, context_parallel=how)
        model |= ml.Repeat(layer, 3)(input="x", output="y")
        return model

    _, expected = step(stacked(None), ml.NumpyBackend())
    compiled, found = step(stacked(how), ml.NumpyBackend(ml.Mesh(seq=2)), SEQUENCE)
    agree(found, expected)
    exchanged = [row for row in compiled.plan.collectives() if row.kind != "all_reduce"]
    assert {row.times for row in exchanged} == {3}


@pytest.mark.parametrize("how", HOW)
def test_one_token_more_than_devices(how: str) -> None:
    """Some devices hold nothing but padding."""
    _, expected = step(block(None, causal=True), ml.NumpyBackend(), length=5)
    _, found = step(block(how, causal=True), ml.NumpyBackend(ml.Mesh(seq=4)), SEQUENCE, length=5)
    agree(found, expected)


@pytest.mark.parametrize("how", [None, *HOW])
@pytest.mark.parametrize("devices", [1, 3])
def test_no_token_at_all(how: str | None, devices: int) -> None:
    mesh = ml.Mesh(seq=devices) if devices > 1 else ml.Mesh()
    _, found = step(
        block(how, causal=True), ml.NumpyBackend(mesh), SEQUENCE if devices > 1 else P(), length=0
    )
    assert found["y"].shape == found["x"].shape == (B, 0, D)
    assert not any(slope.any() for name, slope in found.items() if name != "y")


def test_an_unknown_way_is_refused() -> None:
    text = "MultiHeadAttention option 'context_parallel' is 'stripes'; it must be 'ring', 'ulysses', 'all_gather' or None"
    with pytest.raises(OptionError) as raised:
        ml.MultiHeadAttention(4, context_parallel="stripes")
    assert text in str(raised.value)


# ------------------------------------------------------------------ functions


@pytest.mark.parametrize("how", HOW)
def test_in_a_function_and_its_gradient(how: str) -> None:
    def loss(q: object, k: object, v: object) -> object:
        y = ops.attention(q, k, v, causal=True, context_parallel=how)
        return ops.sum(y * y)

    arrays = [floats(B, S, 4, 4, seed=seed) for seed in range(3)]
    alone = ml.jit(ml.value_and_grad(loss, argnums=(0, 1, 2)), backend=ml.NumpyBackend())
    backend = ml.NumpyBackend(ml.Mesh(seq=4))
    split = ml.jit(
        ml.value_and_grad(loss, argnums=(0, 1, 2)), backend=backend, in_shardings=(SEQUENCE,) * 3
    )
    (value, slopes), (expected, exact) = split(*arrays), alone(*arrays)
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(value.numpy(), expected.numpy(), rtol, atol)
    for found, slope in zip(slopes, exact, strict=True):
        np.testing.assert_allclose(found.numpy(), slope.numpy(), rtol, atol)
    kinds = {row.kind for row in split.plan(*arrays).collectives()}
    others = {"permute", "reduce_scatter"} if how == "all_gather" else set()
    assert kinds == {EXCHANGE[how], "all_reduce"} | others


@pytest.mark.parametrize("how", HOW)
def test_a_precision_policy_holds_in_the_blocks(how: str) -> None:
    """Attention computes in the compute dtype; what is merged and added up is float32."""
    mesh = ml.Mesh(seq=4)
    _, expected = step(block(None, causal=True), ml.NumpyBackend())
    backend = ml.NumpyBackend(mesh, compute_dtype="bfloat16")
    compiled, found = step(block(how, causal=True), backend, SEQUENCE)
    nodes = compiled.plan.stages[0].program.graph.nodes
    blocks = [node for node in nodes if node.op.name.startswith("attention")]
    assert {str(node.inputs[0].type.dtype) for node in blocks} == {"bfloat16"}
    scale = np.abs(expected["y"]).max()
    np.testing.assert_allclose(found["y"], expected["y"], atol=0.02 * scale)


@pytest.mark.slow
def test_a_gradient_of_a_gradient() -> None:
    """Second derivatives are taken through plain attention, wherever the sequence lies."""

    def second(q: object, k: object, v: object) -> object:
        def loss(*qkv: object) -> object:
            return ops.sum(ops.tanh(ops.attention(*qkv, causal=True, context_parallel="ring")))

        return sum(ops.sum(x * x) for x in ml.grad(loss, argnums=(0, 1, 2))(q, k, v))

    arrays = [floats(B, 7, 2, 4, seed=seed) for seed in range(3)]
    slopes = ml.grad(second, argnums=(0, 1, 2))
    expected = ml.jit(slopes, backend=ml.NumpyBackend())(*arrays)
    backend = ml.NumpyBackend(ml.Mesh(seq=2))
    found = ml.jit(slopes, backend=backend, in_shardings=(SEQUENCE,) * 3)(*arrays)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), *TOLERANCE["float32"])


def test_inside_the_stages_of_a_pipeline() -> None:
    """A ring within one stage, an exchange of heads within the next, keys gathered in the last."""

    def run(backend: ml.Backend, spec: P) -> tuple[ml.CompiledModel, Mapping[str, np.ndarray]]:
        model = ml.Model()
        stages = [ml.MultiHeadAttention(4, causal=True, context_parallel=how) for how in HOW]
        model |= ml.Pipeline(stages=stages)(input="x", output="y")
        return step(model, backend, spec)

    _, expected = run(ml.NumpyBackend(), P())
    compiled, found = run(ml.NumpyBackend(ml.Mesh(stage=3, seq=2)), SEQUENCE)
    agree(found, expected)
    exchanged = {(row.kind, row.axes) for row in compiled.plan.collectives()}
    assert exchanged >= {(kind, ("seq",)) for kind in EXCHANGE.values()}
