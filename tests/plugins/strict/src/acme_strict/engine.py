"""Simulated devices on array-api-strict, with its flags set to what every library has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import array_api_strict as xp
import numpy as np
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
    bind_namespace,
    host_shards,
    move_shards,
)

# What a library may leave out: masks as indices, shapes that depend on values.
xp.set_array_api_strict_flags(
    boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=("linalg",)
)
KERNELS: Mapping[str, Kernel] = bind_namespace(xp)
DTYPES = frozenset(dtype for dtype in DType if hasattr(xp, dtype.value))


@dataclass(frozen=True, slots=True)
class StrictEngine(Engine):
    """Arrays of array-api-strict as the parts of tensors."""

    mesh: Mesh
    name = "strict"

    @property
    def platform(self) -> str:
        """`cpu`."""
        return "cpu"

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device."""
        return tuple(f"strict {index}" for index in self.mesh.flat)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """The shared kernels."""
        return KERNELS

    @property
    def dtypes(self) -> frozenset[DType]:
        """Those of the standard: no 16-bit floats."""
        return DTYPES

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[Any]:
        """Make an array for each device."""
        return [xp.asarray(part, copy=True) for part in host_shards(type, sharding, produce)]

    def shard(self, shards: list[Any], sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds."""
        view = np.from_dlpack(shards[device]).view()
        view.flags.writeable = False
        return view

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices."""
        return replace(self, mesh=mesh)

    def lower_transfer(self, transfer: Transfer) -> Callable[[list[Any]], list[Any]]:
        """Return what brings a value from some devices to others."""
        return lambda shards: move_shards(shards, transfer, xp)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into Python that calls a kernel for each op and device."""
        return LockstepExecutable(program, self.kernel_table, xp, checks=self.kernel_checks)
