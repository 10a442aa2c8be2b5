"""Example cases of the fused ops: rows of the table in `cases`."""

from __future__ import annotations

import numpy as np

from mithril import ops
from mithril.ops.attention import Attention, AttentionGradient
from mithril.testing.arrays import Row, booleans, floats, integers, positive
from mithril.testing.evaluate import apply

X, Y = floats(4, 6), floats(4, 6, seed=1) + 0.031
CUBE = floats(2, 4, 6, seed=5)


def _attention(
    causal: bool, s: int, t: int, *, groups: int = 4, mask: np.ndarray | None = None
) -> tuple[Row, Row]:
    b, h, d, e = 2, 4, 2, 3
    q, k = floats(b, s, h, d), floats(b, t, groups, d, seed=1)
    v = floats(b, t, groups, e, seed=2)
    masks = [] if mask is None else [mask]
    op = Attention(causal, 0.7)
    out, total = apply(op, q, k, v, *masks)
    gradient = AttentionGradient(causal, 0.7)
    g = floats(*out.shape, seed=3)
    return [op, q, k, v, *masks], [gradient, q, k, v, out, total, g, *masks]


def _layer_norm(*shape: int) -> tuple[Row, Row]:
    x, gain, bias = floats(*shape), floats(shape[-1], seed=1), floats(shape[-1], seed=2)
    op = ops.LayerNorm(1e-5)
    _, average, scale = apply(op, x, gain, bias)
    g = floats(*shape, seed=3)
    return [op, x, gain, bias], [ops.LayerNormGradient(), x, gain, average, scale, g]


def _rms_norm(*shape: int) -> tuple[Row, Row]:
    x, gain = floats(*shape), floats(shape[-1], seed=1)
    op = ops.RmsNorm(1e-2)
    _, scale = apply(op, x, gain)
    return [op, x, gain], [ops.RmsNormGradient(), x, gain, scale, floats(*shape, seed=3)]


def _batch_norm(*shape: int) -> tuple[Row, ...]:
    x, gain, bias = floats(*shape), floats(shape[1], seed=1), floats(shape[1], seed=2)
    op, g = ops.BatchNorm(1e-2), floats(*shape, seed=3)
    _, average, variance, scale = apply(op, x, gain, bias)
    (sums,) = apply(ops.ChannelSums(), x, average, g)
    count = x.size // shape[1]
    return (
        [op, x, gain, bias],
        [ops.BatchNormGradient(), x, gain, average, scale, g],
        [ops.ChannelMoments(), x],
        [ops.NormalizeChannels(1e-2), x, gain, bias, average, variance],
        [ops.ChannelSums(), x, average, g],
        [ops.ChannelGradient(count), x, gain, average, scale, g, sums],
    )


def _group_norm(groups: int, *shape: int, affine: bool = True) -> tuple[Row, Row]:
    x, g = floats(*shape), floats(*shape, seed=3)
    rows = [floats(shape[1], seed=1), floats(shape[1], seed=2)] if affine else []
    op = ops.GroupNorm(groups, 1e-2)
    _, average, scale = apply(op, x, *rows)
    return [op, x, *rows], [ops.GroupNormGradient(groups), x, average, scale, g, *rows[:1]]


def _cross_entropy(*shape: int, dtype: str = "int32") -> tuple[Row, Row]:
    logits, targets = floats(*shape), integers(*shape[:-1], below=shape[-1], dtype=dtype)
    op = ops.CrossEntropy()
    _, total = apply(op, logits, targets)
    g = floats(*shape[:-1], seed=3)
    return [op, logits, targets], [ops.CrossEntropyGradient(), logits, targets, total, g]


def _lstm(
    steps: int, batch: int, features: int, size: int, *, biases: bool = True, reverse: bool = False
) -> tuple[Row, Row]:
    x = floats(steps, batch, features)
    shapes: list[tuple[int, ...]] = [(4, size, features), (4, size, size)]
    shapes += [(batch, size)] * 2 + [(4, size)] * 2 * biases
    weights = [floats(*shape, seed=seed) for seed, shape in enumerate(shapes, 1)]
    y, last, cell = apply(ops.Lstm(reverse), x, *weights)
    cotangents = [floats(*one.shape, seed=9 + at) for at, one in enumerate((y, last, cell))]
    gradient = [ops.LstmGradient(reverse), x, *weights[:4], y, *cotangents, *weights[4:]]
    return [ops.Lstm(reverse), x, *weights], gradient


def _softmax(axis: int, *shape: int) -> tuple[Row, Row]:
    x = floats(*shape)
    (y,) = apply(ops.Softmax(axis), x)
    return [ops.Softmax(axis), x], [ops.SoftmaxGradient(axis), y, floats(*shape, seed=1)]


def _adamw(*shape: int, count: object = 3, b1: float = 0.9, decay: float = 0.1) -> Row:
    moments = floats(*shape, seed=2), positive(*shape, seed=3)
    scalars = np.asarray(0.05), np.asarray(count)
    op = ops.AdamWStep(b1, 0.99, 1e-3, decay)
    return [op, floats(*shape), floats(*shape, seed=1), *moments, *scalars]


HEADS = floats(2, 4, 3, 6)
NOTHING_SEEN = np.array([[False] * 4, [True] * 4, [True, False] * 2, [False, True, True, True]])

FUSED: list[Row] = [
    _adamw(4, 6, count=np.int32(3)),
    _adamw(2, 1, 6, count=1.0, decay=0.0),
    _adamw(count=np.int32(7), b1=0.0),
    *_softmax(1, 4, 6),
    *_softmax(1, 2, 4, 6),
    *_softmax(0, 6),
    *([ops.LogSoftmax(axis), CUBE] for axis in (0, 2)),
    *([ops.Gelu(approximate), X] for approximate in (False, True)),
    *([ops.GeluGradient(approximate), X, Y] for approximate in (False, True)),
    [ops.Silu(), X],
    [ops.SiluGradient(), X, Y],
    *_layer_norm(4, 6),
    *_layer_norm(2, 4, 6),
    *_layer_norm(6),
    *_rms_norm(4, 6),
    *_rms_norm(2, 4, 6),
    *_rms_norm(6),
    *_batch_norm(4, 2, 3, 2),
    *_batch_norm(6, 4),
    *_batch_norm(4, 2, 6),
    *_group_norm(2, 2, 4, 3, 2),
    *_group_norm(4, 2, 4, 6, affine=False),
    *_group_norm(1, 4, 6),
    *_lstm(3, 4, 2, 3),
    *_lstm(4, 2, 3, 2, reverse=True),
    *_lstm(2, 6, 2, 4, biases=False),
    *_cross_entropy(4, 6),
    *_cross_entropy(2, 4, 6),
    *_cross_entropy(6),
    *_cross_entropy(2, 300, dtype="uint8"),
    *_attention(False, 4, 4),
    *_attention(True, 4, 4),
    *_attention(False, 4, 2),
    *_attention(True, 2, 4),
    *_attention(False, 4, 2, groups=2),
    *_attention(True, 4, 4, groups=2),
    *_attention(True, 2, 4, groups=1),
    *_attention(False, 4, 4, mask=NOTHING_SEEN.reshape(1, 1, 4, 4)),
    *_attention(True, 4, 4, groups=2, mask=booleans(2, 4, 4, 4)),
    *_attention(False, 4, 2, groups=2, mask=floats(2, 4, 4, 2, seed=4)),
    *_attention(False, 2, 4, groups=1, mask=floats(1, 4, 1, 4, seed=4)),
    *_attention(True, 4, 4, mask=floats(2, 1, 4, 4, seed=4)),
    *_attention(False, 4, 4, mask=booleans(2, 1, 1, 4, seed=2)),
    *(
        [ops.Rope(100.0, 0, interleaved, inverse), HEADS]
        for interleaved in (False, True)
        for inverse in (False, True)
    ),
    [ops.Rope(100.0, 3, False, False), HEADS, integers(4, below=9)],
    [ops.Rope(100.0, 0, True, False, ("linear", 4.0)), HEADS],
    [ops.Rope(1e4, 0, False, False, ("llama3", 8.0, 1.0, 4.0, 32.0)), HEADS],
    [
        ops.Rope(1e4, 2, False, True, ("yarn", 4.0, 16.0, 32.0, 1.0, 1.0)),
        HEADS,
        integers(4, below=9),
    ],
    [ops.Rope(10.0, 0, True, True), HEADS, integers(2, 4, below=9, dtype="int64")],
    [ops.Rope(10.0, 1, False, True), HEADS, np.asarray(5, np.int32)],
]
