"""The protocol between Mithril and a backend plugin: an Engine opened on a mesh.

An engine knows devices, arrays, kernels and collectives; it knows nothing about models, gradients
or shardings beyond the box of a tensor that each device holds. `Handle` is its own handle of a
distributed array and is opaque to everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import numpy as np

from mithril.mesh import Box, Mesh, Sharding
from mithril.plan import Program
from mithril.plan.timetable import Transfer
from mithril.types import DType, TensorType

Handle = Any
Produce = Callable[[Box], np.ndarray]
Observer = Callable[[str, tuple[str, ...], int], None]
"""Called with kind, mesh axes and bytes of every collective that is carried out."""


class Capability(StrEnum):
    """What an engine can do beyond running local kernels."""

    all_reduce = "all_reduce"
    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_to_all = "all_to_all"
    permute = "permute"


@dataclass(frozen=True, slots=True)
class KernelNames:
    """The ops that a backend runs itself, by name; `in` asks for one.

    Args:
        backend: the backend's name, for messages.
        names: names of the ops.
    """

    backend: str
    names: frozenset[str]

    def __contains__(self, name: object) -> bool:
        return name in self.names


class Executable(Protocol):
    """A lowered program."""

    def __call__(self, inputs: Sequence[Handle], observe: Observer | None = None) -> list[Handle]:
        """Run the program once.

        Args:
            inputs: one handle per program input, in order.
            observe: told of every collective.
        """
        ...


class Engine(Protocol):
    """Devices opened as a mesh; see the module's text."""

    @property
    def name(self) -> str:
        """The backend's name."""
        ...

    @property
    def platform(self) -> str:
        """The kind of device, by which costs are looked up: `simulated`, `cpu`, `gpu`, …."""
        ...

    @property
    def mesh(self) -> Mesh:
        """The mesh the engine was opened on."""
        ...

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device of the mesh, in flat order."""
        ...

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices whose parts this process can read; mostly all of them."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The collectives the engine offers."""
        ...

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the ops the engine has a kernel for; others are expanded.

        The ops that users define have kernels of their own; `kernels_for` adds them to a table.
        """
        ...

    @property
    def dtypes(self) -> frozenset[DType]:
        """Element types the engine can hold."""
        ...

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make a distributed array.

        Args:
            type: global shape and dtype.
            sharding: which box each device holds; every device holds `sharding.local_shape`, zeros
                behind the box where it is smaller (`host_shards` does all of that).
            produce: returns the host data of a box; called once per distinct box.
        """
        ...

    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device of this process holds, padding included, on the host."""
        ...

    def part(self, mesh: Mesh) -> Engine:
        """Return the engine of some of the devices.

        Args:
            mesh: a part of this engine's mesh: `mesh.devices` are flat indices of its devices.
        """
        ...

    def move(self, shards: Handle, transfer: Transfer) -> Handle:
        """Bring a value from the devices of one part to those of another.

        Args:
            shards: the value where it is made, a handle of the engine of that part.
            transfer: what goes where.

        Returns:
            The value as it is needed, a handle of the engine of the other part.
        """
        ...

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into something that runs.

        Args:
            program: what runs.
            donate: positions of inputs that are given up: outputs may take their memory.
        """
        ...
