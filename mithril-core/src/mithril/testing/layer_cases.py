"""One case or more for every layer: what it is given, and which of its outputs have a slope."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

import mithril as ml
import mithril.numpy as mnp
from mithril.ops.collective import AllGather
from mithril.testing.levels import first_of_each

BATCH = 5
"""Divides by no mesh of the tests: parts are padded, and the padding must never be seen."""


@dataclass(frozen=True)
class Case:
    """A layer and its inputs, made from a shape each; integers stay below a bound.

    Args:
        layer: what is tested.
        inputs: shape of each input of floats.
        integers: shape and bound of each input of integers.
        masks: shape of each input of bools, true in the first position of the last dimension.
        whole: inputs that are not one row a sample.
        outputs: outputs whose gradient is given; all of them by default.
        inference: compile for inference.
        shares: whether floats are from 0 to 1.
    """

    layer: ml.Layer
    inputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    integers: Mapping[str, tuple[tuple[int, ...], int]] = field(default_factory=dict)
    masks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    whole: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    inference: bool = False
    shares: bool = False

    def __str__(self) -> str:
        return f"{self.layer}{' inference' * self.inference}{' masked' * bool(self.masks)}"

    def model(self) -> ml.Model:
        """Return a model of the layer alone, its connections called as its ports."""
        model, variadic = ml.Model(), self.layer.variadic_input
        names = [*self.inputs, *self.integers, *self.masks]
        fed = {variadic: names} if variadic else {name: name for name in names}
        named = self.layer(**fed, **{name: name for name in self.layer.output_ports})
        model |= named
        return model

    def arrays(self, dtype: str) -> dict[str, np.ndarray]:
        """Return a value for every input."""
        rng = np.random.default_rng(3)
        found = {name: rng.standard_normal(shape) for name, shape in self.inputs.items()}
        found = {n: abs(v) + 0.5 if n in POSITIVE else v for n, v in found.items()}
        if self.shares:
            found = {name: 1 / (1 + np.exp(-value)) for name, value in found.items()}
        made = {name: value.astype(dtype) for name, value in found.items()}
        for name, (shape, bound) in self.integers.items():
            made[name] = rng.integers(0, bound, shape, dtype=np.int32)
        for name, shape in self.masks.items():
            made[name] = rng.random(shape) < 0.5
            made[name][..., 0] = True
        return made


POSITIVE = ("right", "running_variance")
ROWS = {"input": (BATCH, 6)}
SEQUENCE = {"input": (BATCH, 4, 8)}
IMAGE = {"input": (BATCH, 4, 7, 6)}
VOLUME = {"input": (BATCH, 4, 3, 5, 4)}
PAIR = {"a": (BATCH, 3, 4), "b": (BATCH, 3, 4)}
STATE = {"running_mean": (4,), "running_variance": (4,)}
STATES = tuple(STATE)
CROSS = {"input": (BATCH, 4, 8), "key": (BATCH, 3, 6)}
TURNS = {"positions": ((4,), 9), "key_positions": ((BATCH, 3), 9)}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
CLASSES = {"input": (BATCH, 3, 6), "weight": (6,)}
SCORES = {"input": (BATCH, 3, 4), "target": (BATCH, 3, 4)}
MIXED = ("output", "load_balancing_loss", "router_z_loss", "dropped_fraction", "router_entropy")


def decoder() -> ml.Model:
    """Return a block that carries `x`, reads a memory and a mask, and has a cache."""
    block = ml.Model()
    block |= ml.RMSNorm()(input="x", output="normed")
    block |= ml.MultiHeadAttention(2)(input="normed", mask="mask", output="seen")
    block |= ml.Linear(8, name="up")(input="memory", output="read")
    block |= ml.Multiply()(inputs=["read", "cache"], output="new")
    block |= ml.Dropout(0.3)(input="new", output="kept")
    block |= ml.Add()(inputs=["x", "seen", "kept"], output="y")
    block |= ml.Tanh()(input="new", output="new_cache")
    return block


CASES = [
    Case(ml.Linear(4), ROWS),
    Case(ml.Embedding(7, 4), integers={"input": ((BATCH, 3), 7)}),
    Case(ml.Embedding(7, 4, padding_idx=-2), integers={"input": ((BATCH, 3), 7)}),
    Case(ml.Conv1d(4, 3, 2, 1, 2, 2), SEQUENCE),
    Case(ml.Conv2d(4, (3, 2), 2, (1, 0)), IMAGE),
    Case(ml.Conv2d(6, 2, dilation=(2, 1), groups=2, bias=False), IMAGE),
    Case(ml.Conv1d(4, 2, 2, "same"), SEQUENCE),
    Case(ml.Conv1d(4, 3, padding=((2, 0),)), SEQUENCE),
    Case(ml.Conv2d(4, 3, (2, 1), "same", (1, 2)), IMAGE),
    Case(ml.Conv2d(4, 3, padding=(1, (0, 2))), IMAGE),
    Case(ml.Conv3d(4, (2, 3, 2), (1, 2, 1), (0, 1, (1, 0))), VOLUME),
    Case(ml.Conv3d(4, 3, padding="same", dilation=(1, 1, 2), groups=2), VOLUME),
    Case(ml.ConvTranspose1d(6, 3, 2, 1, 1, 2), SEQUENCE),
    Case(ml.ConvTranspose1d(3, 2, padding=((0, 1),), bias=False, dilation=2), SEQUENCE),
    Case(ml.ConvTranspose2d(6, 2, 2), IMAGE),
    Case(ml.ConvTranspose2d(4, (3, 2), (2, 3), (1, 0), (1, 2), 2), IMAGE),
    Case(ml.MaxPool1d(2, 1, "same"), SEQUENCE),
    Case(ml.AvgPool1d(3, 2, ((0, 2),), False), SEQUENCE),
    Case(ml.MaxPool2d(3, 2, "same"), IMAGE),
    Case(ml.AvgPool2d(2, 1, (1, (0, 1))), IMAGE),
    Case(ml.GlobalAvgPool(), IMAGE),
    Case(ml.GlobalMaxPool(keepdims=True), IMAGE),
    Case(ml.AdaptiveAvgPool1d(3), SEQUENCE),
    Case(ml.AdaptiveMaxPool1d(2), SEQUENCE),
    Case(ml.AdaptiveAvgPool2d((3, None)), IMAGE),
    Case(ml.AdaptiveMaxPool2d((3, 4)), IMAGE),
    Case(ml.MaxPool2d(2), IMAGE),
    Case(ml.MaxPool2d(3, 2, 1), IMAGE),
    Case(ml.AvgPool2d(3, 2, 1), IMAGE),
    Case(ml.AvgPool2d(3, 2, 1, False), IMAGE),
    Case(ml.Flatten(), IMAGE),
    Case(ml.Reshape((7, -1)), IMAGE),
    Case(ml.Transpose((0, 2, 1)), SEQUENCE),
    Case(ml.Concat(), PAIR),
    Case(ml.Concat(axis=0), PAIR),
    Case(ml.Split(2), SEQUENCE),
    Case(ml.Split(2, axis=1), SEQUENCE),
    Case(ml.Add(), PAIR),
    Case(ml.Multiply(), {**PAIR, "c": (4,)}, whole=("c",)),
    Case(ml.Subtract(), {"left": (BATCH, 3, 4), "right": (BATCH, 1, 4)}),
    Case(ml.Divide(), {"left": (BATCH, 3, 4), "right": (3, 1)}, whole=("right",)),
    Case(ml.MatMul(), {"left": (BATCH, 3, 4), "right": (4, 2)}, whole=("right",)),
    Case(ml.MatMul(), {"left": (BATCH, 3, 4), "right": (BATCH, 4, 2)}),
    Case(ml.Relu(), ROWS),
    Case(ml.Gelu(), ROWS),
    Case(ml.Gelu(approximate=True), ROWS),
    Case(ml.Silu(), ROWS),
    Case(ml.Sigmoid(), ROWS),
    Case(ml.Tanh(), ROWS),
    Case(ml.Softmax(), SEQUENCE),
    Case(ml.Softmax(0), SEQUENCE),
    Case(ml.LeakyRelu(0.2), ROWS),
    Case(ml.Elu(0.7), ROWS),
    Case(ml.Softplus(2.0), ROWS),
    Case(ml.Mish(), ROWS),
    Case(ml.HardSwish(), ROWS),
    Case(ml.Glu(), SEQUENCE),
    Case(ml.Glu(1), SEQUENCE),
    Case(ml.Dropout(0.3), ROWS),
    Case(ml.LayerNorm(), SEQUENCE),
    Case(ml.RMSNorm(), SEQUENCE),
    Case(ml.RMSNorm(offset=1.0), SEQUENCE),
    Case(ml.GroupNorm(2), IMAGE),
    Case(ml.GroupNorm(4, affine=False), SEQUENCE),
    Case(ml.InstanceNorm(), IMAGE),
    Case(ml.InstanceNorm(affine=True), SEQUENCE),
    Case(ml.BatchNorm(), {**IMAGE, **STATE}, whole=STATES, outputs=("output",)),
    Case(ml.BatchNorm(), {**IMAGE, **STATE}, whole=STATES, inference=True),
    Case(ml.MultiHeadAttention(4, causal=True), SEQUENCE),
    Case(ml.MultiHeadAttention(4, 6, num_kv_heads=2, rope=True), SEQUENCE),
    Case(ml.MultiHeadAttention(4), SEQUENCE, masks={"mask": (BATCH, 1, 1, 4)}),
    Case(ml.MultiHeadAttention(2), {**SEQUENCE, "mask": (2, 4, 4)}, whole=("mask",)),
    Case(ml.MultiHeadAttention(4, causal=True, context_parallel="ring"), SEQUENCE),
    Case(ml.MultiHeadAttention(4, context_parallel="ulysses"), SEQUENCE),
    Case(ml.MultiHeadAttention(4, causal=True, context_parallel=AllGather.name), SEQUENCE),
    Case(ml.MultiHeadAttention(4, value_dim=3, bias=("q", "v"), scale=0.3), CROSS),
    Case(ml.MultiHeadAttention(2, rope=True, qk_norm="rms"), CROSS, TURNS, whole=("positions",)),
    Case(
        ml.MultiHeadAttention(2, 4, causal=True, rope=500.0, qk_norm="layer", rope_scaling=YARN),
        SEQUENCE,
        {"positions": ((BATCH, 4), 9)},
    ),
    Case(ml.MultiHeadAttention(2, 8, rope=500000.0, rope_scaling=LLAMA3), SEQUENCE),
    Case(
        ml.MultiHeadAttention(4, num_kv_heads=2, causal=True, soft_cap=1.5, sliding_window=2),
        {**SEQUENCE, "attention_bias": (4, 4, 4)},
        whole=("attention_bias",),
        masks={"key_padding_mask": (BATCH, 4)},
    ),
    Case(ml.MultiHeadAttention(4, sliding_window=2, context_parallel="ring"), SEQUENCE),
    Case(ml.FeedForward(6), SEQUENCE),
    Case(ml.FeedForward(6, activation="silu"), SEQUENCE),
    Case(ml.FeedForward(6, activation="swiglu"), SEQUENCE),
    Case(ml.FeedForward(6, "geglu"), SEQUENCE),
    Case(ml.FeedForward(6, "gelu_tanh", gated=True), SEQUENCE),
    Case(ml.FeedForward(6, mnp.square), SEQUENCE),
    Case(ml.MoE(4, 6), SEQUENCE, outputs=MIXED),
    Case(ml.MoE(4, 6, activation="gelu_tanh", gated=True), SEQUENCE, outputs=MIXED),
    Case(ml.MoE(4, 6, 1, 0.5, bias=False), SEQUENCE, outputs=MIXED),
    Case(ml.MoE(4, 6, capacity_factor=None, activation="swiglu"), SEQUENCE, outputs=MIXED),
    Case(ml.MoE(4, 6, 2, 0.9, overflow="reroute", jitter=0.3), SEQUENCE, outputs=MIXED),
    Case(ml.MoE(3, 6, activation="silu"), ROWS, outputs=MIXED),
    Case(ml.PositionalEncoding(9), SEQUENCE),
    Case(ml.PositionalEncoding(9, learned=True), SEQUENCE),
    Case(ml.CrossEntropy(), {"input": (BATCH, 3, 6)}, {"target": ((BATCH, 3), 6)}),
    Case(ml.CrossEntropy("sum", 2), {"input": (BATCH, 3, 6)}, {"target": ((BATCH, 3), 6)}),
    Case(ml.CrossEntropy("none", 2, 0.1), CLASSES, {"target": ((BATCH, 3), 6)}, whole=("weight",)),
    Case(ml.CrossEntropy("mean", 2, 0.1), CLASSES, {"target": ((BATCH, 3), 6)}, whole=("weight",)),
    Case(
        ml.CrossEntropy(label_smoothing=0.2),
        {**CLASSES, "target": CLASSES["input"]},
        whole=("weight",),
    ),
    Case(ml.BinaryCrossEntropy(), SCORES, shares=True),
    Case(
        ml.BinaryCrossEntropyWithLogits(),
        {**SCORES, "weight": (3, 1), "pos_weight": (4,)},
        whole=("weight", "pos_weight"),
    ),
    Case(ml.BinaryCrossEntropyWithLogits("none"), SCORES),
    Case(ml.KLDivergence(), SCORES, shares=True),
    Case(ml.KLDivergence("batchmean", log_target=True), SCORES),
    *(
        Case(loss(reduction=how), SCORES)
        for loss in (ml.MeanSquaredError, ml.L1Loss, ml.HuberLoss, ml.QuantileLoss, ml.HingeLoss)
        for how in ("mean", "sum", "none")
    ),
    Case(ml.HuberLoss(0.3), SCORES),
    Case(ml.QuantileLoss(0.9), SCORES),
    Case(ml.CosineLoss(), SCORES),
    Case(ml.CosineLoss(0.1, "none"), {**SCORES, "label": (BATCH, 3)}),
    Case(ml.Mean(), SEQUENCE),
    Case(ml.Mean((0, 2), keepdims=True), SEQUENCE),
    Case(ml.Repeat(ml.FeedForward(6), 3), SEQUENCE),
    Case(
        ml.Repeat(decoder(), 2, carry={"x": "y"}, stacked=("cache",)),
        {"x": (BATCH, 4, 8), "memory": (BATCH, 1, 6), "cache": (2, BATCH, 4, 8)},
        masks={"mask": (BATCH, 1, 1, 4)},
        whole=("cache",),
    ),
    Case(ml.LSTM(6), SEQUENCE),
    Case(
        ml.LSTM(3, num_layers=2, bidirectional=True, dropout=0.3),
        {**SEQUENCE, "hidden": (4, BATCH, 3), "cell": (4, BATCH, 3)},
        whole=("hidden", "cell"),
    ),
    Case(ml.GRU(6, num_layers=2), SEQUENCE),
    Case(
        ml.GRU(3, bidirectional=True, bias=False),
        {**SEQUENCE, "hidden": (2, BATCH, 3)},
        whole=("hidden",),
    ),
]

_FIRST = first_of_each(CASES, lambda case: type(case.layer).__name__)


def is_first_of_its_layer(case: Case) -> bool:
    """Return whether no case before it is of the same layer: for `quick`."""
    return any(case is first for first in _FIRST)
