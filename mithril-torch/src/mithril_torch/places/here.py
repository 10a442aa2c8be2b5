"""One device of this process: programs are functions that are called here.

Also what every process of a job does with its own device; then `distributed` has made the process
group that its collectives use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from mithril.engine import Observer
from mithril.engine.kernels.registry import Kernel
from mithril.engine.protocol import Produce
from mithril.engine.shards import host_shards
from mithril.errors import BackendError
from mithril.ir import Program
from mithril.mesh import Mesh, Sharding
from mithril.types import TensorType

from mithril_torch import prelude
from mithril_torch.pool.recorder import recording
from mithril_torch.recorded import issued
from mithril_torch.source import Written, write
from mithril_torch.style import Style
from mithril_torch.tensors import as_written, to_numpy, to_tensor


class Here:
    """A handle is the tensor that this process's device holds.

    Args:
        mesh: the devices of all processes.
        device: where this process's tensors lie.
        rank: which device of the mesh that is.
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
        if self._mesh.size == 1:
            return (self._device,)
        return tuple(f"rank {rank}" for rank in range(self._mesh.size))

    @property
    def local_devices(self) -> tuple[int, ...]:
        """The one device of this process."""
        return (self._rank,)

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> torch.Tensor:
        """Make this process's part of a distributed array."""
        (part,) = host_shards(type, sharding, produce, self.local_devices)
        return to_tensor(part, self._device)

    def shard(self, shards: torch.Tensor, sharding: Sharding, device: int) -> np.ndarray:
        """Return what this process's device holds.

        Raises:
            BackendError: another process has the device.
        """
        return self._held(shards, device)

    def _held(self, shards: torch.Tensor, device: int) -> np.ndarray:
        if device != self._rank:
            raise BackendError(
                f"device {device} belongs to rank {device}, not to this one ({self._rank}); its "
                f"part cannot be read here; reshard the array to P() first"
            )
        return to_numpy(shards)

    def parts(self, wanted: Sequence[tuple[torch.Tensor, int]]) -> list[np.ndarray]:
        """Return what this process's device holds of several arrays.

        Raises:
            BackendError: another process has a device.
        """
        return [self._held(shards, device) for shards, device in wanted]

    def lower(
        self, program: Program, kernels: Mapping[str, Kernel], style: Style
    ) -> HereExecutable:
        """Write a program as text and load it."""
        written = write(program, kernels, style=replace(style, watched=False))
        return HereExecutable(written, self._device)


class HereExecutable:
    """A written program as a function of this process.

    Args:
        written: the program.
        device: where its constants are made.
    """

    def __init__(self, written: Written, device: str) -> None:
        self.written = written
        self.names: dict[str, Any] = {
            **vars(prelude), **written.users, "device": device, "step": [0],
        }  # fmt: skip
        exec(compile(written.text, f"<mithril program {id(self)}>", "exec"), self.names)
        self._run = self.names["run"]
        self._device = device

    def __call__(
        self, inputs: Sequence[torch.Tensor], observe: Observer | None = None
    ) -> list[torch.Tensor]:
        """Run once; an observer is told of the collectives that PyTorch carried out."""
        with torch.inference_mode(), as_written(self._device):
            if observe is None:
                results: list[torch.Tensor] = self._run(inputs)
                return results
            with recording(memoryview(bytearray(1))) as rows:
                results = self._run(inputs)
        for row in map(issued, rows):
            observe(*row)
        return results
