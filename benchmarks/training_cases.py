"""What the benchmark of training trains: a GPT, or a Llama with grouped key heads, and Mithril's side.

A Llama is made of RMSNorm, rotated queries and keys in fewer key heads than query heads, and a gated
feed-forward, all without biases. Sizes and seeds are arguments; nothing is chosen to suit a side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss

from benchmarks.sides import INPUTS, SIZES, VOCABULARIES, Data, sizes_of
from tests.tolerances import TOLERANCE

RATE, DECAY = 1e-4, 0.01
CHECKED = 3
"""Steps whose losses are compared."""
LLAMAS = {
    "384": Sizes(layers=6, width=384, heads=6, hidden=1024, context=128, batch=8),
    "64": Sizes(layers=2, width=64, heads=4, hidden=128, context=32, batch=8),
}
KEY_HEADS = 2
LLAMA_VOCABULARIES = {"384": 2048, "64": 128}
WIDTHS = tuple(dict.fromkeys((*SIZES, *LLAMAS)))


@dataclass(frozen=True, slots=True)
class Case:
    """What is trained.

    Args:
        sizes: of the model and its batches.
        vocabulary: how many tokens there are.
        key_heads: of a Llama; 0 for a GPT.
        seed: of parameters and data.
    """

    sizes: Sizes
    vocabulary: int
    key_heads: int = 0
    seed: int = 0

    @property
    def name(self) -> str:
        """What the model is called, and what its parameters' names begin with."""
        return "llama" if self.key_heads else "gpt"

    def data(self) -> Data:
        """Return tokens and targets, the same on every rank."""
        rng = np.random.default_rng(self.seed)
        shape = (self.sizes.batch, self.sizes.context)
        return {name: rng.integers(0, self.vocabulary, shape).astype(np.int32) for name in INPUTS}

    def model(self) -> ml.Model:
        """Return the model, from tokens and targets to the loss."""
        if not self.key_heads:
            return with_loss(gpt(self.vocabulary, self.sizes))
        return with_loss(llama(self.vocabulary, self.sizes, self.key_heads))

    def __str__(self) -> str:
        heads = f", {self.key_heads} key heads" if self.key_heads else ""
        return f"{self.name} {self.sizes}{heads}, vocabulary {self.vocabulary}, seed {self.seed}"


def case_of(model: str, width: str, devices: int, seed: int, batch: int | None) -> Case:
    """Return a case by the names of the command line."""
    if model == "gpt":
        case = Case(sizes_of(width, devices), VOCABULARIES[width], seed=seed)
    else:
        case = Case(LLAMAS[width], LLAMA_VOCABULARIES[width], KEY_HEADS, seed)
    return case if batch is None else replace(case, sizes=replace(case.sizes, batch=batch))


def llama(vocabulary: int, sizes: Sizes, key_heads: int) -> ml.Model:
    """Return a Llama from `tokens` to `logits`."""
    model = ml.Model(name="llama")
    model |= ml.Embedding(vocabulary, sizes.width, name="embed")(input="tokens", output="x0")
    for i in range(sizes.layers):
        block = ml.Model(name=f"block{i}")
        block |= ml.RMSNorm(name="norm1")(input="x", output="normed1")
        block += ml.MultiHeadAttention(
            sizes.heads, num_kv_heads=key_heads, causal=True, rope=True, bias=False, name="attn"
        )(input="normed1", output="seen")
        block += ml.Add()(inputs=["x", "seen"], output="middle")
        block += ml.RMSNorm(name="norm2")(input="middle", output="normed2")
        block += ml.FeedForward(sizes.hidden, "silu", gated=True, bias=False, name="mlp")(
            input="normed2", output="thought"
        )
        block += ml.Add()(inputs=["middle", "thought"], output="y")
        model |= block(x=f"x{i}", y=f"x{i + 1}")
    model += ml.RMSNorm(name="norm")(input=f"x{sizes.layers}", output="final")
    model += ml.Linear(vocabulary, bias=False, name="head")(input="final", output="logits")
    return model


def cut(model: ml.Model, case: Case, stages: int) -> None:
    """Give each stage as many blocks; the last one has what comes after them, too."""
    model.stage("*", stages - 1)
    model.stage(f"{case.name}.embed", 0)
    for i in range(case.sizes.layers):
        model.stage(f"{case.name}.block{i}", i * stages // case.sizes.layers)


class Ours:
    """Mithril's side.

    Args:
        backend: where it runs.
        case: what is trained.
        zero: stage of ZeRO, or `auto`.
        options: further ones of `train_step`.
    """

    def __init__(
        self, backend: ml.Backend, case: Case, zero: int | str = 0, **options: Any
    ) -> None:
        split = ml.P("data") if "data" in backend.mesh.names else ml.P()
        data = case.data()
        self.batch = {name: backend.array(x, sharding=split) for name, x in data.items()}
        model = case.model()
        if "tensor" in backend.mesh.names:
            megatron(model)
            if case.key_heads:
                model.shard({"*.mlp.gate.weight": ml.P("tensor", None)})
        if "pipeline" in backend.mesh.names:
            cut(model, case, backend.mesh.sizes["pipeline"])
        optimizer = ml.optim.adamw(RATE, weight_decay=DECAY)
        # By hand nobody asks for the norm of the gradients.
        self.run = ml.train_step(
            model, backend, optimizer, shapes=self.batch, zero=zero, metrics=(), **options
        )
        self.state = self.run.init(seed=case.seed)
        self._prefix = f"{case.name}."

    def step(self) -> ml.Metrics:
        """Make a step; its results may not be there yet."""
        self.state, metrics = self.run(self.state, self.batch)
        return metrics

    def loss(self) -> float:
        """Make a step, and return its loss."""
        return float(self.step()["loss"].item())

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the parameters by name, as they are now."""
        return {n.removeprefix(self._prefix): x.numpy() for n, x in self.state.params.items()}


def check(
    ours: Callable[[], float], theirs: Callable[[], float], name: str, dtype: str = "float32"
) -> None:
    """Refuse sides whose losses differ by more than a dtype allows."""
    pairs = [(ours(), theirs()) for _ in range(CHECKED)]
    np.testing.assert_allclose(*zip(*pairs, strict=True), *TOLERANCE[dtype], err_msg=name)
