"""The engine: devices simulated one after the other, in one process.

A handle, which only the engine looks into, is a list with the array of each device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from array_api_compat import torch as xp
from mithril.spi import (
    DType,
    Engine,
    Executable,
    Kernel,
    LockstepExecutable,
    Mesh,
    Produce,
    Program,
    Sharding,
    TensorType,
    Transfer,
    host_shards,
    move_shards,
)

from acme_eager.arrays import DTYPES, to_array, to_host
from acme_eager.kernels import KERNELS


@dataclass(frozen=True, slots=True)
class EagerEngine(Engine):
    """Arrays of PyTorch as the parts of tensors."""

    mesh: Mesh
    name = "eager"

    @property
    def platform(self) -> str:
        """The kind of device, by which costs are looked up."""
        return "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device."""
        return tuple(f"eager {index}" for index in self.mesh.flat)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """Kernels by op name; ops without one are expanded."""
        return KERNELS

    @property
    def dtypes(self) -> frozenset[DType]:
        """What a device can hold."""
        return DTYPES

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[Any]:
        """Make an array: `host_shards` cuts it for all devices."""
        return [to_array(part) for part in host_shards(type, sharding, produce)]

    def shard(self, shards: list[Any], sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds, on the host."""
        return to_host(shards[device])

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices, for models with stages."""
        return replace(self, mesh=mesh)

    def lower_transfer(self, transfer: Transfer) -> Callable[[list[Any]], list[Any]]:
        """Return what brings a value from some devices to others."""
        return lambda shards: move_shards(shards, transfer, xp)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into Python that calls a kernel for each op and device."""
        return LockstepExecutable(program, self.kernel_table, xp, checks=self.kernel_checks)
