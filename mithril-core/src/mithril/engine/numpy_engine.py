"""The reference engine: simulated devices on NumPy, run in lockstep in this process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import numpy as np

from mithril.engine.kernels import KERNELS, on_namespace
from mithril.engine.kernels.writing import WRITERS
from mithril.spi import (
    Arrange,
    Engine,
    Executable,
    Execution,
    Kernel,
    LockstepExecutable,
    MeasuredLockstep,
    Mesh,
    Plan,
    Produce,
    Program,
    Sharding,
    SimulatedArenas,
    TensorType,
    Transfer,
    host_shards,
    move_shards,
    reuse_donated,
)
from mithril.spi.ops import Repeat

NUMPY_KERNELS = on_namespace(KERNELS, np)
"""The kernels of all ops on NumPy."""
_IN_ARENA = (*WRITERS, Repeat.name)


@dataclass(frozen=True, slots=True)
class NumpyEngine(Engine):
    """NumPy arrays as the shards of simulated devices; a handle is a list of arrays by device.

    Devices that hold equal boxes share one array. Kernels never write into their operands, except
    into an array that is given up and that nobody else holds.
    """

    mesh: Mesh
    options: object = None
    is_measuring: bool = False
    arrange: Arrange | None = None
    arenas: SimulatedArenas | None = None
    name = "numpy"

    @property
    def platform(self) -> str:
        """`simulated`."""
        return "simulated"

    @property
    def execution(self) -> Execution:
        """A kernel an op, one device after the other."""
        return Execution(in_turn=True, in_arena=_IN_ARENA if self.arrange else ())

    @property
    def keeps_on_host(self) -> bool:
        """True: an array may have its memory in the arena."""
        return True

    @property
    def devices(self) -> tuple[str, ...]:
        """One label per simulated device."""
        return tuple(f"simulated cpu {index}" for index in self.mesh.flat)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """Those of all ops."""
        return NUMPY_KERNELS

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> list[np.ndarray]:
        """Make a distributed array; see `Engine.put`."""
        return host_shards(type, sharding, produce)

    def shard(self, shards: list[np.ndarray], sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds, as a view that cannot be written to."""
        view = np.asarray(shards[device]).view()  # NumPy makes scalars of rank-0 results
        view.flags.writeable = False
        return view

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices."""
        return replace(self, mesh=mesh)

    def lower_transfer(self, transfer: Transfer) -> Callable[[list[np.ndarray]], list[np.ndarray]]:
        """Return the function that brings a value from some devices to others."""
        return lambda shards: move_shards([np.asarray(part) for part in shards], transfer, np)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into straight-line Python over all devices."""
        return self._lower(program, donate, self._open_arenas())

    def lower_stages(self, plan: Plan, donate: Collection[int] = ()) -> Executable:
        """Turn a plan of several stages into something that runs; its programs share arenas."""
        shared = replace(self, arenas=self._open_arenas())
        return super(NumpyEngine, shared).lower_stages(plan, donate)

    def _lower(
        self, program: Program, donate: Collection[int], arenas: SimulatedArenas | None
    ) -> Executable:
        reusing = reuse_donated(program, donate)
        layout = None if arenas is None else arenas.lay_out(reusing, self.execution, WRITERS)
        lower = partial(
            LockstepExecutable, reusing, self.kernel_table, np,
            layout=layout, checks=self.kernel_checks,
        )  # fmt: skip
        return MeasuredLockstep(lower, program.mesh.flat) if self.is_measuring else lower()

    def _open_arenas(self) -> SimulatedArenas | None:
        if self.arrange is None:
            return None
        return self.arenas or SimulatedArenas(self.arrange)

    def in_arena(self, arrange: Arrange) -> Self:
        """Return this engine with programs whose kernels write into one block a device."""
        return replace(self, arrange=arrange)

    def measuring(self) -> Self:
        """Return this engine with programs that say how long their segments take."""
        return replace(self, is_measuring=True)
