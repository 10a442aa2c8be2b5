"""A small character GPT on English text, as the demo trains it: data, model, Adam, generated text.

Written with the public API only, as a user would write it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module

import numpy as np

import mithril as ml

Params = dict[str, ml.Array]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the model and its batches."""

    layers: int = 3
    width: int = 96
    heads: int = 4
    hidden: int = 384
    context: int = 64
    batch: int = 16


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A text as numbers: one id per character of its alphabet."""

    alphabet: str
    ids: np.ndarray

    def batches(self, sizes: Sizes, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield pieces of the text and the same pieces one character on, for ever."""
        rng = np.random.default_rng(seed)
        while True:
            starts = rng.integers(0, len(self.ids) - sizes.context - 1, sizes.batch)
            rows = starts[:, None] + np.arange(sizes.context + 1)
            yield self.ids[rows[:, :-1]], self.ids[rows[:, 1:]]

    def encode(self, text: str) -> list[int]:
        """Return the ids of the characters of a text."""
        return [self.alphabet.index(character) for character in text]


def help_text() -> Text:
    """Return the English help texts that ship with Python."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    text = "\n".join(topics[name] for name in sorted(topics))
    text = text.encode("ascii", "ignore").decode()
    alphabet = "".join(sorted(set(text)))
    lookup = np.zeros(128, np.int32)
    lookup[np.frombuffer(alphabet.encode(), np.uint8)] = np.arange(len(alphabet))
    return Text(alphabet, lookup[np.frombuffer(text.encode(), np.uint8)])


# ------------------------------------------------------------------ model


def transformer_block(sizes: Sizes, name: str) -> ml.Model:
    """Return a pre-norm transformer block from `x` to `y`."""
    block = ml.Model(name=name)
    block |= ml.LayerNorm(name="norm1")(input="x", output="normed1")
    block += ml.MultiHeadAttention(num_heads=sizes.heads, causal=True, name="attn")(
        input="normed1", output="seen"
    )
    block += ml.Add()(inputs=["x", "seen"], output="middle")
    block += ml.LayerNorm(name="norm2")(input="middle", output="normed2")
    block += ml.FeedForward(hidden_dim=sizes.hidden, name="mlp")(input="normed2", output="thought")
    block += ml.Add()(inputs=["middle", "thought"], output="y")
    return block


def gpt(vocabulary: int, sizes: Sizes) -> ml.Model:
    """Return a GPT from `tokens` to `logits`."""
    model = ml.Model(name="gpt")
    model |= ml.Embedding(vocabulary, sizes.width, name="embed")(input="tokens", output="embedded")
    model += ml.PositionalEncoding(max_len=sizes.context, learned=True, name="position")(
        input="embedded", output="x0"
    )
    for i in range(sizes.layers):
        model |= transformer_block(sizes, f"block{i}")(x=f"x{i}", y=f"x{i + 1}")
    model += ml.LayerNorm(name="norm")(input=f"x{sizes.layers}", output="final")
    model += ml.Linear(vocabulary, name="head")(input="final", output="logits")
    return model


def with_loss(model: ml.Model) -> ml.Model:
    """Return the model with a cross-entropy against `target`, its only output being `loss`."""
    training = ml.Model()
    training |= model(tokens="tokens", logits="logits")
    training += ml.CrossEntropy()(input="logits", target="target", output="loss")
    return training


def alone(model: ml.Model) -> ml.Model:
    """Return the model inside another one, so that parameters are called as in `with_loss`."""
    outer = ml.Model()
    outer |= model(tokens="tokens", logits="logits")
    return outer


def megatron(model: ml.Model) -> ml.Model:
    """Split attention heads and the hidden layer over the mesh axis `tensor`."""
    column, row = ml.P("tensor", None), ml.P(None, "tensor")
    model.shard({f"*.attn.{part}.weight": column for part in "qkv"})
    model.shard({"*.attn.o.weight": row, "*.mlp.up.weight": column, "*.mlp.down.weight": row})
    return model


# ------------------------------------------------------------------ training


@dataclass(slots=True)
class Adam:
    """The optimizer of Kingma and Ba (2015), on sharded arrays."""

    rate: float = 3e-3
    decay1: float = 0.9
    decay2: float = 0.99
    epsilon: float = 1e-8
    step: int = 0
    means: Params | None = None
    squares: Params | None = None

    def update(
        self, backend: ml.Backend, params: Params, gradients: Mapping[str, ml.Array]
    ) -> None:
        """Move the parameters against their gradients, in place."""
        if self.means is None or self.squares is None:
            self.means = {name: backend.zeros_like(x) for name, x in params.items()}
            self.squares = {name: backend.zeros_like(x) for name, x in params.items()}
        self.step += 1
        rate = self.rate * (1 - self.decay2**self.step) ** 0.5 / (1 - self.decay1**self.step)
        for name, g in gradients.items():
            mean = self.means[name] = self.decay1 * self.means[name] + (1 - self.decay1) * g
            square = self.squares[name] = self.decay2 * self.squares[name] + (1 - self.decay2) * (
                g * g
            )
            params[name] = params[name] - rate * mean / (backend.sqrt(square) + self.epsilon)


class Trainer:
    """Trains the GPT on one backend; the same seed gives the same losses on every mesh."""

    def __init__(self, text: Text, sizes: Sizes, backend: ml.Backend, seed: int = 0) -> None:
        self._text, self._sizes, self._backend = text, sizes, backend
        names = backend.mesh.names
        model = gpt(len(text.alphabet), sizes)
        training = with_loss(model)
        if "tensor" in names:
            megatron(training)
        split = ml.P("data") if "data" in names else ml.P()
        self._split = split
        shape = ml.TensorSpec((sizes.batch, sizes.context), "int32", split)
        self.compiled = ml.compile(training, backend, shapes={"tokens": shape, "target": shape})
        self.params: Params = self.compiled.randomize_params(seed)
        self._adam = Adam()
        self._batches = text.batches(sizes, seed)
        self._one = backend.ones()
        self._generator = ml.compile(alone(model), backend, inference=True)

    def step(self) -> float:
        """Train on one batch and return its loss."""
        tokens, target = next(self._batches)
        inputs = {
            "tokens": self._backend.array(tokens, sharding=self._split),
            "target": self._backend.array(target, sharding=self._split),
        }
        outputs, gradients = self.compiled.evaluate(self.params, inputs, {"loss": self._one})
        self._adam.update(self._backend, self.params, gradients)
        return float(outputs["loss"])

    def write(self, start: str, length: int, seed: int = 0) -> str:
        """Return text that goes on from `start`, drawn from the model's predictions."""
        rng = np.random.default_rng(seed)
        ids = self._text.encode(start)
        for _ in range(length):
            window = ids[-self._sizes.context :]
            row = np.zeros((1, self._sizes.context), np.int32)
            row[0, : len(window)] = window
            outputs = self._generator.evaluate(self.params, {"tokens": row})
            logits = outputs["logits"].numpy()[0, len(window) - 1] / 0.8
            chances = np.exp(logits - logits.max())
            ids.append(int(rng.choice(len(chances), p=chances / chances.sum())))
        return "".join(self._text.alphabet[i] for i in ids)
