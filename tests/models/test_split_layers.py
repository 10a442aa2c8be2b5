"""What layers exchange where channels, heads, classes or the batch are split: never a gather."""

from __future__ import annotations

from collections.abc import Mapping

import mithril as ml
import numpy as np
import pytest
from mithril import P
from mithril.ops.context import CONTEXTS

from tests.tolerances import TOLERANCE

Shapes = Mapping[str, tuple[int, ...]]
IMAGE = {"input": (4, 8, 6, 6)}
SEQUENCE = {"input": (4, 6, 8)}
LOGITS = {"input": (4, 6, 10), "target": (4, 6)}
IDS = {"input": (4, 6)}
CHANNELS, LAST = {"input": P(None, "t")}, {"input": P(None, None, "t")}
WEIGHTS = {"*weight": P("t")}
HEADS = {**{f"*{part}.weight": P("t") for part in "qkv"}, "*o.weight": P(None, "t")}
WIDE = {"*up.weight": P("t"), "*gate.weight": P("t"), "*down.weight": P(None, "t")}


def exchanges(
    layer: ml.Layer, shapes: Shapes, weights: Mapping[str, P], specs: Mapping[str, P], devices: int
) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Return kind and bytes of all collectives, of a forward and of forward and backward."""
    backend = ml.NumpyBackend(ml.Mesh(t=devices))
    model = ml.Model()
    model |= layer(**{name: f"the {name}" for name in shapes}, output="out")
    model.shard(weights)
    inputs = {}
    for name, shape in shapes.items():
        host = np.ones(shape, np.float32)
        host = np.zeros(shape, np.int32) if len(shape) == 2 else host  # ids and classes
        host = np.zeros(shape, bool) if "mask" in name else host
        inputs[f"the {name}"] = backend.array(host, sharding=specs.get(name, P()))
    compiled = ml.compile(model, backend)
    params = compiled.randomize_params(0)
    out = compiled.evaluate(params, inputs)["out"]
    forward = [(row.kind, row.bytes) for row in compiled.plan.collectives()]
    compiled.evaluate(params, inputs, {"out": np.ones(out.shape, np.float32)})
    return forward, [(row.kind, row.bytes) for row in compiled.plan.collectives()]


def sums(*sizes: int) -> list[tuple[str, int]]:
    return [("all_reduce", size) for size in sizes]


ROWS, OUT = 4 * 6 * 4, 4 * 6 * 8 * 4
"""Bytes of a number a position, and of the features of all positions."""


@pytest.mark.parametrize(
    ("layer", "shapes", "weights", "specs", "devices", "forward"),
    [
        (ml.GroupNorm(4), IMAGE, {**WEIGHTS, "*bias": P("t")}, CHANNELS, 2, []),
        (ml.InstanceNorm(affine=True), IMAGE, {}, CHANNELS, 2, []),
        # Two devices share a group, or the pixels of all: means travel, numbers for each group.
        (ml.GroupNorm(2), IMAGE, {}, CHANNELS, 4, sums(16, 16)),
        (ml.GroupNorm(4), IMAGE, {}, LAST, 2, sums(64, 64)),
        (ml.Conv2d(8, 3, padding="same"), IMAGE, WEIGHTS, {}, 2, []),
        (ml.Conv3d(8, 2), {"input": (4, 4, 3, 3, 3)}, WEIGHTS, {}, 2, []),
        (ml.ConvTranspose2d(8, 2, 2), IMAGE, {"*weight": P(None, "t")}, {}, 2, []),
        (ml.ConvTranspose2d(8, 2, 2), IMAGE, WEIGHTS, CHANNELS, 2, sums(4 * 8 * 12 * 12 * 4)),
        (ml.AdaptiveAvgPool2d(4), IMAGE, {}, CHANNELS, 2, []),
        (ml.GlobalMaxPool(), IMAGE, {}, CHANNELS, 2, []),
        (ml.FeedForward(8, "geglu"), SEQUENCE, WIDE, {}, 2, sums(OUT)),
        (ml.Embedding(10, 8, padding_idx=0), IDS, WEIGHTS, {}, 2, sums(OUT)),
        (
            ml.MultiHeadAttention(4, qk_norm="rms", rope=True, soft_cap=5.0, sliding_window=3),
            {**SEQUENCE, "key": (4, 5, 8), "key_padding_mask": (4, 5)}, HEADS, {}, 2, sums(OUT),
        ),
        # A mean over what is not ignored: the sum and the count of the whole batch, as one.
        (ml.CrossEntropy(ignore_index=-100), LOGITS, {}, {"input": P("t"), "target": P("t")}, 2, sums(8)),
        (ml.CrossEntropy(ignore_index=-100), LOGITS, {}, LAST, 2, sums(ROWS, ROWS, 4)),
        (ml.CosineLoss(), {**SEQUENCE, "target": (4, 6, 8)}, {}, {**LAST, "target": P(None, None, "t")}, 2, sums(2 * ROWS, 4)),
    ],
    ids=lambda x: str(x) if isinstance(x, ml.Layer) else "",
)  # fmt: skip
def test_nothing_is_gathered(
    layer: ml.Layer,
    shapes: Shapes,
    weights: Mapping[str, P],
    specs: Mapping[str, P],
    devices: int,
    forward: list[tuple[str, int]],
) -> None:
    found, both = exchanges(layer, shapes, weights, specs, devices)
    assert found == forward
    assert {kind for kind, _ in both} <= {"all_reduce"}


def test_a_masked_mean_over_micro_batches_is_that_of_the_batch() -> None:
    x = np.random.default_rng(0).standard_normal((8, 6)).astype(np.float32)
    target = np.int32([0, -100, -100, -100, 4, 2, -100, 1])

    def step(stages: int, **options: object) -> tuple[float, np.ndarray]:
        model = ml.Model()
        model |= ml.Linear(6, name="first")(input="x", output="h")
        model += ml.Linear(5, name="second")(output="logits")
        model += ml.CrossEntropy(ignore_index=-100, name="loss")(target="target", output="total")
        if stages > 1:
            for pattern, stage in (("first", 0), ("second", 1), ("loss", 1)):
                model.stage(pattern, stage)
        compiled = ml.compile(model, ml.NumpyBackend(ml.Mesh(pipeline=stages)), **options)
        params = compiled.randomize_params(0)
        outputs, slopes = compiled.evaluate(params, {"x": x, "target": target}, {"total": 1.0})
        return outputs["total"].item(), slopes["first.weight"].numpy()

    expected, slope = step(1)
    found, cut = step(2, pipeline=ml.PipelineOptions(microbatch_size=2))
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(found, expected, rtol, atol)
    np.testing.assert_allclose(cut, slope, rtol, atol)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
X, BIAS = (
    np.random.default_rng(3).standard_normal(s).astype(np.float32)
    for s in ((3, 10, 8), (4, 10, 10))
)
PADDING = np.arange(10) >= np.array([[10], [7], [4]])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("how", CONTEXTS)
def test_options_of_attention_over_a_split_sequence(how: str | None, causal: bool) -> None:
    def step(devices: int) -> dict[str, np.ndarray]:
        layer = ml.MultiHeadAttention(
            4, causal=causal, rope=True, rope_scaling=YARN, qk_norm="rms", sliding_window=4,
            soft_cap=None if how else 1.5, context_parallel=how,
        )  # fmt: skip
        model = ml.Model()
        model |= layer(input="x", key_padding_mask="p", attention_bias="bias", output="y")
        backend = ml.NumpyBackend(ml.Mesh(s=devices))
        compiled = ml.compile(model, backend, differentiable=("x", "bias"))
        along = P(None, "s")
        given = {
            "x": backend.array(X, sharding=along),
            "p": backend.array(PADDING, sharding=along),
            "bias": backend.array(BIAS, sharding=P()),
        }
        params, slopes = compiled.randomize_params(0), {"y": backend.array(X, sharding=along)}
        outputs, gradients = compiled.evaluate(params, given, slopes)
        return {name: x.numpy() for name, x in {**outputs, **gradients}.items()}

    expected = step(1)
    rtol, atol = TOLERANCE["float32"]
    for devices in (2, 4):
        for name, x in step(devices).items():
            np.testing.assert_allclose(x, expected[name], rtol, atol, err_msg=name)
