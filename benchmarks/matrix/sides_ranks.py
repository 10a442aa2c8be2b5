"""The sides of a row on PyTorch in a job of ranks: every process holds all of them.

By hand these are `DistributedDataParallel` with buckets of several sizes, FSDP2 around blocks and
around the whole, and tensor parallelism after Megatron; both kinds together are that inside
`DistributedDataParallel`. A pipeline is PyTorch's own, in
the order of 1F1B on both sides; there a call ends when it has ended on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.matrix.by_hand_torch import list_blocks, make_module
from benchmarks.matrix.cases import DATA, DATA_TENSOR, FSDP, MICROBATCHES, PIPELINE, Row
from benchmarks.matrix.contest import (
    MITHRIL,
    Side,
    check_gradients,
    check_losses,
    measure,
    take_time,
)
from benchmarks.matrix.models import split_layers
from benchmarks.matrix.sides_torch import differentiate, open_ours, read_inputs
from benchmarks.torch_megatron import Rows, keep_columns, split_block, sum_gradients
from benchmarks.torch_pipeline import ended, part_of
from benchmarks.torch_sides import hand_in, together
from benchmarks.training_torch import by_hand, fused, list_held, mean_of, peak_of

BUCKETS = (1, 2, 5, 25)
"""MiB of a bucket of gradients that are tried; PyTorch's own choice is the last."""
Prepare = Callable[[nn.Module], nn.Module]


def run_rank(row: Row, seconds: float, path: str) -> None:
    """Measure a row as one rank of a job; the first leaves times, first calls and peaks."""
    hand_in(measure(contest(row), seconds, together, _agree), path)


def _agree(said: Any) -> Any:
    """Return what the first rank says."""
    kept = [said]
    dist.broadcast_object_list(kept)
    return kept[0]


def contest(row: Row) -> dict[str, Side]:
    """Return the sides of a rank, after a check that they give the same numbers."""
    ours = open_ours(row)  # which starts the group of processes
    check_gradients(ours.differentiate(), partial(differentiate, row), ours.start)
    first = ours.planning + take_time(ours.run)
    sides = {MITHRIL: Side(ours.run, ours.loss, partial(peak_of, ours.run, ours.list_held), first)}
    if row.parallelism == PIPELINE:
        ours_too = replace(sides[MITHRIL], run=ended(ours.run))
        sides = {MITHRIL: ours_too, "Schedule1F1B": stage_of(row, make_module(row, ours.start))}
        check_losses(sides)
        return sides
    sizes = row.mesh
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    for name, prepare in list_ways(row, mesh).items():
        sides[name] = side_of(row, prepare(make_module(row, ours.start)), mesh)
    check_losses(sides)
    return sides


def side_of(row: Row, module: nn.Module, mesh: DeviceMesh) -> Side:
    """Return a side by hand, called once."""
    inputs = read_inputs(row)
    if "data" in row.mesh:
        number, count = mesh.get_local_rank("data"), mesh["data"].size()
        inputs = tuple(x.chunk(count)[number].contiguous() for x in inputs)
    optimizer = fused(module.parameters())
    run = by_hand(module, inputs, optimizer)
    first = take_time(run)
    peak = partial(peak_of, run, partial(list_held, module, optimizer, inputs))
    # PyTorch's profiler, which counts, crashes now and then with DDP: a fault in its tree of events.
    is_told = not isinstance(module, DistributedDataParallel)
    return Side(run, mean_of(run, row.ranks), peak if is_told else None, first)


def list_ways(row: Row, mesh: DeviceMesh) -> dict[str, Prepare]:
    """Return the ways to spread a module over ranks."""
    if row.parallelism == DATA:
        return {
            f"DDP, {size} MiB": partial(DistributedDataParallel, bucket_cap_mb=size)
            for size in BUCKETS
        }
    if row.parallelism == FSDP:
        return {"FSDP2, blocks": partial(shard, mesh), "FSDP2, whole": partial(shard_whole, mesh)}
    split = partial(megatron, row, mesh["tensor"])
    if row.parallelism == DATA_TENSOR:
        group = mesh["data"].get_group()
        return {
            f"Megatron in DDP, {size} MiB": lambda module, size=size: DistributedDataParallel(
                split(module), process_group=group, bucket_cap_mb=size
            )
            for size in BUCKETS[1::2]
        }
    return {"Megatron by hand": split}


def shard(mesh: DeviceMesh, module: nn.Module) -> nn.Module:
    """Return a module whose blocks are gathered one after another."""
    for block in list_blocks(module):
        fully_shard(block, mesh=mesh)
    return shard_whole(mesh, module)


def shard_whole(mesh: DeviceMesh, module: nn.Module) -> nn.Module:
    """Return a module that is gathered at once."""
    return fully_shard(module, mesh=mesh)


# ------------------------------------------------------------------ a pipeline


def stage_of(row: Row, module: Any) -> Side:
    """Return the side of `torch.distributed.pipelining` in the order of 1F1B, called once."""
    rank, inputs = dist.get_rank(), read_inputs(row)
    last = row.ranks - 1
    own = part_of(module, rank)

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    stage = PipelineStage(own, rank, row.ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss)
    optimizer = fused(own.parameters())

    @ended
    def run() -> float:
        optimizer.zero_grad(set_to_none=True)
        losses: list[torch.Tensor] = []
        if rank == last:
            schedule.step(target=inputs[1], losses=losses)
        else:
            schedule.step(*([inputs[0]] if rank == 0 else []))
        optimizer.step()
        return float(torch.stack(losses).mean()) if losses else 0.0

    def told() -> float:
        found = torch.tensor(run())
        dist.broadcast(found, last)
        return float(found)

    first = take_time(run)
    held = partial(list_held, own, optimizer, inputs)
    return Side(run, told, partial(peak_of, run, held), first)


# ------------------------------------------------------------------ Megatron


def megatron(row: Row, mesh: DeviceMesh, module: Any) -> nn.Module:
    """Split an MLP, a GPT or a Llama over ranks (Shoeybi et al., 2019)."""
    if row.model == "mlp":
        for i in range(0, split_layers(row.sizes), 2):
            keep_columns(module.layers[i], mesh)
            if i:  # nobody wants the gradient of the input
                sum_gradients(module.layers[i], mesh)
            module.layers[i + 1] = Rows(module.layers[i + 1], mesh)
            module.add_module(f"layer{i + 1}", module.layers[i + 1])
        return module
    for block in module.blocks:
        split_block(block, mesh)
    return module
