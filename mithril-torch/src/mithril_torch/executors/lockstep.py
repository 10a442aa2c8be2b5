"""The executor that simulates all devices of a mesh in this process, for debugging."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from mithril.spi import (
    Executable,
    Kernel,
    KernelChecks,
    LockstepExecutable,
    Marks,
    MemoryUse,
    Mesh,
    Observer,
    Plan,
    Produce,
    Program,
    Recorder,
    Sharding,
    TensorType,
    Transfer,
    as_dtype,
    host_shards,
    move_shards,
    run_marked,
)

from mithril_torch.executors.pool.allocations import count_allocations
from mithril_torch.executors.timing import HOW, check_counting
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.tensors import disable_autocast, to_numpy, to_tensor, torch_dtype

_CHECKS = KernelChecks("torch")
Tensors = list[torch.Tensor]


class LockstepExecutor:
    """A handle is a list of tensors by device; devices with equal boxes share one.

    Args:
        mesh: the devices.
        device: where the tensors of all of them lie.
        is_measuring: whether programs say how long their segments take.
    """

    def __init__(self, mesh: Mesh, device: str, *, is_measuring: bool = False) -> None:
        self._mesh = mesh
        self._device = device
        self._is_measuring = is_measuring

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each simulated device."""
        return tuple(f"{self._device} in turn {index}" for index in self._mesh.flat)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """All devices."""
        return tuple(range(self._mesh.size))

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Tensors:
        """Make a distributed array."""
        parts = host_shards(type, sharding, produce)
        made = {id(part): to_tensor(part, self._device) for part in parts}
        return [made[id(part)] for part in parts]

    def shard(self, shards: Tensors, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds."""
        return to_numpy(shards[device])

    def parts(self, wanted: Sequence[tuple[Tensors, Sharding, int]]) -> list[np.ndarray]:
        """Return what devices hold of several arrays."""
        return [to_numpy(shards[device]) for shards, _, device in wanted]

    def wait(self, handles: Sequence[Tensors]) -> None:
        """Return once the device has computed all that was begun; a CPU has."""
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)

    def part(self, mesh: Mesh) -> LockstepExecutor:
        """Return some of the devices."""
        return LockstepExecutor(mesh, self._device, is_measuring=self._is_measuring)

    def measuring(self) -> LockstepExecutor:
        """Return the executor of programs with marks."""
        return LockstepExecutor(self._mesh, self._device, is_measuring=True)

    def move(self, shards: Tensors, transfer: Transfer) -> Tensors:
        """Bring a value from some devices to others; what is moved whole is the same tensor."""
        with torch.inference_mode():
            return move_shards(shards, transfer, _namespace(self._device))

    def lower_plan(
        self, plan: Plan, kernels: Mapping[str, Kernel], codegen: CodegenOptions
    ) -> None:
        """Leave plans of several stages to the core."""

    def lower(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        codegen: CodegenOptions,
        donate: Collection[int] = (),
    ) -> Executable:
        """Turn a program into straight-line Python over all devices, of the core's own style."""
        xp = _namespace(self._device)
        if not self._is_measuring:
            made = LockstepExecutable(program, kernels, xp, checks=_CHECKS)
            return InferenceExecutable(made, self._device)
        is_gpu = self._device.startswith("cuda")
        made = LockstepExecutable(program, kernels, xp, Marks(settles=is_gpu), checks=_CHECKS)
        return MeasuredExecutable(made, self._device, program.mesh.flat)


@dataclass(frozen=True)
class InferenceExecutable:
    """A program on all devices, without autograd."""

    executable: LockstepExecutable
    device: str

    def __call__(self, inputs: Sequence[Tensors], observe: Observer | None = None) -> list[Tensors]:
        """Run once."""
        with torch.inference_mode(), disable_autocast(self.device):
            return self.executable(inputs, observe)


@dataclass(frozen=True)
class MeasuredExecutable:
    """A program on all devices with marks; memory is counted of all of them together."""

    executable: LockstepExecutable
    device: str
    devices: tuple[int, ...]

    def __call__(self, inputs: Sequence[Tensors], observe: Observer | None = None) -> list[Tensors]:
        """Run once, and tell the recorder."""
        assert isinstance(observe, Recorder), "who runs a measured program records it"
        check_counting(self.device, observe)
        given = [tensor for shards in inputs for tensor in shards]
        counting = count_allocations(self.device, given) if observe.counts_memory else nullcontext()
        with torch.inference_mode(), disable_autocast(self.device), counting as peak:
            results = run_marked(self.executable, inputs, observe, self.devices)
        observe.memory += (MemoryUse(self.devices, most, HOW) for most in peak or ())
        return results


def _namespace(device: str) -> Any:
    """Return the functions that the executor itself calls, under their array API names."""

    def asarray(x: Any, dtype: Any = None) -> Any:
        if not isinstance(x, torch.Tensor):
            x = torch.as_tensor(x, device=device)
        if dtype is None or isinstance(dtype, torch.dtype):
            return x if dtype is None else x.to(dtype)
        return x.to(torch_dtype(as_dtype(dtype)))

    def wide(function: Any) -> Any:
        """Return a function of two tensors that takes unsigned integers, too."""

        def call(x: torch.Tensor, y: torch.Tensor) -> Any:
            if x.dtype not in (torch.uint16, torch.uint32):
                return function(x, y)
            return function(x.to(torch.int64), y.to(torch.int64)).to(x.dtype)

        return call

    return SimpleNamespace(
        asarray=asarray, add=wide(torch.add), maximum=wide(torch.maximum),
        minimum=wide(torch.minimum), concat=torch.concat, stack=torch.stack,
        zeros=partial(torch.zeros, device=device), zeros_like=torch.zeros_like,
        float32=torch.float32, settle=lambda values: torch.cuda.synchronize(),
    )  # fmt: skip
