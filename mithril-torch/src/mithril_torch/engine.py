"""The PyTorch engine: what all executors have in common.

`executors` has these: this process's own device, alone or as a rank of a job; a pool of worker
processes; or all devices in lockstep in this process.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

import numpy as np
import torch
from mithril.spi import (
    Arrange,
    BackendError,
    DType,
    Engine,
    Executable,
    Execution,
    Handle,
    JobStore,
    Kernel,
    Mesh,
    OptionError,
    Plan,
    Produce,
    Program,
    Sharding,
    TensorType,
    Transfer,
    Transport,
    reuse_donated,
)
from mithril.spi.ops import AllToAll, Permute, uses_host

from mithril_torch.executors.executor import Executor
from mithril_torch.executors.host_memory import keep_freed_memory
from mithril_torch.executors.local import LocalExecutor
from mithril_torch.executors.lockstep import LockstepExecutor
from mithril_torch.executors.workers import WorkersExecutor
from mithril_torch.interop.torch_interop import TorchInterop
from mithril_torch.kernels.callable import kernels_on
from mithril_torch.kernels.workspaces import ORDERED, WORKSPACES
from mithril_torch.launch.distributed import Job, job_of, join
from mithril_torch.launch.job_store import open_job_store
from mithril_torch.options import LIBRARIES, TorchOptions
from mithril_torch.program.arena import IN_ARENA
from mithril_torch.program.codegen_options import CodegenOptions, codegen_options_of
from mithril_torch.program.image_layout import is_filter
from mithril_torch.program.in_place import REUSED_OPERANDS
from mithril_torch.program.layout_log import log_layout, log_plan
from mithril_torch.program.onednn import LEAST_PRODUCTS, is_onednn_faster
from mithril_torch.program.runtime_library.convolution import images
from mithril_torch.program.staged import transfer_plan

_DTYPES = frozenset(DType) - {DType.uint64}  # PyTorch stores these and cannot add them
PER_CORE = 8
"""So many processes a core are started for a mesh without being asked for."""
MAX_TRANSFERS = 256
"""How many programs that bring a value from some devices to others an engine keeps."""


def open_engine(mesh: Mesh, options: TorchOptions) -> TorchEngine:
    """Open the devices of a mesh.

    Raises:
        BackendError: there are too few, or none of the kind; or programs shall be compiled, and
            there is nothing to compile them with.
        OptionError: an option does not fit the devices.
    """
    job = job_of(os.environ)
    here = 1 if options.executor == "lockstep" else job.local_size if job else mesh.size
    device = _device(here, options.device)
    options.library(device)
    options.check_graphs(device, mesh.size)
    if options.jit and device == "cpu":
        _check_compiler(options)
    executor = _open_executor(mesh, options, device, job)
    on_cpu = device == "cpu"
    if on_cpu and not isinstance(executor, WorkersExecutor):  # each worker does so by itself
        keep_freed_memory()
    codegen = codegen_options_of(options, device)
    codegen = replace(codegen, early=on_cpu, onednn=on_cpu and is_onednn_faster())
    spans = mesh.size > 1 and isinstance(executor, LocalExecutor)
    return TorchEngine(mesh, options, device, executor, codegen, job if spans else None)


def _device(count: int, wanted: str | None) -> str:
    """Return the kind of device to use; each process of this machine needs one of its own."""
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cuda" and found < count:
        raise BackendError(
            f"mesh needs {count} CUDA devices on this machine; PyTorch finds {found}; use a "
            f'smaller mesh, or device="cpu"'
        )
    return wanted or ("cuda" if found >= count else "cpu")


def _check_compiler(options: TorchOptions) -> None:
    """Raise if the C++ compiler that PyTorch's own starts on a CPU is not there."""
    # As `torch._inductor.config.cpp.cxx` has it, whose import takes seconds.
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    wanted = os.environ.get("CXX", usual)
    if shutil.which(wanted) is None:
        raise BackendError(
            f"jit={options.jit!r} needs a C++ compiler, and '{wanted}' is not on this machine; "
            f"install it, name another one in the environment variable CXX, or leave jit out"
        )


def _open_executor(mesh: Mesh, options: TorchOptions, device: str, job: Job | None) -> Executor:
    if options.executor == "lockstep":
        return LockstepExecutor(mesh, device)
    mine = f"cuda:{job.local_rank if job else 0}" if device == "cuda" else device
    if mesh.size == 1:
        return LocalExecutor(mesh, mine, captures=options.cuda_graphs)
    if job is None:
        _check_cores(mesh.size, options, device)
        return WorkersExecutor.start(mesh, options, device)
    if job.size != mesh.size:
        raise BackendError(
            f"mesh has {mesh.size} devices, and the job {job.size} processes; start as many "
            f"processes as the mesh has devices"
        )
    join(job, options.library(device), options.timeout)
    return LocalExecutor(mesh, mine, job.rank)


def _check_cores(processes: int, options: TorchOptions, device: str) -> None:
    """Raise if so many processes would be started unasked that the machine is busy for minutes."""
    cores = os.cpu_count() or 1
    if options.executor == "auto" and device == "cpu" and processes > cores * PER_CORE:
        raise BackendError(
            f"mesh needs {processes} processes, and this machine has {cores} cores; simulate it "
            f'with executor="lockstep", or start them nevertheless with executor="workers"'
        )


@dataclass(frozen=True, eq=False)
class TorchEngine(Engine):
    """Tensors as handles, or what stands for them in a pool; see `mithril.spi.Engine`."""

    mesh: Mesh
    options: TorchOptions
    device: str
    executor: Executor
    codegen: CodegenOptions
    job: Job | None = None  # that the mesh spans; None where this process has all devices
    name = "torch"

    @property
    def platform(self) -> str:
        """`cpu` or `gpu`."""
        return "gpu" if self.device == "cuda" else "cpu"

    @property
    def device_kind(self) -> str:
        """What CUDA calls the device, or `cpu`."""
        return torch.cuda.get_device_name(0) if self.device == "cuda" else "cpu"

    @property
    def execution(self) -> Execution:
        """A kernel an op, unless the whole program is compiled; collectives go on beside others.

        The processes of a machine share its cores.
        """
        in_turn, compiled = isinstance(self.executor, LockstepExecutor), self.codegen.compiled
        is_written = not in_turn and not compiled  # as text, in which sums grow in place
        here = self.job.local_size if self.job else self.mesh.size
        here = 1 if in_turn or self.device == "cuda" else here
        cores = os.cpu_count() or 1
        return Execution(
            fuses=compiled,
            overlaps=is_written,
            sends_beside=not in_turn,
            receives_early=not in_turn and self.codegen.early,
            copies_beside=not in_turn and self.device == "cuda",
            in_turn=in_turn,
            devices_per_processor=here,
            largest_part=max(here / cores, 1.0),  # a process has a thread, or its part of the cores
            adds_in_product=not in_turn,
            reduces_in_place=is_written,
            adds_in_place=is_written,
            reused_operands=REUSED_OPERANDS if is_written and self.codegen.arrange is None else (),
            joins_parts=not in_turn,
            copies_parts=not in_turn and self.device == "cpu",  # by Gloo
            adds_narrow=not in_turn,
            compares_wide=not in_turn,
            workspaces=WORKSPACES if self.device == "cpu" else (),
            orders_products=LEAST_PRODUCTS if is_written and self.codegen.uses_onednn else 0,
            ordered=ORDERED if self.device == "cpu" else (),
            in_arena=IN_ARENA if self.codegen.arrange else (),
        )

    @property
    def library(self) -> str:
        """`gloo` or `nccl`; none where one process has all devices."""
        is_here = isinstance(self.executor, LockstepExecutor) or self.mesh.size == 1
        return "" if is_here else self.options.library(self.device)

    @property
    def transport(self) -> Transport | None:
        """Gloo, which has no reduce_scatter; None for NCCL, which has all collectives."""
        if self.library != (gloo := LIBRARIES["cpu"]):
            return None
        more = frozenset({AllToAll.name, Permute.name})
        return Transport(gloo, self.mesh.size, groups=True, more=more, reaches_all=True)

    @property
    def keeps_on_host(self) -> bool:
        """True: an array may have its memory in the arena."""
        return True

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device."""
        return self.executor.labels

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices whose parts this process can read."""
        return self.executor.local_devices

    @property
    def process_count(self) -> int:
        """How many ranks the job has; 1 outside a job, and where this process has a mesh of one."""
        return 1 if self.job is None else self.job.size

    @property
    def process_index(self) -> int:
        """The rank of this process."""
        return 0 if self.job is None else self.job.rank

    @property
    def job_store(self) -> JobStore | None:
        """The store in which the ranks have met; None outside a job."""
        return None if self.job is None else open_job_store(self.options.timeout, self.job.size)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """Kernels for the device, by op name."""
        return kernels_on(self.device)

    @property
    def dtypes(self) -> frozenset[DType]:
        """All dtypes but uint64."""
        return _DTYPES

    @cached_property
    def interop(self) -> TorchInterop:
        """What users of PyTorch are offered."""
        return TorchInterop(self)

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make a distributed array; what may be a filter lies as convolutions want it."""
        handle = self.executor.put(type, sharding, produce)
        is_here = isinstance(handle, torch.Tensor) and self.codegen.channels_last
        return images(handle) if is_here and is_filter(type) else handle

    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds, as a view that cannot be written to."""
        view = self.executor.shard(shards, sharding, device).view()
        view.flags.writeable = False
        return view

    def wait_for(self, handles: Sequence[Handle]) -> None:
        """Return once the devices have computed all that was begun.

        Args:
            handles: what is wanted of it.

        Raises:
            BackendError: a handle is lost, or the pool of workers has ended.
        """
        self.executor.wait(handles)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into something that runs where the engine's devices are.

        Raises:
            OptionError: `torch.compile` shall rewrite it, and it copies to the host arena.
        """
        self._check_host([program])
        if self.options.trace_module_partitioning:
            log_layout(program)
        kernels = self.kernel_table
        if not isinstance(self.executor, LockstepExecutor):
            program = reuse_donated(program, donate)
        return self.executor.lower(program, kernels, self.codegen, donate)

    def lower_stages(self, plan: Plan, donate: Collection[int] = ()) -> Executable:
        """Turn a plan of several stages into something that runs where its devices are.

        Raises:
            OptionError: `torch.compile` shall rewrite it, and it copies to the host arena.
        """
        self._check_host([stage.program for stage in plan.stages])
        if self.options.trace_module_partitioning:
            log_plan(plan)
        kernels = self.kernel_table
        found = self.executor.lower_plan(plan, kernels, self.codegen)
        return super().lower_stages(plan, donate) if found is None else found

    def _check_host(self, programs: Sequence[Program]) -> None:
        without = {
            "jit": (self.codegen.compiled, "torch.compile"),
            "cuda_graphs": (self.options.cuda_graphs, "a CUDA graph"),
        }
        for option, (is_on, what) in without.items():
            if is_on and any(uses_host(program.graph) for program in programs):
                raise OptionError(
                    f"backend 'torch' has {option}=True, and {what} cannot copy to the host arena; "
                    f"leave out {option}, or what offloads: activation_offload, spill_to_host and "
                    f"offload_optimizer"
                )

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices, the same one every time."""
        found = self._parts.get(mesh)
        if found is None:
            found = self._parts[mesh] = replace(self, mesh=mesh, executor=self.executor.part(mesh))
        return found

    def lower_transfer(self, transfer: Transfer) -> Callable[[Handle], Handle]:
        """Return the function that brings a value from some devices to others."""
        if isinstance(self.executor, LockstepExecutor):
            return partial(self.executor.move, transfer=transfer)
        key = transfer.type, transfer.source, transfer.target, transfer.goal, transfer.offset
        if key not in self._transfers:
            if len(self._transfers) >= MAX_TRANSFERS:
                self._transfers.pop(next(iter(self._transfers)))
            self._transfers[key] = self.lower_stages(transfer_plan(self.mesh, transfer))
        run = self._transfers[key]
        return lambda shards: run([shards])[0]

    @cached_property
    def _parts(self) -> dict[Mesh, Self]:
        return {}

    @cached_property
    def _transfers(self) -> dict[tuple[object, ...], Executable]:
        return {}

    def measuring(self) -> Self:
        """Return this engine with programs that say how long their segments take.

        What `torch.compile` makes of a program has no segments: it is timed as a whole.
        """
        is_timed = not self.codegen.compiled
        codegen = replace(self.codegen, timed=is_timed)
        return replace(self, codegen=codegen, executor=self.executor.measuring())

    def in_arena(self, arrange: Arrange) -> Self:
        """Return this engine with programs whose functions write into one block a device.

        Raises:
            OptionError: the way programs run leaves them no say in where results lie.
        """
        self.options.check_arena()
        chosen = partial(arrange, replace(self.execution, reused_operands=()))
        return replace(self, codegen=replace(self.codegen, arrange=chosen))

    def with_ranges(self) -> Self:
        """Return this engine with programs whose layers stand in ranges of PyTorch's profiler.

        Raises:
            OptionError: the way programs run leaves no ranges.
        """
        self.options.check_ranges("partition_hooks")
        return replace(self, codegen=replace(self.codegen, ranges=True, layer_ranges=True))
