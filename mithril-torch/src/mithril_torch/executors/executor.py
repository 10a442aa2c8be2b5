"""The protocol of executors: what a way of running programs offers to the engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np
from mithril.spi import (
    Executable,
    Handle,
    Kernel,
    Mesh,
    Plan,
    Produce,
    Program,
    Sharding,
    TensorType,
)

from mithril_torch.program.codegen_options import CodegenOptions

Wanted = tuple[Handle, Sharding, int]
"""What a device of the mesh of a sharding holds of a handle."""


class Executor(Protocol):
    """The devices of a mesh, in one process or several."""

    @property
    def labels(self) -> tuple[str, ...]:
        """A label for each device."""
        ...

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices whose parts this process can read."""
        ...

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make a distributed array; see `Engine.put`."""
        ...

    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds; see `Engine.shard`."""
        ...

    def parts(self, wanted: Sequence[Wanted]) -> list[np.ndarray]:
        """Return what devices hold of several arrays, padding included, all at once.

        Args:
            wanted: handles, how they lie, and devices.
        """
        ...

    def wait(self, handles: Sequence[Handle]) -> None:
        """Return once all that was begun is computed.

        Args:
            handles: what is wanted of it.

        Raises:
            BackendError: one of them is lost, or what computes is gone.
        """
        ...

    def part(self, mesh: Mesh) -> Executor:
        """Return some of the devices; see `Engine.part`."""
        ...

    def measuring(self) -> Executor:
        """Return the executor of programs that are measured."""
        ...

    def lower(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        codegen: CodegenOptions,
        donate: Collection[int] = (),
    ) -> Executable:
        """Turn a program into something that runs.

        Args:
            program: what runs.
            kernels: those of all ops by name.
            codegen: how it is written.
            donate: positions of inputs that are given up.
        """
        ...

    def lower_plan(
        self, plan: Plan, kernels: Mapping[str, Kernel], codegen: CodegenOptions
    ) -> Executable | None:
        """Turn a plan of several stages into something that runs; None if that is for the core.

        Args:
            plan: what runs.
            kernels: those of all ops by name.
            codegen: how it is written.
        """
        ...
