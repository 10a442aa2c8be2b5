"""Stages and placed layers on PyTorch: against `torch.distributed.pipelining`, and by hand.

A GPT of four blocks runs as a pipeline of four stages, on both sides in the order of 1F1B: with
Mithril, and as `Schedule1F1B` over `PipelineStage`. Then sixteen segments, each a linear layer and a
relu, go round four devices: with Mithril, and by hand through autograd with `dist.send` and
`dist.recv` between the ranks. A step ends when it has ended on all ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import mithril as ml
import numpy as np
import torch
import torch.distributed as dist
from mithril.cli.gpt import Sizes, gpt, with_loss
from torch import nn
from torch.nn import functional

from benchmarks import torch_by_hand
from benchmarks.harness import BLOCKS_KEPT, Limit, interleave, ratio, report, settle
from benchmarks.sides import INPUTS, SIZES, VOCABULARIES, Functions, Times, data_of
from benchmarks.torch_sides import VERSION, hand_in, in_job, take_over, together
from tests.tolerances import TOLERANCE

RANKS, MICROBATCHES, SEGMENTS = 4, 8, 16
PIPELINE, TORCH, PLACED, BY_HAND = "mithril, 1f1b", "Schedule1F1B", "mithril, placed", "by hand"
PIPELINE_LIMIT, PLACED_LIMIT = 1.0, 1.1


@dataclass(frozen=True, eq=False)
class Ours:
    """Mithril's side: one step is outputs and gradients of all parameters.

    Args:
        compiled: the model.
        params: its parameters, each on the ranks of its stage.
        inputs: its inputs.
        gradient: of its only output.
    """

    compiled: ml.CompiledModel
    params: Mapping[str, ml.Array]
    inputs: Mapping[str, ml.Array]
    gradient: ml.Array

    def step(self) -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        (name,) = self.compiled.outputs
        found: Any = self.compiled.evaluate(self.params, self.inputs, {name: self.gradient})
        return found

    def check(self, own: nn.Module, prefix: Callable[[str], str]) -> None:
        """Refuse gradients that differ from those of a module that holds this rank's layers."""
        rtol, atol = TOLERANCE["float32"]
        _, gradients = self.step()
        here = {name: x.shards for name, x in gradients.items() if x.shards is not None}
        theirs = {prefix(name): p.grad for name, p in own.named_parameters()}
        assert here.keys() == theirs.keys(), f"{sorted(here)} here, not {sorted(theirs)}"
        for name, slope in theirs.items():
            np.testing.assert_allclose(here[name].numpy(), slope.numpy(), rtol, atol, err_msg=name)


def ours(
    model: ml.Model, backend: ml.Backend, data: Mapping[str, np.ndarray], **options: Any
) -> Ours:
    """Return Mithril's side, planned."""
    compiled = ml.compile(model, backend, **options)
    inputs = {name: backend.array(x) for name, x in data.items()}
    params = compiled.randomize_params(0)
    (output,) = compiled.evaluate(params, inputs).values()
    return Ours(compiled, params, inputs, backend.ones(*output.shape))


# ---------------------------------------------------------------- a pipeline


class First(nn.Module):
    """Embeddings and a block."""

    def __init__(self, whole: torch_by_hand.Gpt) -> None:
        super().__init__()
        self.embed, self.position, self.block0 = whole.embed, whole.position, whole.blocks[0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.block0(
            self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        )
        return found


class Last(nn.Module):
    """A block, a norm and the head."""

    def __init__(self, whole: torch_by_hand.Gpt, number: int) -> None:
        super().__init__()
        self.add_module(f"block{number}", whole.blocks[number])
        self.norm, self.head = whole.norm, whole.head
        self._number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.get_submodule(f"block{self._number}")(x)))
        return found


class Middle(nn.Module):
    """A block."""

    def __init__(self, whole: torch_by_hand.Gpt, number: int) -> None:
        super().__init__()
        self.add_module(f"block{number}", whole.blocks[number])
        self._number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.get_submodule(f"block{self._number}")(x)
        return found


def part_of(whole: torch_by_hand.Gpt, rank: int) -> nn.Module:
    """Return the stage of a rank."""
    if rank == 0:
        return First(whole)
    return Last(whole, rank) if rank == RANKS - 1 else Middle(whole, rank)


def staged(sizes: Sizes, vocabulary: int) -> ml.Model:
    """Return the GPT with a block a stage."""
    model = with_loss(gpt(vocabulary, sizes))
    for name in ("gpt.embed", "gpt.position"):
        model.stage(name, 0)
    for number in range(RANKS):
        model.stage(f"gpt.block{number}", number)
    for name in ("gpt.norm", "gpt.head", "cross_entropy_0"):
        model.stage(name, RANKS - 1)
    return model


def pipeline(sizes: Sizes, vocabulary: int) -> Functions:
    """Return the contestants of a rank, after a check that they give the same gradients."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    data, rank = data_of(sizes, vocabulary), dist.get_rank()
    backend = ml.TorchBackend(ml.Mesh(pipeline=RANKS), device="cpu")
    options = ml.PipelineOptions(schedule="1f1b", microbatch_size=sizes.batch // MICROBATCHES)
    mithril = ours(staged(sizes, vocabulary), backend, data, pipeline=options)
    whole = take_over(torch_by_hand.Gpt(vocabulary, sizes), mithril.params, "gpt.")
    own = part_of(whole, rank)
    tokens, target = (torch.tensor(data[name], dtype=torch.int64) for name in INPUTS)

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    stage = PipelineStage(own, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss)

    def step() -> None:
        own.zero_grad(set_to_none=True)
        if rank == 0:
            schedule.step(tokens)
        elif rank == RANKS - 1:
            schedule.step(target=target)
        else:
            schedule.step()

    step()
    mithril.check(own, lambda name: f"gpt.{name}")
    return {PIPELINE: ended(mithril.step), TORCH: ended(step)}


# ---------------------------------------------------------------- placed layers


def round_the_devices(width: int, segments: int) -> ml.Model:
    """Return segments, one after another on the devices in turn."""
    model = ml.Model()
    for number in range(segments):
        model += ml.Linear(width, device_id=number % RANKS, name=f"segment{number}")
        model += ml.Relu(device_id=number % RANKS)
    return model


def placement(width: int, rows: int, segments: int = SEGMENTS) -> Functions:
    """Return the contestants of a rank, after a check that they give the same gradients."""
    rank = dist.get_rank()
    x = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    backend = ml.TorchBackend(ml.Mesh(data=RANKS), device="cpu")
    mithril = ours(round_the_devices(width, segments), backend, {"input": x})
    own = nn.ModuleDict(
        {f"segment{n}": nn.Linear(width, width) for n in range(rank, segments, RANKS)}
    )
    whole = {name: torch.tensor(value.numpy()) for name, value in mithril.params.items()}
    own.load_state_dict({name: value for name, value in whole.items() if name in own.state_dict()})
    start, slope = torch.tensor(x), torch.ones(rows, width)

    def step() -> None:
        own.zero_grad(set_to_none=True)
        made: list[tuple[torch.Tensor, torch.Tensor]] = []
        before, after = (rank - 1) % RANKS, (rank + 1) % RANKS
        for n in range(rank, segments, RANKS):
            given = start
            if n > 0:
                given = torch.empty(rows, width)
                dist.recv(given, before)
                given.requires_grad_()
            result = functional.relu(own[f"segment{n}"](given))
            made.append((given, result))
            if n < segments - 1:
                dist.send(result.detach(), after)
        for n in reversed(range(rank, segments, RANKS)):
            given, result = made.pop()
            coming = slope
            if n < segments - 1:
                coming = torch.empty(rows, width)
                dist.recv(coming, after)
            result.backward(coming)
            if n > 0:
                assert given.grad is not None, "what came from another rank wants a gradient"
                dist.send(given.grad, before)

    step()
    mithril.check(own, lambda name: name)
    return {PLACED: ended(mithril.step), BY_HAND: ended(step)}


# ---------------------------------------------------------------- both


def ended(step: Callable[[], object]) -> Callable[[], object]:
    """Return a step that ends when all ranks have ended it."""

    def timed() -> object:
        found = step()
        dist.barrier()
        return found

    return timed


def limits(times: Times) -> list[Limit]:
    """Return the limits on the contestants."""
    pairs = ((PIPELINE, TORCH, PIPELINE_LIMIT), (PLACED, BY_HAND, PLACED_LIMIT))
    return [Limit(f"{of} to {to}", ratio(times, of, to), most) for of, to, most in pairs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", choices=SIZES, default="256")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    settle("benchmarks.torch_pipeline", BLOCKS_KEPT)
    sizes = replace(SIZES[given.width], batch=2 * MICROBATCHES)
    vocabulary, rows = VOCABULARIES[given.width], 128
    if given.times:
        backend = ml.TorchBackend(ml.Mesh(data=RANKS), device="cpu")  # meets the other ranks
        assert len(backend.engine.local_devices) == 1
        torch.set_num_threads(1)
        times = interleave(pipeline(sizes, vocabulary), given.rounds, 5, ready=together)
        times |= interleave(placement(sizes.width, rows), given.rounds, 5, ready=together)
        hand_in(times, given.times)
        return 0
    passed = ["--width", given.width, "--rounds", str(given.rounds)]
    times = in_job("benchmarks.torch_pipeline", RANKS, passed)
    title = (
        f"GPT {sizes}, {MICROBATCHES} micro-batches on {RANKS} stages; {SEGMENTS} segments of "
        f"width {sizes.width} on {RANKS} devices; {VERSION}"
    )
    return report(title, times, limits(times))


if __name__ == "__main__":
    sys.exit(main())
