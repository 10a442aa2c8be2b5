"""The models and meshes on which predictions are compared with what is measured.

An MLP, a convolutional network with residual connections, a GPT and a mixture of experts; each on
one device, with its batch split, with its weights split, with parameters at rest split beside the
batch, and as a pipeline of stages with micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, megatron, transformer_block, with_loss

Inputs = Mapping[str, np.ndarray]
STRATEGIES = ("one device", "data", "tensor", "at rest", "pipeline")
MESHES = {"one device": {}, "data": {"data": 2}, "tensor": {"tensor": 2}, "at rest": {"data": 2},
          "pipeline": {"pipeline": 2}}  # fmt: skip
MICROBATCHES = 4


@dataclass(frozen=True, eq=False)
class Case:
    """A model on a mesh.

    Args:
        model: what runs; its only output that is differentiated is `output`.
        mesh: the devices, by axis.
        inputs: what goes in; the leading dimension is split over `data`, if there is that axis.
        output: whose gradient is given.
        schedule: of a pipeline.
        pipeline: how a pipeline runs whose stages are said by name.
    """

    model: ml.Model
    mesh: Mapping[str, int]
    inputs: Inputs
    output: str
    schedule: str | None = None
    pipeline: ml.PipelineOptions | None = None

    def compile(self, backend: ml.Backend) -> ml.CompiledModel:
        """Return the model compiled, with a plan of outputs and gradients."""
        spec = ml.P("data") if "data" in self.mesh else ml.P()
        shapes = {n: ml.TensorSpec(x.shape, str(x.dtype), spec) for n, x in self.inputs.items()}
        options: dict[str, Any] = {}
        if self.schedule is not None:
            options["pipeline_schedule"] = self.schedule
        if self.pipeline is not None:
            options["pipeline"] = self.pipeline
        return ml.compile(self.model, backend, shapes=shapes, outputs=[self.output], **options)


def make_case(name: str, strategy: str, scale: int = 1) -> Case:
    """Return a case.

    Args:
        name: of the model, one of `MODELS`.
        strategy: one of `STRATEGIES`.
        scale: divides batches, for quick looks.
    """
    return MODELS[name](strategy, scale)


def _finish(model: ml.Model, strategy: str, inputs: Inputs, output: str) -> Case:
    if strategy == "at rest":
        model.at_rest({"*.weight": ml.P("data")})
    schedule = "1f1b" if strategy == "pipeline" else None
    return Case(model, MESHES[strategy], inputs, output, schedule)


def _normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _chain(strategy: str, stages: list[ml.Model], batch: int) -> ml.Model:
    """Return models one after another, as stages of a pipeline where that is the strategy."""
    model = ml.Model()
    if strategy == "pipeline":
        model |= ml.Pipeline(stages, microbatch_size=batch // MICROBATCHES, name="stages")(
            input="input", output="output"
        )
        return model
    for number, stage in enumerate(stages):
        given = "input" if number == 0 else f"between{number}"
        made = "output" if number == len(stages) - 1 else f"between{number + 1}"
        model |= stage(input=given, output=made)
    return model


def mlp(strategy: str, scale: int) -> Case:
    """Return an MLP of six layers."""
    batch, width = 1024 // scale, 512
    stages = []
    for stage in range(2):
        part = ml.Model(name=f"part{stage}")
        for layer in range(3):
            part += ml.Linear(width, name=f"linear{layer}")(
                **({"input": "input"} if layer == 0 else {})
            )
            part += ml.Gelu(name=f"gelu{layer}")(**({"output": "output"} if layer == 2 else {}))
        stages.append(part)
    model = _chain(strategy, stages, batch)
    if strategy == "tensor":
        for stage in range(2):
            column, row = ml.P("tensor", None), ml.P(None, "tensor")
            model.shard({f"part{stage}.linear0.weight": column, f"part{stage}.linear1.weight": row})
    return _finish(model, strategy, {"input": _normal(batch, width)}, "output")


def _residual(channels: int, name: str) -> ml.Model:
    block = ml.Model(name=name)
    block |= ml.Conv2d(channels, 3, padding=1, name="conv1")(input="input", output="a")
    block |= ml.GroupNorm(8, name="norm1")(input="a", output="b")
    block |= ml.Relu(name="relu1")(input="b", output="c")
    block |= ml.Conv2d(channels, 3, padding=1, name="conv2")(input="c", output="d")
    block |= ml.GroupNorm(8, name="norm2")(input="d", output="e")
    block |= ml.Add()(inputs=["input", "e"], output="f")
    block |= ml.Relu(name="relu2")(input="f", output="output")
    return block


def cnn(strategy: str, scale: int) -> Case:
    """Return a convolutional network with residual blocks."""
    batch, channels = 32 // scale, 32
    stages = []
    for stage in range(2):
        part = ml.Model(name=f"part{stage}")
        part |= _residual(channels, "block0")(input="input", output="between")
        part |= _residual(channels, "block1")(input="between", output="output")
        stages.append(part)
    model = _chain(strategy, stages, batch)
    if strategy == "tensor":
        model.shard({"*.conv1.weight": ml.P("tensor"), "*.conv2.weight": ml.P(None, "tensor")})
    return _finish(model, strategy, {"input": _normal(batch, channels, 28, 28)}, "output")


def transformer(strategy: str, scale: int) -> Case:
    """Return a GPT with its loss; as a pipeline, its blocks alone."""
    sizes, vocabulary = Sizes(4, 256, 4, 1024, 128, 8 // scale), 1024
    if strategy == "pipeline":
        stages = []
        for stage in range(2):
            part = ml.Model(name=f"part{stage}")
            part |= transformer_block(sizes, "block0")(x="input", y="between")
            part |= transformer_block(sizes, "block1")(x="between", y="output")
            stages.append(part)
        shape = (sizes.batch, sizes.context, sizes.width)
        return _finish(
            _chain(strategy, stages, sizes.batch), strategy, {"input": _normal(*shape)}, "output"
        )
    model = with_loss(gpt(vocabulary, sizes))
    if strategy == "tensor":
        megatron(model)
    ids = np.random.default_rng(0).integers(0, vocabulary, (sizes.batch, sizes.context), np.int32)
    return _finish(model, strategy, {"tokens": ids, "target": ids}, "loss")


def moe(strategy: str, scale: int) -> Case:
    """Return two layers of experts with residual connections."""
    batch, context, width = 8 // scale, 128, 256
    stages = []
    for stage in range(2):
        part = ml.Model(name=f"part{stage}")
        part |= ml.MoE(8, 512, top_k=2, name="moe")(input="input", output="served")
        part |= ml.Add()(inputs=["input", "served"], output="output")
        stages.append(part)
    model = _chain(strategy, stages, batch)
    if strategy == "tensor":
        model.shard({"*.experts.in.weight": ml.P("tensor"), "*.experts.out.weight": ml.P("tensor")})
    return _finish(model, strategy, {"input": _normal(batch, context, width)}, "output")


MODELS: Mapping[str, Callable[[str, int], Case]] = {
    "MLP": mlp, "CNN": cnn, "GPT": transformer, "MoE": moe,
}  # fmt: skip
