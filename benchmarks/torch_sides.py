"""A training step on PyTorch as Mithril runs it and as one writes it, ready to be compared.

Both sides get tensors that lie on the device already, and give a loss and gradients of all
parameters. On several ranks every process of one job holds all contestants, so that they exchange
data over the same network in the same minute: Mithril runs there as it does under torchrun.
"""

from __future__ import annotations

import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeVar

import mithril as ml
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from benchmarks.sides import Mithril, Times, leave, times_of_job
from tests.tolerances import TOLERANCE

VERSION = f"PyTorch {version('torch')}"
COUNTED_STEP = "a counted step"
"""Marks where memory is counted from."""
COUNTED = 3
"""How often it is counted where nothing else is said."""

Tensors = dict[str, torch.Tensor]
Module = TypeVar("Module", bound=nn.Module)


class Ours(Mithril):
    """Mithril's side."""

    def step(self) -> tuple[dict[str, ml.Array], dict[str, ml.Array]]:
        """Return outputs and gradients."""
        return self.evaluate()

    def found(self) -> tuple[np.ndarray, Tensors]:
        """Return the loss, and this rank's parts of the gradients."""
        outputs, gradients = self.step()
        return outputs["loss"].numpy(), {name: x.shards for name, x in gradients.items()}


@dataclass(frozen=True, eq=False)
class Eager:
    """The side that goes through autograd.

    Args:
        module: gives the loss; perhaps wrapped to run on several ranks.
        inputs: its arguments.
    """

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]

    def step(self) -> torch.Tensor:
        """Return the loss and leave the gradients with the parameters."""
        self.module.zero_grad(set_to_none=True)
        loss: torch.Tensor = self.module(*self.inputs)
        loss.backward()
        return loss

    def found(self) -> tuple[np.ndarray, Tensors]:
        """Return the loss of what this rank sees, and its parts of the gradients."""
        loss = self.step().detach().numpy()
        parts = {name: p.grad for name, p in self.module.named_parameters()}
        return loss, {name.removeprefix("module."): _local(grad) for name, grad in parts.items()}


def _local(tensor: torch.Tensor | None) -> torch.Tensor:
    assert tensor is not None, "every parameter has a gradient"
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def take_over(module: Module, params: Mapping[str, ml.Array], prefix: str = "") -> Module:
    """Give a module Mithril's parameters, and return it."""
    state = {name.removeprefix(prefix): torch.tensor(x.numpy()) for name, x in params.items()}
    module.load_state_dict(state)
    return module


def check_sides(mithril: Ours, eager: Eager, prefix: str = "", is_split: bool = False) -> None:
    """Refuse sides that give different numbers, or gradients that lie differently on ranks.

    Args:
        mithril: one side.
        eager: the other side.
        prefix: what only Mithril's names of parameters begin with.
        is_split: whether each rank of the other side gives the loss of its part of the batch.
    """
    rtol, atol = TOLERANCE["float32"]
    (ours_loss, ours_slopes), (loss, slopes) = mithril.found(), eager.found()
    if is_split:
        mean = torch.tensor(loss)
        dist.all_reduce(mean)
        loss = mean.numpy() / dist.get_world_size()
    np.testing.assert_allclose(ours_loss, loss, rtol, atol)
    assert ours_slopes.keys() == {f"{prefix}{name}" for name in slopes}
    for name, slope in slopes.items():
        found = ours_slopes[f"{prefix}{name}"]
        assert found.shape == slope.shape, f"{name}: {found.shape} here, not {slope.shape}"
        np.testing.assert_allclose(found.numpy(), slope.numpy(), rtol, atol, err_msg=name)


# ------------------------------------------------------------------ memory


def count_peak(
    step: Callable[[], object], held: Callable[[], Iterable[torch.Tensor]], runs: int = COUNTED
) -> int:
    """Return the most bytes alive at once while a function runs again.

    PyTorch's allocator tells of what it gives and takes, not of what was there; so what is alive
    before each run is added, which may lie elsewhere than before the last. It does not tell of what
    another thread frees, such as gloo's that lets go of a buffer after the program: of the runs the
    one counts that missed the least.

    Args:
        step: what runs.
        held: returns all that is alive between two runs.
        runs: how often the function runs.
    """
    activities = [torch.profiler.ProfilerActivity.CPU]
    before: list[dict[int, int]] = []
    with torch.profiler.profile(activities=activities, profile_memory=True) as seen:
        step()
        for _ in range(runs):
            before.append({})
            for storage in (x.untyped_storage() for x in held()):
                before[-1][storage.data_ptr()] = storage.nbytes()
            with torch.profiler.record_function(COUNTED_STEP):
                step()
    changes: list[tuple[int, int, int]] = []
    begins: list[int] = []
    events = list(seen.profiler.kineto_results.experimental_event_tree())
    while events:
        event = events.pop()
        events += event.children
        fields = event.extra_fields
        if isinstance(fields, torch._C._profiler._ExtraFields_Allocation):
            changes.append((event.start_time_ns, fields.ptr, fields.alloc_size))
        elif event.name == COUNTED_STEP:
            begins.append(event.start_time_ns)
    changes.sort()
    begins.sort()
    return min(
        replay(
            {place: size for place, size in storages.items() if size},
            [(place, size) for at, place, size in changes if begin <= at < end],
        )
        for storages, begin, end in zip(before, begins, [*begins[1:], sys.maxsize], strict=True)
    )


def replay(alive: dict[int, int], changes: Iterable[tuple[int, int]]) -> int:
    """Return the most bytes at once of blocks that are taken and given back.

    The profiler does not see what other threads give back, such as those of Gloo, which may be the
    last to have what a collective has sent: a block is gone once another one lies where it was.

    Args:
        alive: the bytes of the blocks at first, by address.
        changes: addresses, with bytes above 0 for what is taken, and below 0 for what is given back.
    """
    alive, places = dict(alive), sorted(alive)
    live = most = sum(alive.values())
    for place, size in changes:
        at = bisect_left(places, place)
        if size < 0:
            if place in alive:
                live -= alive.pop(place)
                del places[at]
            continue
        if at and places[at - 1] + alive[places[at - 1]] > place:
            at -= 1
        while at < len(places) and places[at] < place + size:
            live -= alive.pop(places.pop(at))
        places.insert(at, place)
        alive[place] = size
        live += size
        most = max(most, live)
    return most


# ------------------------------------------------------------------ a job of several ranks


def in_job(
    module: str,
    ranks: int,
    arguments: list[str],
    inside: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    is_quiet: bool = False,
) -> Times:
    """Run a benchmark's module under torchrun and return the times of rank 0.

    Args:
        module: its name.
        ranks: how many processes.
        arguments: of the module.
        inside: what the command begins with, such as that of `network.limit`.
        environment: variables to set besides.
        is_quiet: as in `times_of_job`.
    """
    torchrun = [*inside, sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", str(ranks), "-m", module, *arguments]
    network = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
    return times_of_job(command, {**network, **(environment or {})}, is_quiet)


def hand_in(times: Times, path: str) -> None:
    """Leave the times of rank 0 for whoever started the job, and end together."""
    if dist.get_rank() == 0:
        leave(times, path)
    dist.barrier()
    dist.destroy_process_group()


def together() -> None:
    """Wait until all ranks have come here, so that none is timed while others still work."""
    if dist.is_initialized():
        dist.barrier()
