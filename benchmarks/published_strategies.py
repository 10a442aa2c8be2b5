"""Published ways to split two models, as strategies: what `ml.auto_tune` is held against.

GPT-3 of 175B parameters on 1024 A100 (Narayanan et al. 2021, arXiv 2104.04473, section 5 and Table 1): batches
of 1536 sequences, 8 devices that share a layer, 8 stages (those of the 145.6B row of Table 1, the nearest to
it), micro-batches of one sequence, each block computed again. Megatron-LM of that year kept whole sequences
between layers.

Llama 3 of 405B parameters on 16384 H100 (arXiv 2407.21783, section 3.3 and Table 4): 8 devices that share a
layer, 16 stages of a pipeline with the first and the last one a block shorter, 128 replicas that share the
optimiser's state, 16 micro-batches of a sequence of 8192 tokens. The models are those of
`benchmarks.published_runs`, without what is said there of how they are split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import mithril as ml
from mithril import P
from mithril.cost import Hardware
from mithril.runtime.strategy import Findings
from mithril.tuning.model import TunedModel
from mithril.tuning.price import Price, price

from benchmarks.published_runs import (
    DROPOUT,
    LENGTH,
    LLAMA_CHUNKS,
    LLAMA_COLUMNS,
    LLAMA_ROWS,
    VOCABULARY,
    LlamaBlock,
    ScoredAttention,
)


@dataclass(frozen=True)
class Published:
    """A model, its devices, and how it was split.

    Args:
        name: of the row.
        hardware: name of the profile.
        devices: how many there were.
        batch: sequences a step.
        length: tokens of a sequence.
        dtype: of parameters, activations and products.
        model: what was trained.
        optimizer: how.
        said: fields of the strategy, besides shapes.
    """

    name: str
    hardware: str
    devices: int
    batch: int
    length: int
    dtype: str
    model: ml.Model
    optimizer: Any
    said: Mapping[str, Any]

    @cached_property
    def tuned(self) -> TunedModel:
        """What is priced, as `ml.auto_tune` has it."""
        return TunedModel(
            self.model, self.shapes, Hardware.load(self.hardware), self.precision, "throughput",
            self.optimizer,
        )  # fmt: skip

    @property
    def shapes(self) -> dict[str, ml.TensorSpec]:
        """Of the inputs."""
        return dict.fromkeys(
            ("tokens", "target"), ml.TensorSpec((self.batch, self.length), "int32")
        )

    @property
    def precision(self) -> ml.Precision:
        """Of everything."""
        return ml.Precision(dtype=self.dtype)

    def find_strategy(self) -> tuple[ml.Strategy, Price]:
        """Return how it was split, and what that is predicted to cost.

        Raises:
            ValueError: it cannot be planned.
        """
        traced = self.tuned.traced
        strategy = ml.Strategy(
            parameters={n: traced.graph.input(n).type.shape for n in traced.parameter_names},
            inputs={name: tuple(spec.shape) for name, spec in self.shapes.items()},
            in_shardings=dict.fromkeys(self.shapes, P("data")),
            **self.said,
        )
        cost = price(self.tuned, strategy)
        if isinstance(cost, str):
            raise ValueError(cost)
        found = Findings(
            profile=self.hardware, seconds=cost.seconds, memory=cost.memory, bytes=cost.bytes
        )
        return replace(strategy, findings=found), cost

    def tune(self) -> ml.Strategy:
        """Return what `ml.auto_tune` finds for it."""
        return ml.auto_tune(
            self.model, self.hardware, input_shapes=self.shapes, devices=self.devices,
            optimizer=self.optimizer, precision=self.precision, progress=False,
        )  # fmt: skip


# ------------------------------------------------------------------ GPT-3 175B

GPT_LAYERS, GPT_WIDTH, GPT_HEADS = 96, 12288, 96


@ml.layer
def GPTBlock(input: Any) -> Any:  # noqa: N802
    """A block of which nothing is said what is computed again."""
    seen = ScoredAttention(heads=GPT_HEADS, name="attn")(ml.LayerNorm(name="norm1")(input))
    x = input + ml.Dropout(DROPOUT, name="drop1")(seen)
    thought = ml.FeedForward(4 * GPT_WIDTH, name="mlp")(ml.LayerNorm(name="norm2")(x))
    return x + ml.Dropout(DROPOUT, name="drop2")(thought)


def make_gpt3() -> ml.Model:
    """Return GPT-3 175B with its loss, its blocks in one loop."""
    model = ml.Model(name="gpt")
    model |= ml.Embedding(VOCABULARY, GPT_WIDTH, name="embed")(input="tokens", output="embedded")
    model |= ml.PositionalEncoding(max_len=LENGTH, learned=True, name="position")(
        input="embedded", output="x0"
    )
    model |= ml.Repeat(GPTBlock(), GPT_LAYERS, name="blocks")(input="x0", output="x1")
    return add_loss(model, ml.LayerNorm(name="norm"), "x1", VOCABULARY)


def add_loss(model: ml.Model, norm: ml.Layer, value: str, vocabulary: int) -> ml.Model:
    """Return a model with a norm, its head and its loss behind a value."""
    model |= norm(input=value, output="final")
    model |= ml.Linear(vocabulary, bias=False, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")
    return model


def publish_gpt3() -> Published:
    """Return GPT-3 175B on 1024 A100."""
    shardings = {"embed.weight": P("tensor", None), "head.weight": P("tensor", None)}
    for name in ("attn.qkv", "mlp.up"):
        shardings[f"blocks.{name}.weight"] = P(None, "tensor", None)
        shardings[f"blocks.{name}.bias"] = P(None, "tensor")
    for name in ("attn.o", "mlp.down"):
        shardings[f"blocks.{name}.weight"] = P(None, None, "tensor")
    stages: dict[str, int | tuple[int, ...]] = {
        "embed": 0,
        "position": 0,
        "blocks": tuple(range(8)),
    }
    said = {
        "mesh": {"pipeline": 8, "data": 16, "tensor": 8},
        "shardings": shardings,
        "stages": stages | dict.fromkeys(("norm", "head", "end"), 7),
        "axis": "pipeline",
        "schedule": "1f1b",
        "microbatch_size": 1,
        "checkpointing": "all",
    }
    return Published(
        "gpt3-175b", "a100-80gb", 1024, 1536, LENGTH, "float16", make_gpt3(), ml.optim.adam(1e-4),
        said,
    )  # fmt: skip


# ------------------------------------------------------------------ Llama 3 405B

LLAMA_STAGES = 16 * LLAMA_CHUNKS


def make_llama() -> ml.Model:
    """Return Llama 3 405B with its loss, two blocks in a loop but for the first and the last one."""
    model = ml.Model(name="llama")
    model |= ml.Embedding(128256, 16384, name="embed")(input="tokens", output="x0")
    for part in range(LLAMA_STAGES):
        count = 1 if part in (0, LLAMA_STAGES - 1) else 2
        block = ml.Repeat(LlamaBlock(gathers=False), count, name=f"part{part}")
        model |= block(input=f"x{part}", output=f"x{part + 1}")
    return add_loss(model, ml.RMSNorm(name="norm"), f"x{LLAMA_STAGES}", 128256)


def publish_llama() -> Published:
    """Return Llama 3 405B on 16384 H100."""
    shardings = {"embed.weight": P("tensor", None), "head.weight": P("tensor", None)}
    for part in range(LLAMA_STAGES):
        shardings |= {f"part{part}.{n}.weight": P(None, "tensor", None) for n in LLAMA_COLUMNS}
        shardings |= {f"part{part}.{n}.weight": P(None, None, "tensor") for n in LLAMA_ROWS}
    stages = {"embed": 0, **{f"part{part}": part for part in range(LLAMA_STAGES)}}
    said = {
        "mesh": {"data": 128, "pipeline": 16, "tensor": 8},
        "shardings": shardings,
        "value_shardings": {f"x{part}": P("data", "tensor") for part in range(LLAMA_STAGES + 1)},
        "stages": stages | dict.fromkeys(("norm", "head", "end"), LLAMA_STAGES - 1),
        "axis": "pipeline",
        "schedule": "interleaved",
        "microbatch_size": 1,
        "zero": 1,
        "zero_axes": ("data",),
    }
    return Published(
        "llama3-405b", "h100-sxm", 16384, 2048, 8192, "bfloat16", make_llama(),
        ml.optim.adamw(1e-4), said,
    )  # fmt: skip


PUBLISHED: Mapping[str, Callable[[], Published]] = {
    "gpt3-175b": publish_gpt3,
    "llama3-405b": publish_llama,
}

__all__ = ["PUBLISHED", "Published", "publish_gpt3", "publish_llama"]
