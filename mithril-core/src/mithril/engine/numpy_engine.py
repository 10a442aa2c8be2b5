"""The reference engine: simulated devices on NumPy, run in lockstep in this process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from mithril.engine.kernels import KERNELS, kernels_for
from mithril.engine.lockstep import LockstepExecutable
from mithril.engine.moving import move
from mithril.engine.protocol import Capability, Produce
from mithril.engine.shards import host_shards
from mithril.mesh import Mesh, Sharding
from mithril.plan import Program
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType

# Asked for at every array that is made.
_CAPABILITIES = frozenset(Capability)
_DTYPES = frozenset(DType)


@dataclass(frozen=True, slots=True)
class NumpyEngine:
    """NumPy arrays as the shards of simulated devices; a handle is a list of arrays by device.

    Devices that hold equal boxes share one array; kernels never write into their operands.
    """

    mesh: Mesh
    options: object = None

    @property
    def name(self) -> str:
        """`numpy`."""
        return "numpy"

    @property
    def platform(self) -> str:
        """`simulated`."""
        return "simulated"

    @property
    def devices(self) -> tuple[str, ...]:
        """One label per simulated device."""
        return tuple(f"simulated cpu {index}" for index in self.mesh.flat)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """All devices."""
        return tuple(range(self.mesh.size))

    @property
    def capabilities(self) -> frozenset[Capability]:
        """All collectives."""
        return _CAPABILITIES

    @property
    def kernels(self) -> frozenset[str]:
        """All ops, and those of users that have a kernel for this engine."""
        return frozenset(kernels_for(self.name, KERNELS))

    @property
    def dtypes(self) -> frozenset[DType]:
        """All dtypes."""
        return _DTYPES

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[np.ndarray]:
        """Make a distributed array; see `Engine.put`."""
        return host_shards(type, sharding, produce)

    def shard(self, shards: list[np.ndarray], sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds, as a view that cannot be written to."""
        view = np.asarray(shards[device]).view()  # NumPy makes scalars of rank-0 results
        view.flags.writeable = False
        return view

    def part(self, mesh: Mesh) -> NumpyEngine:
        """Return the engine of some of the devices."""
        return NumpyEngine(mesh, self.options)

    def move(self, shards: list[np.ndarray], transfer: Transfer) -> list[np.ndarray]:
        """Bring a value from the devices of one part to those of another."""
        return move([np.asarray(part) for part in shards], transfer, np)

    def lower(self, program: Program, donate: Collection[int] = ()) -> LockstepExecutable:
        """Turn a program into straight-line Python over all devices."""
        return LockstepExecutable(program, kernels_for(self.name, KERNELS), np)
