"""What a way of running programs offers to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from mithril.engine import Executable, Shards
from mithril.engine.kernels.registry import Kernel
from mithril.engine.protocol import Produce
from mithril.ir import Program
from mithril.mesh import Sharding
from mithril.types import TensorType

from mithril_torch.style import Style


class Place(Protocol):
    """The devices of a mesh, in one process or several."""

    @property
    def labels(self) -> tuple[str, ...]:
        """A label for each device."""
        ...

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices whose parts this process can read."""
        ...

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Shards:
        """Make a distributed array; see `Engine.put`."""
        ...

    def shard(self, shards: Shards, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds; see `Engine.shard`."""
        ...

    def parts(self, wanted: Sequence[tuple[Shards, int]]) -> list[np.ndarray]:
        """Return what devices hold of several arrays, padding included, all at once.

        Args:
            wanted: handles and devices.
        """
        ...

    def lower(self, program: Program, kernels: Mapping[str, Kernel], style: Style) -> Executable:
        """Turn a program into something that runs.

        Args:
            program: what runs.
            kernels: those of all ops by name.
            style: how it is written.
        """
        ...
