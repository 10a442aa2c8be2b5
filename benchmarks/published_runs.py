"""The published runs: models, meshes and settings as the papers and their scripts have them.

Settings of Narayanan et al. are those of `run_table_1.sh`, which stands with the scripts of the
paper in the repository of Megatron-LM: vocabulary-parallel embedding and loss, attention that makes
its scores, dropout 0.1, each block computed again in the backward, 16-bit sums over devices that
kernels wait for, Adam on float32 copies, and several stages a device from 76B to 530B. Megatron
computes all of a block again, and the plan only what gradients need, so that steps differ more than
utilisation does: what both compute again counts as work, as in the paper.

Those of Llama 3 are in section 3.3 of the paper: fused causal attention, residuals split along the
sequence, keys and values gathered where it is split for attention, too (section 3.3.2), nothing
computed again, several stages a device of which the first and the last one have a
block less, and gradients and the optimiser's state split over replicas. How many stages is not in the
table; four a device are taken.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mithril as ml
import mithril.numpy as mnp
from mithril import P, ops
from mithril.cost import Hardware
from mithril.engine.planned import PlannedEngine
from mithril.errors import MithrilWarning
from mithril.mesh import Mesh
from mithril.plan import Execution, Plan
from mithril.runtime.backend import Backend
from mithril.types import DType

NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473, Table 1"
LLAMA3 = "Llama 3, 2024, arXiv 2407.21783, Table 4"
LENGTH, VOCABULARY, DROPOUT = 2048, 51200, 0.1  # of all models of Narayanan et al.
LLAMA_CHUNKS = 4
"""Stages a device of Llama 3."""


@dataclass(frozen=True)
class NarrowSums(PlannedEngine):
    """Devices whose 16-bit sums travel as they are, as in NCCL, and may hide behind kernels.

    Args:
        hides: whether kernels go on beside collectives.
    """

    hides: bool = True

    @property
    def execution(self) -> Execution:
        """That of an accelerator with a compiler."""
        return Execution(fuses=True, overlaps=self.hides)


STATE_BYTES = 12
"""The optimiser's state of a parameter: a float32 copy and two moments (Adam)."""
UPDATE_BYTES = 30
"""What an update of a parameter reads and writes: these, the gradient and the 16-bit parameter."""


@dataclass(frozen=True)
class Prediction:
    """What is read off the plan of a run.

    Args:
        seconds: of a step.
        utilization: the share of the peak that the products are, those computed again included.
        memory: bytes on the fullest device, the optimiser's state included.
        capacity: bytes that it has.
    """

    seconds: float
    utilization: float
    memory: int
    capacity: int

    @property
    def fits(self) -> bool:
        """Whether the fullest device has as much."""
        return self.memory <= self.capacity


@dataclass(frozen=True)
class Run:
    """A run that was published.

    Args:
        name: of the row.
        source: where the figure stands.
        published: the share of the peak that it reached.
        hardware: name of the profile.
        mesh: devices by axis, the slowest first.
        batch: sequences a step.
        length: tokens of a sequence.
        microbatch: sequences of a micro-batch, of each replica.
        stages: how many the model is cut into.
        model: makes the model.
        dtype: of parameters, activations and products.
        hides: whether kernels go on beside collectives.
        replicas_share: whether each replica has a part of the gradients and the optimiser's state.
    """

    name: str
    source: str
    published: float
    hardware: str
    mesh: Mapping[str, int]
    batch: int
    length: int
    microbatch: int
    stages: int
    model: Callable[[], ml.Model]
    dtype: str
    hides: bool
    replicas_share: bool = False

    @property
    def devices(self) -> int:
        """How many there are."""
        return math.prod(self.mesh.values())

    def predict(self) -> Prediction:
        """Return what the plan says, with the optimiser's update behind it."""
        hardware = Hardware.load(self.hardware)
        mesh = Mesh(**self.mesh)
        plan = self.plan(Backend(NarrowSums(mesh, hides=self.hides), hardware=hardware))
        timeline, memory = plan.timeline(), plan.memory()
        kept = memory.fullest.parts["parameters"] // DType(self.dtype).itemsize
        updated = kept // self.mesh["data"] if self.replicas_share else kept
        update = updated * UPDATE_BYTES / hardware.bandwidth(updated * UPDATE_BYTES)
        seconds = timeline.seconds + update
        peak = memory.peak + updated * STATE_BYTES
        if self.replicas_share:  # of gradients, too, which the plan has whole until the end
            held = memory.fullest.parts["gradients"]
            peak -= held - held // self.mesh["data"]
        return Prediction(
            seconds,
            timeline.utilization * timeline.seconds / seconds,
            peak,
            hardware.memory_bytes or 0,
        )

    def plan(self, backend: Backend) -> Plan:
        """Return the plan of a forward and a backward, gradients summed over replicas."""
        count = self.batch // self.mesh["data"] // self.microbatch
        options: dict[str, Any] = {}
        if self.stages > 1:
            options["pipeline"] = ml.PipelineOptions(
                schedule="interleaved" if self.stages > self.mesh["pipeline"] else "1f1b",
                microbatch_size=self.microbatch,
                axis="pipeline",
            )
        elif count > 1:
            options["accumulate"] = count
        split = P("data", "context" if "context" in self.mesh else None)
        tokens = ml.TensorSpec((self.batch, self.length), "int32", split)
        shapes = {"tokens": tokens, "target": tokens}
        precision = ml.Precision(dtype=self.dtype)
        with warnings.catch_warnings():
            if self.replicas_share:  # the plan has whole gradients, and says that they do not fit
                warnings.filterwarnings("ignore", "plan needs", MithrilWarning)
            return ml.compile(
                self.model(),
                backend,
                shapes=shapes,
                outputs=["loss"],
                precision=precision,
                **options,
            ).plan


# ------------------------------------------------------------------ GPT, as Megatron-LM had it


@ml.layer
def ScoredAttention(x: Any, *, heads: int) -> Any:  # noqa: N802
    """Attention that makes its scores; what is later is masked by the kernel of the softmax."""
    batch, length, width = x.shape
    size = width // heads
    made = ml.Linear(3 * width, name="qkv")(x).reshape(batch, length, heads, 3 * size)
    q, k, v = (made[..., i * size : (i + 1) * size] for i in range(3))
    weights = mnp.softmax(mnp.einsum("bshd,bthd->bhst", q, k), axis=-1)
    seen = mnp.einsum("bhst,bthd->bshd", ml.Dropout(DROPOUT, name="drop")(weights), v)
    return ml.Linear(width, name="o")(seen.reshape(batch, length, width))


@ml.layer
def GPTBlock(input: Any, *, heads: int, width: int) -> Any:  # noqa: N802
    """A block of which nothing but its input is kept for the backward."""

    def run(x: Any) -> Any:
        seen = ScoredAttention(heads=heads, name="attn")(ml.LayerNorm(name="norm1")(x))
        x = x + ml.Dropout(DROPOUT, name="drop1")(seen)
        thought = ml.FeedForward(4 * width, name="mlp")(ml.LayerNorm(name="norm2")(x))
        return x + ml.Dropout(DROPOUT, name="drop2")(thought)

    return ml.checkpoint(run)(input)


def make_gpt(layers: int, width: int, heads: int, stages: int) -> ml.Model:
    """Return a GPT with its loss, its blocks in equal stages.

    Args:
        layers: how many blocks.
        width: features of a token.
        heads: of attention.
        stages: how many; the embedding is in the first one, the loss in the last one.
    """
    count = layers // stages
    model = ml.Model(name="gpt")
    model |= ml.Embedding(VOCABULARY, width, name="embed")(input="tokens", output="embedded")
    model |= ml.PositionalEncoding(max_len=LENGTH, learned=True, name="position")(
        input="embedded", output="x0"
    )
    for stage in range(stages):
        block: ml.Layer = GPTBlock(heads=heads, width=width, name=f"part{stage}")
        if count > 1:
            block = ml.Repeat(GPTBlock(heads=heads, width=width), count, name=f"part{stage}")
        model |= block(input=f"x{stage}", output=f"x{stage + 1}")
        if stages > 1:
            model.stage(f"part{stage}", stage)
    model |= ml.LayerNorm(name="norm")(input=f"x{stages}", output="final")
    model |= ml.Linear(VOCABULARY, bias=False, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy(name="loss")(input="logits", target="target", output="loss")
    model.shard({"embed.weight": P("tensor", None), "head.weight": P("tensor", None)})
    stacked = () if count == 1 else (None,)
    for layer in ("attn.qkv", "mlp.up"):
        model.shard({f"part*.{layer}.weight": P(*stacked, "tensor", None)})
        model.shard({f"part*.{layer}.bias": P(*stacked, "tensor")})
    for layer in ("attn.o", "mlp.down"):
        model.shard({f"part*.{layer}.weight": P(*stacked, None, "tensor")})
    return place(model, stages, ("embed", "position"), ("norm", "head", "loss"))


def place(model: ml.Model, stages: int, first: Sequence[str], last: Sequence[str]) -> ml.Model:
    """Return a model whose first and last layers are in the first and the last of its stages."""
    if stages > 1:
        for names, stage in ((first, 0), (last, stages - 1)):
            for name in names:
                model.stage(name, stage)
    return model


def narayanan(
    name: str,
    rate: int,
    sizes: tuple[int, int, int],
    split: tuple[int, int, int],
    batch: int,
    microbatch: int,
    chunks: int = 1,
) -> Run:
    """Return a row of Table 1.

    Args:
        name: its number of parameters.
        rate: TFLOP/s that each GPU reached.
        sizes: layers, width and heads.
        split: GPUs, and how many of them share a layer and make a pipeline.
        batch: sequences a step.
        microbatch: sequences of a micro-batch.
        chunks: stages a device.
    """
    (layers, width, heads), (devices, tensor, pipeline) = sizes, split
    mesh = {"pipeline": pipeline, "data": devices // tensor // pipeline, "tensor": tensor}
    return Run(
        name=f"gpt-{name}",
        source=NARAYANAN,
        published=rate / 312,
        hardware="a100-80gb",
        mesh=mesh,
        batch=batch,
        microbatch=microbatch,
        stages=pipeline * chunks,
        length=LENGTH,
        model=lambda: make_gpt(layers, width, heads, pipeline * chunks),
        dtype="float16",
        hides=False,
    )


# ------------------------------------------------------------------ Llama 3 405B


LLAMA_COLUMNS, LLAMA_ROWS = ("q", "k", "v", "gate", "up"), ("o", "down")
LLAMA_LINEAR = (*LLAMA_COLUMNS, *LLAMA_ROWS)


def make_llama(stages: int, *, context: bool) -> ml.Model:
    """Return Llama 3 405B with its loss.

    Args:
        stages: how many its 126 blocks are in, as even as may be; the first and the last one have a
            block less, for the embedding and the loss.
        context: whether the sequence is split over the mesh axis `context`, too.
    """
    layers, width, vocabulary = 126, 16384, 128256
    count = (layers + 2) // stages
    split = ("context", "tensor") if context else "tensor"
    model = ml.Model(name="llama")
    model |= ml.Embedding(vocabulary, width, name="embed")(input="tokens", output="x0")
    values = ["x0"]
    for stage in range(stages):
        here = count - (stage == 0) - (stage == stages - 1)
        if here:
            block = ml.Repeat(LlamaBlock(gathers=context), here, name=f"part{stage}")
            values.append(f"x{stage + 1}")
            model |= block(input=values[-2], output=values[-1])
            model.stage(f"part{stage}", stage)
            for layer in LLAMA_COLUMNS:
                model.shard({f"part{stage}.{layer}.weight": P(None, "tensor", None)})
            for layer in LLAMA_ROWS:
                model.shard({f"part{stage}.{layer}.weight": P(None, None, "tensor")})
    model |= ml.RMSNorm(name="norm")(input=values[-1], output="final")
    model |= ml.Linear(vocabulary, bias=False, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy(name="loss")(input="logits", target="target", output="loss")
    model.shard({"embed.weight": P("tensor", None), "head.weight": P("tensor", None)})
    model.shard(dict.fromkeys(values, P("data", split)))
    return place(model, stages, ("embed",), ("norm", "head", "loss"))


@ml.layer(parameters=("norm1.weight", "norm2.weight", *(f"{x}.weight" for x in LLAMA_LINEAR)))
def LlamaBlock(input: Any, *, gathers: bool) -> Any:  # noqa: N802
    """A block of Llama 3 405B that keeps little of what is cheap to make again.

    What devices gather of the sequence they gather again, and the product of the gate is computed
    again; no product of matrices is.
    """
    batch, length, width = input.shape
    heads, keys, size, hidden = 128, 8, 128, 53248

    def project(x: Any) -> Any:
        x = ml.RMSNorm(name="norm1")(x)
        q, k, v = (
            ml.Linear(count * size, bias=False, name=name)(x).reshape(batch, length, count, size)
            for name, count in (("q", heads), ("k", keys), ("v", keys))
        )
        return ops.rope(q, base=500000.0), ops.rope(k, base=500000.0), v

    def open_gate(x: Any) -> Any:
        x = ml.RMSNorm(name="norm2")(x)
        return tuple(ml.Linear(hidden, bias=False, name=name)(x) for name in ("gate", "up"))

    def close_gate(gate: Any, up: Any) -> Any:
        return ml.Linear(width, bias=False, name="down")(mnp.silu(gate) * up)

    q, k, v = ml.checkpoint(project)(input)
    context = "all_gather" if gathers else None
    seen = ops.attention(q, k, v, causal=True, context_parallel=context)
    middle = input + ml.Linear(width, bias=False, name="o")(seen.reshape(batch, length, -1))
    gate, up = ml.checkpoint(open_gate)(middle)
    return middle + ml.checkpoint(close_gate)(gate, up)


def llama(name: str, share: float, context: int, data: int, length: int, batch: int) -> Run:
    """Return a row of Table 4.

    Args:
        name: what is particular to it.
        share: of the peak that each GPU reached.
        context: devices that a sequence is split over, besides the 8 that share a layer.
        data: replicas.
        length: tokens of a sequence.
        batch: sequences of a replica.
    """
    split = {"context": context} if context > 1 else {}
    return Run(
        name=f"llama3-405b-{name}",
        source=LLAMA3,
        published=share,
        hardware="h100-sxm",
        mesh={"data": data, "pipeline": 16, **split, "tensor": 8},
        batch=batch * data,
        length=length,
        microbatch=1,
        stages=16 * LLAMA_CHUNKS,
        model=lambda: make_llama(16 * LLAMA_CHUNKS, context=context > 1),
        dtype="bfloat16",
        hides=True,
        replicas_share=True,
    )


def runs() -> list[Run]:
    """Return all rows of both tables."""
    return [
        narayanan("1.7B", 137, (24, 2304, 24), (32, 1, 1), 512, 16),
        narayanan("3.6B", 138, (30, 3072, 32), (64, 2, 1), 512, 16),
        narayanan("7.5B", 142, (36, 4096, 32), (128, 4, 1), 512, 16),
        narayanan("18.4B", 135, (40, 6144, 48), (256, 8, 1), 1024, 8),
        narayanan("39.1B", 138, (48, 8192, 64), (512, 8, 2), 1536, 4),
        narayanan("76.1B", 140, (60, 10240, 80), (1024, 8, 4), 1792, 2, chunks=3),
        narayanan("145.6B", 148, (80, 12288, 96), (1536, 8, 8), 2304, 2, chunks=2),
        narayanan("310.1B", 155, (96, 16384, 128), (1920, 8, 16), 2160, 1, chunks=2),
        narayanan("529.6B", 163, (105, 20480, 128), (2520, 8, 35), 2520, 1, chunks=3),
        narayanan("1008B", 163, (128, 25600, 160), (3072, 8, 64), 3072, 1),
        llama("8192", 0.43, 1, 64, 8192, 32),
        llama("16384", 0.41, 1, 128, 8192, 16),
        llama("long", 0.38, 16, 8, 131072, 16),
    ]
