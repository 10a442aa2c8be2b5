"""The sides of the benchmark of training on PyTorch: one rank, or those of a job."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import mithril as ml
import torch
import torch.distributed as dist
from mithril.trees import flatten
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from benchmarks import torch_by_hand
from benchmarks.sides import INPUTS, Functions, Times
from benchmarks.torch_sides import count_peak
from benchmarks.training_cases import DECAY, RATE, Case, Ours, check

PEAK = "peak bytes of "
"""What the names of counts of memory begin with, among times."""
RUNS = 8
"""How often memory is counted: of several ranks each is to have missed nothing once."""
ZERO, FSDP = "mithril, zero 3", "FSDP2, fused AdamW"


def make_module(case: Case, ours: Ours) -> Any:
    """Return the model by hand with Mithril's parameters."""
    if case.key_heads:
        made: Any = torch_by_hand.Llama(case.vocabulary, case.sizes, case.key_heads)
    else:
        made = torch_by_hand.Gpt(case.vocabulary, case.sizes)
    made.load_state_dict({n: torch.tensor(x) for n, x in ours.parameters().items()})
    return made


def by_hand(module: Any, inputs: tuple[Any, ...], optimizer: Any) -> Callable[[], Any]:
    """Return a step of autograd and an optimiser."""

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = module(*inputs)
        loss.backward()
        optimizer.step()
        return loss

    return step


def fused(parameters: Any) -> Any:
    """Return AdamW with PyTorch's fused kernel."""
    return torch.optim.AdamW(parameters, RATE, weight_decay=DECAY, fused=True)


def read_inputs(case: Case) -> tuple[torch.Tensor, ...]:
    """Return tokens and targets as PyTorch takes them."""
    return tuple(torch.tensor(case.data()[name], dtype=torch.int64) for name in INPUTS)


# ------------------------------------------------------------------ one rank


def alone(case: Case) -> Functions:
    """Return the contestants on one rank; without a compiler, which is said, one fewer."""
    ours, inputs = Ours(ml.TorchBackend(device="cpu"), case), read_inputs(case)
    modules = {"eager, fused AdamW": make_module(case, ours)}
    if can_compile():
        modules["torch.compile, fused AdamW"] = torch.compile(make_module(case, ours))
    found: Functions = {"mithril": ours.step}
    losses = [ours.loss() for _ in range(3)]
    for name, module in modules.items():
        step = by_hand(module, inputs, fused(module.parameters()))
        own = iter(losses)
        check(lambda own=own: next(own), lambda step=step: float(step().detach()), name)
        found[name] = step
    return found


def can_compile() -> bool:
    """Return whether `torch.compile` finds a compiler that works; say so if it does not."""
    try:
        torch.compile(lambda x: x * 2 + 1)(torch.ones(8))
    except RuntimeError as error:  # what Dynamo and Inductor raise
        reason = str(error).strip().splitlines()[0]
        print(f"torch.compile is left out: {type(error).__name__}: {reason}", file=sys.stderr)
        return False
    return True


# ------------------------------------------------------------------ a job of ranks


def spread(case: Case, ranks: int) -> tuple[Functions, Times]:
    """Return the contestants of a rank of a job, and the peak bytes of ZeRO 3 and FSDP2."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    backend = ml.TorchBackend(  # which starts the group of processes
        ml.Mesh(data=ranks), device="cpu"
    )
    mine = tuple(x.chunk(ranks)[dist.get_rank()] for x in read_inputs(case))
    devices = init_device_mesh("cpu", (ranks,))

    def ddp(made: Any) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(made)
        return wrapped, fused(wrapped.parameters())

    def redundancy(made: Any) -> tuple[Any, Any]:
        wrapped = DistributedDataParallel(made)
        return wrapped, ZeroRedundancyOptimizer(
            wrapped.parameters(), torch.optim.AdamW, lr=RATE, weight_decay=DECAY, fused=True
        )

    def fsdp(made: Any) -> tuple[Any, Any]:
        for block in made.blocks:
            fully_shard(block, mesh=devices)
        fully_shard(made, mesh=devices)
        return made, fused(made.parameters())

    sides = {
        "mithril, data": (0, "DDP, fused AdamW", ddp),
        ZERO: (3, FSDP, fsdp),
        "mithril, zero 1": (1, "DDP, ZeroRedundancyOptimizer", redundancy),
    }
    found: Functions = {}
    peaks: Times = {}
    for name, (zero, other, make) in sides.items():
        ours = Ours(backend, case, zero)
        module, optimizer = make(make_module(case, ours))
        theirs = by_hand(module, mine, optimizer)
        check(ours.loss, mean_of(theirs, ranks), other)
        found |= {name: ours.step, other: theirs}
        if zero == 3:
            peaks[PEAK + other] = [peak_of(theirs, partial(list_held, module, optimizer, mine))]
            peaks[PEAK + name] = [peak_of(ours.step, partial(list_kept, ours))]
    return found, peaks


def mean_of(step: Callable[[], Any], ranks: int) -> Callable[[], float]:
    """Return the function of the loss over all ranks."""

    def run() -> float:
        loss = step().detach()
        dist.all_reduce(loss)
        return float(loss) / ranks

    return run


# ------------------------------------------------------------------ memory


def peak_of(
    step: Callable[[], object], held: Callable[[], Iterable[torch.Tensor]], runs: int = RUNS
) -> int:
    """Return the most bytes that the fullest rank has while a step runs; see `count_peak`."""
    most = torch.tensor(count_peak(step, held, runs))
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


def list_held(module: Any, optimizer: Any, inputs: tuple[torch.Tensor, ...]) -> Iterator[Any]:
    """Yield what a rank holds between steps: parameters, their gradients, state, inputs."""
    moments = (x for state in optimizer.state.values() for x in state.values())
    gradients = (x.grad for x in module.parameters())
    for x in (*module.parameters(), *gradients, *module.buffers(), *moments, *inputs):
        if isinstance(x, torch.Tensor):
            yield x.to_local() if isinstance(x, DTensor) else x


def list_kept(ours: Ours) -> Iterator[torch.Tensor]:
    """Yield what a rank holds of Mithril's side between steps."""
    moments: list[ml.Array] = []
    flatten(ours.state.optimizer, moments)
    for x in (*ours.state.params.values(), *moments, *ours.batch.values()):
        if x.shards is not None:
            yield x.shards
