"""The MLX engine: all devices of a mesh in this process, or this process's one of a job.

Programs build MLX's lazy graph, and are computed when they have been built to the end. The engine
of a part of the mesh is of the same kind; in a job it may have no device of this process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import mlx.core as mx
import numpy as np
from mithril.spi import (
    Arrange,
    BackendError,
    DType,
    Engine,
    EngineProfiler,
    Executable,
    Execution,
    JobStore,
    Kernel,
    LockstepExecutable,
    Marks,
    Mesh,
    OfImages,
    OptionError,
    Plan,
    Produce,
    Program,
    RankExecutable,
    Sharding,
    TensorType,
    Transfer,
    Transport,
    all_nodes,
    communicates,
    find_overwritten,
    host_shards,
    lay_channels_last,
    move_shards,
)
from mithril.spi.ops import DynamicUpdateSlice, find_on_host, uses_host

from mithril_mlx.blas import library_in_use
from mithril_mlx.communicator import Communicator
from mithril_mlx.devices import device_of, is_compiled
from mithril_mlx.distributed import Job, join, library_of
from mithril_mlx.interop import MLXInterop
from mithril_mlx.kernels import KERNELS
from mithril_mlx.kernels.conv import of_images
from mithril_mlx.lazy import LazyExecutable, Shards, namespace
from mithril_mlx.measured import MeasuredExecutable, MLXProfiler
from mithril_mlx.options import MLXOptions
from mithril_mlx.stages import JobExecutable, RemoteStage
from mithril_mlx.tensors import to_mlx, to_numpy
from mithril_mlx.updates import COMPILER, share_numbers

_EVERY = frozenset(DType)


def open_engine(mesh: Mesh, options: MLXOptions) -> MLXEngine:
    """Open the devices of a mesh.

    Raises:
        BackendError: there is no such device, or the job has another number of processes.
    """
    device = device_of(options.device)
    job = _job(mesh, options)
    return MLXEngine(mesh, options, device, job)


def _job(mesh: Mesh, options: MLXOptions) -> Job | None:
    """Return the job that the mesh spans; None where this process has all devices."""
    library = options.distributed_backend or library_of(os.environ)
    if library is None or options.executor == "lockstep":
        return None
    if mesh.size == 1 and options.distributed_backend is None:
        return None
    job = join(library)
    if job.transport.size != mesh.size:
        raise BackendError(
            f"mesh has {mesh.size} devices, and the job {job.transport.size} processes; start as "
            f"many processes as the mesh has devices"
        )
    return job


@dataclass(frozen=True, eq=False)
class MLXEngine(Engine):
    """A handle is a list of the arrays that devices of this process hold; see `Engine`.

    Args:
        mesh: the devices.
        options: of the backend.
        device: where this process computes.
        job: the processes that the mesh spans; None where all devices are of this one.
        whole: the engine of the whole mesh, if this is another.
        is_staged: whether it lowers the stages of a plan, the end of which is waited for.
        is_measuring: whether programs say how long their segments take.
    """

    mesh: Mesh
    options: MLXOptions
    device: mx.Device
    job: Job | None
    whole: MLXEngine | None = None
    is_staged: bool = False
    is_measuring: bool = False
    name = "mlx"

    @property
    def platform(self) -> str:
        """`cpu` or `gpu`."""
        return "gpu" if self.device == mx.gpu else "cpu"

    @property
    def device_kind(self) -> str:
        """What Metal calls the device, `Apple M2 Ultra`, or `cpu`."""
        return str(mx.device_info()["device_name"]) if self.device == mx.gpu else "cpu"

    @property
    def execution(self) -> Execution:
        """A kernel an op, one device after the other where one process has all."""
        is_alone = self.job is None
        fuses = is_compiled(self.options.jit, self.device)
        return Execution(
            fuses=fuses, schedules=not is_alone, in_turn=is_alone, adds_narrow=not is_alone
        )

    @property
    def keeps_on_host(self) -> bool:
        """True: an array may have its memory in the arena."""
        return True

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device."""
        what = f"{self.platform} in turn" if self.job is None else "rank"
        if self.mesh.size == 1 and not self.mesh.devices:
            return (self.platform,)
        return tuple(f"{what} {index}" for index in self.mesh.flat)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices of this process."""
        flat = self.mesh.flat
        return tuple(i for i, n in enumerate(flat) if self.job is None or n == self.job.rank)

    @property
    def process_count(self) -> int:
        """How many processes the job has; 1 outside a job."""
        return 1 if self.job is None else self.job.transport.size

    @property
    def process_index(self) -> int:
        """The number of this process in the job."""
        return 0 if self.job is None else self.job.rank

    @cached_property
    def job_store(self) -> JobStore | None:
        """What rank 0 keeps for all; None outside a job, and where it cannot be reached."""
        if self.job is None or self.job.texts is None:
            return None
        kept, ranks = self.job.texts, tuple(range(self.mesh.size))
        return JobStore(kept.set, kept.get, self.options.timeout, ranks)

    @property
    def library(self) -> str:
        """That of the job: `ring`, `mpi` or `jaccl`; none where this process has all devices."""
        return "" if self.job is None else self.job.library

    @property
    def transport(self) -> Transport | None:
        """What carries data between processes; None within one."""
        return None if self.job is None else self.job.transport

    @property
    def facts(self) -> Mapping[str, str]:
        """What else a user may want to know of how programs run here."""
        return {"blas": library_in_use()} if self.platform == "cpu" else {}

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """Kernels on MLX, by op name."""
        return KERNELS

    @property
    def dtypes(self) -> frozenset[DType]:
        """All dtypes; float64 on CPU only."""
        return _EVERY if self.platform == "cpu" else _EVERY - {DType.float64}

    def dtype_remedy(self, dtype: DType) -> str:
        """Return what to do instead of a dtype that is not there."""
        if dtype == DType.float64:
            return "MLX has float64 on the CPU only; use dtype='float32', or device='cpu'"
        return super().dtype_remedy(dtype)

    @cached_property
    def interop(self) -> MLXInterop:
        """What users of MLX are offered."""
        rank = None if self.job is None else self.job.rank
        return MLXInterop(self.mesh, rank, len(self.local_devices))

    @cached_property
    def communicator(self) -> Communicator | None:
        """What exchanges data with the other processes; None within one."""
        if self.whole is not None:
            return self.whole.communicator
        return None if self.job is None else Communicator(self.job)

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Shards:
        """Make a distributed array; devices with equal boxes share one."""
        parts = host_shards(type, sharding, produce, self.local_devices)
        made = {id(part): to_mlx(part) for part in parts}
        return [made[id(part)] for part in parts]

    def shard(self, shards: Shards, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device of this process holds, as a view that cannot be written to.

        Raises:
            BackendError: another process has the device.
        """
        if device not in self.local_devices:
            assert self.job is not None, "one process has all devices"
            raise BackendError(
                f"device {self.mesh.in_whole(device)} belongs to rank "
                f"{self.mesh.in_whole(device)}, not to this one ({self.job.rank}); its part cannot "
                f"be read here; reshard the array to P() first"
            )
        view = to_numpy(shards[self.local_devices.index(device)]).view()
        view.flags.writeable = False
        return view

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices."""
        return replace(self, mesh=mesh, whole=self.whole or self)

    def lower_transfer(self, transfer: Transfer) -> Callable[[Shards], Shards]:
        """Return the function that brings a value from some devices to others.

        It raises a `BackendError` where another process of the job is gone.
        """
        return lambda shards: self._move(shards, transfer)

    def _move(self, shards: Shards, transfer: Transfer) -> Shards:
        is_on_host = any(isinstance(x, np.ndarray) for x in shards)  # in the host arena
        if is_on_host and self.communicator is None:
            return move_shards(shards, transfer, np)  # and there it stays
        with mx.stream(self.device):
            if is_on_host:
                shards = [to_mlx(to_numpy(x)) for x in shards]
            if self.communicator is None:
                made = move_shards(shards, transfer, mx)
            elif self.is_staged:
                made = self.communicator.move(shards, transfer)
            else:
                with self.communicator.use_comm_stream():
                    made = self.communicator.move(shards, transfer)
            if self.is_measuring:
                mx.eval(made)
            mx.async_eval(made)
        return made

    def measuring(self) -> Self:
        """Return this engine with programs that compute each segment before they go on.

        They are not compiled, and nothing of them overlaps.
        """
        return replace(self, is_measuring=True, whole=self.whole)

    def open_profiler(self) -> EngineProfiler:
        """Return what knows what marks cost."""
        return MLXProfiler()

    def wait_for(self, handles: Sequence[Shards]) -> None:
        """Return once arrays are computed."""
        mx.eval(list(handles))

    def in_arena(self, arrange: Arrange) -> Self:
        """Refuse to say where results lie.

        Raises:
            OptionError: always.
        """
        raise OptionError(
            "memory_planning='greedy' is not available on backend 'mlx'; MLX decides where a "
            "result lies when it computes it, and its functions write into no memory that is "
            "given; leave it out"
        )

    def lower_stages(self, plan: Plan, donate: Collection[int] = ()) -> Executable:
        """Turn a plan of several stages into what this process does in it."""
        if self.communicator is None:
            return super().lower_stages(plan, donate)
        if not self.is_staged:
            return replace(self, whole=self.whole or self, is_staged=True).lower_stages(plan)
        return JobExecutable(super().lower_stages(plan), self.device, self.communicator)

    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program into straight-line Python that builds MLX's lazy graph."""
        if self.communicator is not None and self._rank not in program.mesh.flat:
            return RemoteStage(program, self.communicator, self._rank)
        kernels = self.kernel_table
        if self.options.channels_last:
            program = replace(program, graph=lay_channels_last(program.graph, kernels))
            kernels = {**kernels, OfImages.name: of_images}
        overwritten = find_overwritten(program, donate)
        program = share_numbers(program, self._compiles_updates)
        compiled = is_compiled(self.options.jit, self.device) and not self.is_measuring
        communicator = self.communicator if communicates(program.graph) else None
        if communicator is not None and communicator.by_messages(program.mesh):
            compiled = False  # messages are sent while the graph is built
        on_host = find_on_host(program.graph)
        compiled = compiled and not uses_host(program.graph)  # so is what is copied to the host
        with mx.stream(self.device):
            # What is computed early finds its operands held; a cache would be copied.
            is_cached = any(isinstance(n.op, DynamicUpdateSlice) for n in all_nodes(program.graph))
            at_once = compiled or communicator is not None or (is_cached and bool(overwritten))
            xp = namespace(program.graph, at_once=at_once or self.is_measuring)
            build = self._make_build(program, kernels, xp)
        made = LazyExecutable(
            build,
            self.device,
            communicator,
            compiled,
            self.is_staged,
            overwritten,
            frozenset(i for i, value in enumerate(program.graph.inputs) if value in on_host),
        )
        if not self.is_measuring:
            return made
        if self.job is not None:
            return MeasuredExecutable(made, (self._rank,), (self._rank,))
        return MeasuredExecutable(made, program.mesh.flat, (self.whole or self).mesh.flat)

    @property
    def _compiles_updates(self) -> bool:
        """Whether an update is compiled by itself: on CPU, unless it was asked for otherwise."""
        is_left_open = self.options.jit is None and self.device == mx.cpu
        return is_left_open and shutil.which(COMPILER) is not None

    def _make_build(self, program: Program, kernels: Mapping[str, Kernel], xp: Any) -> Executable:
        marks = Marks(settles=True) if self.is_measuring else None
        checks = self.kernel_checks
        if self.communicator is None:
            return LockstepExecutable(program, kernels, xp, marks, checks=checks)
        rank = program.mesh.flat.index(self._rank)
        exchanges = self.communicator.collectives()
        return RankExecutable(program, kernels, xp, rank, exchanges, marks, checks)

    @property
    def _rank(self) -> int:
        """The number of this process in its job."""
        assert self.job is not None, "it is asked for in a job"
        return self.job.rank
