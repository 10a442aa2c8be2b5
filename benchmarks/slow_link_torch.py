"""The sides of the benchmark behind a slow link: PyTorch's wrappers and hooks, and Mithril's steps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import mithril as ml
import torch
import torch.distributed as dist
from mithril.cost import PlanTimeline
from mithril.cost.events import COMMUNICATION, COMPUTE
from mithril.ir import Phase
from mithril_torch.program.runtime_library import (
    all_gather,
    all_reduce,
    make_group,
    permute,
    reduce_scatter,
)
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from benchmarks.network import behind
from benchmarks.sides import Functions, Times
from benchmarks.slow_link import BESIDE, PREDICTED
from benchmarks.training_cases import CHECKED, Case, Ours, check
from benchmarks.training_torch import by_hand, fused, make_module, mean_of, read_inputs

CAPS = (1, 2, 5, 25)
"""MiB of a bucket."""
COMMUNICATING: Mapping[str, dict[str, Any]] = {
    **{f"{cap} MiB": {"fusion_bytes": cap << 20} for cap in CAPS},
    "no overlap": {"overlap_communication": False},
    "in buckets": {"communication_overlap_strategy": "bucket"},
    "not fused": {"all_reduce_fusion": False},
}
OWN: Mapping[str, dict[str, Any]] = {
    "zero 0": {"zero": 0},
    **{f"zero 0, {name}": {"zero": 0, **options} for name, options in COMMUNICATING.items()},
    "zero 1": {"zero": 1},
    "zero 1, 2 MiB": {"zero": 1, "fusion_bytes": 2 << 20},
    "zero 1, in buckets": {"zero": 1, "communication_overlap_strategy": "bucket"},
}
"""Strategies of Mithril that one can ask for, all of which send as many bytes."""
AUTO = "auto"
RANK = 2
"""Of the matrices that PowerSGD sends."""

Peer = Callable[[Any], tuple[Any, Any]]
"""From a module to what is trained in its place, and the optimiser."""


def contestants(
    case: Case,
    ranks: int,
    rate: str | None,
    sides: Collection[str],
    hardware: str | None = None,
) -> tuple[Functions, Times]:
    """Return the contestants of a rank of a job, and the seconds predicted for Mithril's steps.

    Args:
        case: what is trained.
        ranks: how many there are.
        rate: of the link.
        sides: which of them are timed.
        hardware: a file with the profile of the machine; None for what is known of its kind.
    """
    backend = ml.TorchBackend(  # which starts the group of processes
        ml.Mesh(data=ranks), device="cpu", hardware=hardware
    )
    backend.hardware = behind(backend.hardware, rate, ranks)
    mine = tuple(x.chunk(ranks)[dist.get_rank()] for x in read_inputs(case))
    found: Functions = {}
    predicted: Times = {}

    def add_own(name: str, made: Ours) -> None:
        found[name] = made.step
        predicted[PREDICTED + name] = [made.run.plan.timeline(backend.hardware).seconds]

    def add(name: str, made: Ours, peers: Mapping[str, Peer], dtype: str = "float32") -> None:
        wrapped = {peer: wrap(make_module(case, made)) for peer, wrap in peers.items()}
        losses = [made.loss() for _ in range(CHECKED)]
        add_own(name, made)
        for peer, (module, optimizer) in wrapped.items():
            found[peer] = by_hand(module, mine, optimizer)
            own = iter(losses)
            check(lambda own=own: next(own), mean_of(found[peer], ranks), peer, dtype)

    ours = Ours(backend, case, AUTO)
    add("mithril", ours, dict(list_ddp()) if "ddp" in sides else {})
    if "own" in sides:
        for name, options in OWN.items():
            add_own(f"mithril, {name}", Ours(backend, case, **options))
    if "fp16" in sides:
        small = Ours(backend, case, gradient_compression="fp16")
        add("mithril, fp16", small, {"DDP, fp16 hook": hook_in(fp16_compress_hook)}, "float16")
    if "powersgd" in sides:
        # Both sums are whole in the steps that are compared, as factors begin with random numbers.
        form = ml.GradientCompression("powersgd", rank=RANK, warmup=CHECKED)
        small = Ours(backend, case, gradient_compression=form)
        state = powersgd.PowerSGDState(None, RANK, start_powerSGD_iter=CHECKED)
        peer = hook_in(powersgd.powerSGD_hook, state)
        add("mithril, powersgd", small, {"DDP, powerSGD hook": peer})
    if "fsdp" in sides:
        add("mithril, zero 3", Ours(backend, case, 3), {"FSDP2": fsdp_on(ranks)})
        # PyTorch makes a reduce_scatter over Gloo of an all_reduce, which is twice the bytes;
        # Mithril does not, and what it does is held against messages between all ranks.
        direct = Ours(backend, case, 3, collective_ops={"reduce_scatter": "direct"})
        add_own("mithril, zero 3, direct", direct)
    if "hidden" in sides:
        found["computing alone"] = Ours(ml.TorchBackend(device="cpu"), share(case, ranks)).step
        found["collectives alone"] = collectives_of(ours.run.plan, ranks)
        apart = Ours(backend, case, AUTO, all_reduce_fusion=False).run.plan
        predicted[PREDICTED + BESIDE] = [find_share_beside(apart.timeline(backend.hardware))]
    return found, predicted


# ------------------------------------------------------------------ PyTorch's


def list_ddp() -> Iterator[tuple[str, Peer]]:
    """Yield DDP with its own buckets, and with those of some sizes."""

    def of(**options: Any) -> Peer:
        def wrap(module: Any) -> tuple[Any, Any]:
            wrapped = DistributedDataParallel(module, **options)
            return wrapped, fused(wrapped.parameters())

        return wrap

    yield "DDP", of()
    for cap in CAPS:
        yield f"DDP, {cap} MiB", of(bucket_cap_mb=cap)


def hook_in(hook: Any, state: Any = None) -> Peer:
    """Return DDP with a hook that compresses gradients."""

    def wrap(module: Any) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(module)
        wrapped.register_comm_hook(state, hook)
        return wrapped, fused(wrapped.parameters())

    return wrap


def fsdp_on(ranks: int) -> Peer:
    """Return FSDP2 whose blocks are gathered one ahead, in both phases."""

    def wrap(module: Any) -> tuple[Any, Any]:
        devices = init_device_mesh("cpu", (ranks,))
        for block in module.blocks:
            fully_shard(block, mesh=devices)
        fully_shard(module, mesh=devices)
        for first, second in pairwise(module.blocks):
            first.set_modules_to_forward_prefetch([second])
            second.set_modules_to_backward_prefetch([first])
        return module, fused(module.parameters())

    return wrap


# ------------------------------------------------------------------ what a step is made of


def share(case: Case, ranks: int) -> Case:
    """Return what one rank of several computes."""
    return replace(case, sizes=replace(case.sizes, batch=case.sizes.batch // ranks))


def find_share_beside(timeline: PlanTimeline) -> float:
    """Return the share of computing that is left of both phases once something may be sent."""
    (row, *_) = timeline.rows
    first = min(event.start for event in row.events if event.stream == COMMUNICATION)
    computing = [event for event in row.events if event.stream == COMPUTE]
    left = (x for x in computing if x.phase != Phase.update and x.start >= first)
    return sum(x.end - x.start for x in left) / sum(x.end - x.start for x in computing)


def collectives_of(plan: ml.Plan, ranks: int) -> Callable[[], None]:
    """Return a function that makes the collectives of a plan, one after the other."""
    group: Any = make_group("data", [list(range(ranks))])
    calls: list[Callable[[], Any]] = []
    for row in plan.collectives():
        whole = torch.ones(row.bytes // 4 // ranks * ranks or 1)
        if row.kind == "all_reduce":
            calls.append(partial(all_reduce, group, whole, "sum"))
        elif row.kind == "all_gather":
            calls.append(partial(all_gather, group, whole.chunk(ranks)[0], dimension=0))
        elif row.kind == "reduce_scatter":
            calls.append(partial(reduce_scatter, group, whole, reduction="sum", dimension=0))
        elif row.kind == "permute":
            around = tuple((i, (i + 1) % ranks) for i in range(ranks))
            calls.append(partial(permute, group, torch.ones(row.bytes // 4 or 1), pairs=around))
        else:
            raise ValueError(f"plan has a {row.kind}, which this benchmark does not time")

    def run() -> None:
        for call in calls:
            call().wait()

    return run
