"""Norms and dropout on a part of the sequence, between layers that split heads and features.

Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022): each
all-reduce of tensor parallelism becomes a reduce-scatter and an all-gather of the same bytes, and
what lies between is computed, and kept, once instead of on every device. Nothing is asked for but
where the values of the residual stream lie.
"""

from __future__ import annotations

from collections.abc import Mapping

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.plan import Plan

from tests.tolerances import TOLERANCE

B, S, D, RATE = 2, 8, 16, 0.4
BETWEEN = P(None, "tensor")
COLUMNS = dict.fromkeys(("*.[qkv].weight", "*.[qkv].bias", "up.weight", "up.bias"), P("tensor"))
ROWS = {"*.o.weight": BETWEEN, "down.weight": BETWEEN}


def block(stream: P | None, how: str | None = None) -> ml.Model:
    """A pre-norm block with dropout before each sum; the stream lies as it is told."""
    model = ml.Model()
    model |= ml.LayerNorm()(input="x", output="n1")
    attention = ml.MultiHeadAttention(4, causal=True, context_parallel=how)
    model |= attention(input="n1", output="a")
    model |= ml.Dropout(RATE, name="drop1")(input="a", output="d1")
    model |= ml.Add()(inputs=["x", "d1"], output="r")
    model |= ml.LayerNorm()(input="r", output="n2")
    model |= ml.Linear(4 * D, name="up")(input="n2", output="h")
    model |= ml.Gelu()(input="h", output="g")
    model |= ml.Linear(D, name="down")(input="g", output="f")
    model |= ml.Dropout(RATE, name="drop2")(input="f", output="d2")
    model |= ml.Add()(inputs=["r", "d2"], output="y")
    if stream is not None:
        model.shard({**COLUMNS, **ROWS, "r": stream, "y": stream})
    return model


def step(
    model: ml.Model, backend: ml.Backend, spec: P, length: int = S
) -> tuple[Plan, Mapping[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((2, B, length, D)).astype(np.float32)
    compiled = ml.compile(model, backend, differentiable=("x",))
    given = {"x": backend.array(x, sharding=spec)}
    outputs, gradients = compiled.evaluate(compiled.randomize_params(1), given, {"y": g}, seed=5)
    return compiled.plan, {n: v.numpy() for n, v in {**outputs, **gradients}.items()}


def agree(found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    rtol, atol = TOLERANCE["float32"]
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("length", [S, 7])
@pytest.mark.parametrize("devices", [2, 4])
def test_norms_and_dropout_run_on_parts_of_the_sequence(devices: int, length: int) -> None:
    _, expected = step(block(None), ml.NumpyBackend(), P(), length)
    plan, found = step(block(BETWEEN), ml.NumpyBackend(ml.Mesh(tensor=devices)), BETWEEN, length)
    agree(found, expected)
    rows = [(str(row.phase), row.kind) for row in plan.collectives()]
    for phase in ("forward", "backward"):
        assert rows.count((phase, "all_gather")) == 2
        assert rows.count((phase, "reduce_scatter")) == 2
    assert rows.count(("forward", "all_reduce")) == 0
    assert len(rows) == 8 + rows.count(("backward", "all_reduce"))
    part = -(-length // devices)
    norms_and_masks = [
        node.outputs[0].type.shape
        for node in plan.stages[0].program.graph.nodes
        if node.op.name in ("layer_norm", "random_bits")
    ]
    assert norms_and_masks == [(B, part, D)] * len(norms_and_masks)
    assert len(norms_and_masks) >= 4


def test_the_same_bytes_as_tensor_parallelism_alone() -> None:
    """What the gains and biases of the stream add aside: their gradients are sums over parts."""
    split, _ = step(block(BETWEEN), ml.NumpyBackend(ml.Mesh(tensor=4)), BETWEEN)
    whole, _ = step(block(P()), ml.NumpyBackend(ml.Mesh(tensor=4)), P())
    moved = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    forward = [
        sum(moved[row.kind] * row.bytes for row in plan.collectives() if row.phase == "forward")
        for plan in (split, whole)
    ]
    assert forward[0] == forward[1] == 2 * 2 * 4 * B * S * D


KINDS = {
    "ring": {"permute"},
    "ulysses": {"all_to_all"},
    "all_gather": {"all_gather", "permute"},
}


@pytest.mark.parametrize(("how", "kinds"), KINDS.items())
def test_beside_sequences_split_for_attention(how: str, kinds: set[str]) -> None:
    """Sequences over `seq` throughout, heads and features over `tensor`, dropout included."""
    _, expected = step(block(None), ml.NumpyBackend(), P(), 11)
    stream = P(None, "seq")
    mesh = ml.Mesh(seq=2, tensor=2)
    plan, found = step(block(stream, how), ml.NumpyBackend(mesh), stream, 11)
    agree(found, expected)
    forward = [(row.kind, row.axes) for row in plan.collectives() if row.phase == "forward"]
    assert forward.count(("all_reduce", ("tensor",))) == 2
    others = {row for row in forward if row[0] != "all_reduce"}
    assert others == {(kind, ("seq",)) for kind in kinds}


def test_dropout_drops_the_same_elements_on_every_mesh() -> None:
    x = np.ones((B, 13, D), np.float32)

    def dropped(backend: ml.Backend, spec: P) -> np.ndarray:
        compiled = ml.compile(ml.Dropout(RATE), backend)
        given = {"input": backend.array(x, sharding=spec)}
        return compiled.evaluate({}, given, seed=3)["output"].numpy()

    expected = dropped(ml.NumpyBackend(), P())
    assert 0.3 < (expected == 0).mean() < 0.5
    for count in (2, 4):
        found = dropped(ml.NumpyBackend(ml.Mesh(tensor=count)), BETWEEN)
        np.testing.assert_array_equal(found, expected)
