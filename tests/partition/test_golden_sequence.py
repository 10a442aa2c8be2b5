"""The loss of a split vocabulary behind layers in sequence parallelism, as a user writes it."""

from __future__ import annotations

import mithril as ml
import numpy as np
from mithril import P
from mithril.cli.gpt import with_loss

from tests.tolerances import TOLERANCE

BATCH, SEQUENCE, WIDTH, VOCABULARY = 2, 8, 16, 64
TOKENS = ml.TensorSpec((BATCH, SEQUENCE), "int32")


def language_model() -> ml.Model:
    """Three blocks in a loop, whose activations are split over the sequence between products."""
    block = ml.Model(name="block")
    block |= ml.RMSNorm(name="norm")(input="x", output="normed")
    block += ml.FeedForward(2 * WIDTH, bias=False, name="mlp")(input="normed", output="thought")
    block += ml.Add()(inputs=["x", "thought"], output="y")
    block.shard({"mlp.up.weight": P("tensor", None), "mlp.down.weight": P(None, "tensor")})
    model = ml.Model(name="m")
    model |= ml.Embedding(VOCABULARY, WIDTH, name="embed")(input="tokens", output="embedded")
    model += ml.Repeat(block, 3, name="blocks")
    model += ml.RMSNorm(name="norm")(output="final")
    model += ml.Linear(VOCABULARY, bias=False, name="head")(output="logits")
    split = P(None, "tensor")
    model.shard({"head.weight": P("tensor", None), "embedded": split, "final": split})
    return with_loss(model)


def test_loss_of_a_split_sequence_is_three_all_reduces() -> None:
    """No number of a token is gathered, in forward or backward; the sum goes with gradients."""
    compiled = ml.compile(
        language_model(),
        ml.NumpyBackend(ml.Mesh(tensor=4)),
        shapes={"tokens": TOKENS, "target": TOKENS},
    )
    rows = [row for row in compiled.plan.collectives() if "cross" in str(row.cause)]
    numbers = 4 * BATCH * SEQUENCE
    assert [(row.kind, row.bytes) for row in rows[:2]] == [("all_reduce", numbers)] * 2
    assert [row.kind for row in rows[2:]] == ["all_reduce"]
    assert "cross_entropy_0.sum" in rows[2].cause.parts


def test_loss_of_a_split_sequence_equals_one_device() -> None:
    rng = np.random.default_rng(0)
    ids = {
        name: rng.integers(0, VOCABULARY, (BATCH, SEQUENCE)).astype(np.int32)
        for name in ("tokens", "target")
    }
    found = []
    for mesh in (ml.Mesh(), ml.Mesh(tensor=4)):
        compiled = ml.compile(language_model(), ml.NumpyBackend(mesh))
        parameters = compiled.randomize_params(seed=0)
        outputs, gradients = compiled.evaluate(parameters, ids, {"loss": np.float32(1.0)})
        arrays = {"loss": outputs["loss"], **gradients}
        found.append({name: array.numpy() for name, array in arrays.items()})
    rtol, atol = TOLERANCE["float32"]
    assert set(found[0]) == set(found[1])
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, rtol=rtol, atol=atol, err_msg=name)
