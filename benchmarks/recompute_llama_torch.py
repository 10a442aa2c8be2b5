"""A Llama in a pipeline as one writes it by hand in PyTorch, with every layer computed again.

Stages run in the order of `Schedule1F1B`; each block is a checkpoint, split over `tensor` after
Megatron, and FSDP2 keeps a part of it on each rank of `data`; the update is a fused AdamW. FSDP2 has
two ways with micro-batches. Parameters and gradients of a stage stay whole from the first backward
until the last one has ended, as PyTorch's schedules ask for by themselves; or each backward lets go
of parameters and scatters gradients, which takes less memory and more communication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import mithril as ml
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

from benchmarks import torch_by_hand
from benchmarks.recompute_llama import HAND, ByHand, Framework
from benchmarks.torch_megatron import split_block
from benchmarks.torch_sides import together
from benchmarks.training_cases import Case, Ours
from benchmarks.training_torch import fused, list_held, list_kept, peak_of, read_inputs

WAYS = {f"{HAND}, gradients whole": False, f"{HAND}, gradients scattered": True}
"""Whether each backward scatters gradients."""
RUNS = 3
"""How often memory is counted: a step takes seconds."""


class Part(nn.Module):
    """The layers of a stage.

    Args:
        whole: the model.
        number: of the stage.
        count: of stages.
    """

    def __init__(self, whole: torch_by_hand.Llama, number: int, count: int) -> None:
        super().__init__()
        each = len(whole.blocks) // count
        self.embed = whole.embed if number == 0 else None
        self.blocks = nn.ModuleList(whole.blocks[number * each : (number + 1) * each])
        is_last = number == count - 1
        self.norm, self.head = (whole.norm, whole.head) if is_last else (None, None)
        for block in self.blocks:  # all turn by the same angles, which lie there once
            block.attn.cos, block.attn.sin = whole.blocks[0].attn.cos, whole.blocks[0].attn.sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))

    def split(self, mesh: DeviceMesh) -> Part:
        """Spread the layers over ranks; each block is a checkpoint."""
        options = {"mesh": mesh["data"], "reshard_after_forward": True}
        for i, block in enumerate(self.blocks):
            split_block(block, mesh["tensor"])
            again = checkpoint_wrapper(block, preserve_rng_state=False)  # nothing is random
            self.blocks[i] = fully_shard(again, **options)
        return fully_shard(self, **options)


class Scattering(PipelineStage):
    """A stage that has its gradients scattered by each backward, as FSDP2 does outside a pipeline."""

    def backward_maybe_with_nosync(
        self, backward_type: str, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        module: Any = self.submod
        asked = (FSDPModule.set_requires_gradient_sync, FSDPModule.set_reshard_after_backward,
                 FSDPModule.set_is_last_backward)  # fmt: skip
        for ask in asked:
            ask(module, True)
        kept = self.submod
        self.submod = _Plain()
        try:
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        finally:
            self.submod = kept


class _Plain(nn.Module):
    """A module that the pipeline does not take for one of FSDP2."""


def make_by_hand(
    case: Case, params: Mapping[str, np.ndarray], mesh: ml.Mesh, microbatch: int, scatters: bool
) -> ByHand:
    """Return a side of a rank.

    Args:
        case: what is trained.
        params: its parameters by name.
        mesh: of `pipeline`, `data` and `tensor`.
        microbatch: samples of a rank in a micro-batch.
        scatters: whether each backward scatters gradients.
    """
    over = init_device_mesh("cpu", tuple(mesh.sizes.values()), mesh_dim_names=tuple(mesh.sizes))
    number, stages = over.get_local_rank("pipeline"), mesh.sizes["pipeline"]
    whole = torch_by_hand.Llama(case.vocabulary, case.sizes, case.key_heads)
    whole.load_state_dict({name: torch.tensor(x) for name, x in params.items()})
    part = Part(whole, number, stages).split(over)
    shard, shards = over.get_local_rank("data"), mesh.sizes["data"]
    tokens, target = (x.chunk(shards)[shard].clone() for x in read_inputs(case))
    count = len(tokens) // microbatch

    def mean_part(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten()) / count

    kind = Scattering if scatters else PipelineStage
    stage = kind(part, number, stages, torch.device("cpu"), group=over.get_group("pipeline"))
    schedule = Schedule1F1B(stage, count, loss_fn=mean_part, scale_grads=False)
    optimizer = fused(part.parameters())
    is_last = number == stages - 1

    def step() -> torch.Tensor:
        losses: list[torch.Tensor] = []
        given = [tokens] if number == 0 else []
        more = {"target": target, "losses": losses} if is_last else {}
        schedule.step(*given, **more, return_outputs=False)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum().detach() if losses else torch.zeros(())

    def loss() -> float:
        found = step()
        dist.all_reduce(found)  # ranks of the last stage know it, as often as the axis is long
        return float(found) / (shards * mesh.sizes["tensor"])

    def held() -> Iterator[torch.Tensor]:
        yield from list_held(part, optimizer, (tokens, target))
        for each in (*stage.args_recv_info.values(), *stage.grad_recv_info.values()):
            yield from (one.buffer for one in each if one.buffer is not None)

    return ByHand(step, loss, lambda: peak_of(step, held, RUNS))


# ------------------------------------------------------------------ for the benchmark


def open_torch(mesh: ml.Mesh) -> Framework:
    """Return how sides run on a rank of a job."""
    backend = ml.TorchBackend(mesh, device="cpu")
    return Framework(backend, measure, list_by_hand, lambda side: together())


def measure(make: Callable[[], Ours]) -> tuple[Ours, int]:
    """Return Mithril's side, and what the fullest rank of a job holds."""
    ours = make()
    return ours, peak_of(ours.step, lambda: list_kept(ours), RUNS)


def list_by_hand(*given: Any) -> dict[str, Callable[[], ByHand]]:
    """Return what makes the sides by hand; arguments are those of `make_by_hand`."""
    return {name: partial(make_by_hand, *given, scatters) for name, scatters in WAYS.items()}
