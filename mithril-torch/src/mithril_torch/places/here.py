"""One device of this process: programs are functions that are called here.

Also what every process of a job does with its own device; then `distributed` has made the process
group that its collectives use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from mithril.engine import Observer
from mithril.engine.kernels.registry import Kernel
from mithril.engine.protocol import Produce
from mithril.engine.shards import host_shards
from mithril.errors import BackendError
from mithril.mesh import Mesh, Sharding
from mithril.plan import Plan, Program
from mithril.types import TensorType

from mithril_torch import prelude
from mithril_torch.pool.recorder import recording
from mithril_torch.recorded import Row, carried_out, issued
from mithril_torch.source import Written, write
from mithril_torch.staged import write_plan
from mithril_torch.style import Style
from mithril_torch.tensors import as_written, to_numpy, to_tensor

Handle = torch.Tensor | None
"""What this process's device holds of an array; None where the array lies on other devices."""


class Here:
    """A handle is the tensor that this process's device holds.

    Args:
        mesh: the devices of all processes, or some of them.
        device: where this process's tensors lie.
        rank: which device of all that is.
    """

    def __init__(self, mesh: Mesh, device: str, rank: int = 0) -> None:
        self._mesh = mesh
        self._device = device
        self._rank = rank

    @property
    def device(self) -> str:
        """Where this process's tensors lie."""
        return self._device

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each device."""
        if self._mesh.size == 1 and not self._mesh.devices:
            return (self._device,)
        return tuple(f"rank {rank}" for rank in self._mesh.flat)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """The one device of this process, if it is among those of the mesh."""
        flat = self._mesh.flat
        return (flat.index(self._rank),) if self._rank in flat else ()

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make this process's part of a distributed array."""
        parts = host_shards(type, sharding, produce, self.local_devices)
        return to_tensor(parts[0], self._device) if parts else None

    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what this process's device holds.

        Raises:
            BackendError: another process has the device.
        """
        return self._held(shards, sharding, device)

    def _held(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        rank = sharding.mesh.in_whole(device)
        if shards is None or rank != self._rank:
            raise BackendError(
                f"device {rank} belongs to rank {rank}, not to this one ({self._rank}); its "
                f"part cannot be read here; reshard the array to P() first"
            )
        return to_numpy(shards)

    def parts(self, wanted: Sequence[tuple[Handle, Sharding, int]]) -> list[np.ndarray]:
        """Return what this process's device holds of several arrays.

        Raises:
            BackendError: another process has a device.
        """
        return [self._held(*one) for one in wanted]

    def part(self, mesh: Mesh) -> Here:
        """Return some of the devices; this process need not have one of them."""
        return Here(mesh, self._device, self._rank)

    def lower(
        self, program: Program, kernels: Mapping[str, Kernel], style: Style
    ) -> HereExecutable:
        """Write a program as text and load it."""
        written = write(program, kernels, style=replace(style, watched=False))
        return HereExecutable(written, self._device, self._rank, partial(map, issued))

    def lower_plan(self, plan: Plan, kernels: Mapping[str, Kernel], style: Style) -> HereExecutable:
        """Write this process's part of a plan of several stages as text and load it."""
        written = write_plan(plan, kernels, replace(style, watched=False), self._rank)

        def told(seen: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
            return carried_out(plan, {self._rank: seen})

        return HereExecutable(written, self._device, self._rank, told)


class HereExecutable:
    """A written program as a function of this process.

    Args:
        written: the program.
        device: where its constants are made.
        rank: of this process.
        told: returns what was carried out, from what was seen.
    """

    def __init__(
        self,
        written: Written,
        device: str,
        rank: int,
        told: Callable[[Sequence[Mapping[str, Any]]], Iterable[Row]],
    ) -> None:
        self.written = written
        self._told = told
        self.names: dict[str, Any] = {
            **vars(prelude), **written.users, "device": device, "rank": rank,
            "step": [0],
        }  # fmt: skip
        exec(compile(written.text, f"<mithril program {id(self)}>", "exec"), self.names)
        self._run = self.names["run"]
        self._device = device

    def __call__(self, inputs: Sequence[Handle], observe: Observer | None = None) -> list[Handle]:
        """Run once; an observer is told of the collectives that PyTorch carried out."""
        with torch.inference_mode(), as_written(self._device):
            if observe is None:
                results: list[Handle] = self._run(inputs)
                return results
            with recording(memoryview(bytearray(1))) as rows:
                results = self._run(inputs)
        for row in self._told(rows):
            observe(*row)
        return results
