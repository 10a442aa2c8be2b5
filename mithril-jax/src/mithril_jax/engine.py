"""The JAX engine: devices of one platform, and programs as jitted functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import jax
import numpy as np
from mithril.spi import (
    ALL_OPS,
    Arrange,
    BackendError,
    DType,
    Engine,
    EngineProfiler,
    Executable,
    Execution,
    JobStore,
    Kernel,
    Mesh,
    OfImages,
    OptionError,
    Plan,
    Produce,
    Program,
    Sharding,
    TensorType,
    Transfer,
    Whole,
    kernels_for,
    lay_channels_last,
)
from mithril.spi.ops import uses_host

from mithril_jax.devices import Devices, arrange, find_devices, read_config
from mithril_jax.executable import JaxExecutable
from mithril_jax.interop import JaxInterop
from mithril_jax.job_store import open_job_store
from mithril_jax.kernels import KERNELS, attention, kernels_on
from mithril_jax.kernels.images import of_images
from mithril_jax.loop_weights import lay_loop_weights
from mithril_jax.lower import function_of, whole_function
from mithril_jax.measured import JaxProfiler, MeasuredExecutable
from mithril_jax.options import JaxOptions
from mithril_jax.processes import join, raise_if_lost
from mithril_jax.transfer import make_transfer

FEW = 8
"""So many arrays are waited for one by one: JAX's function looks at what it is given as long."""
_WIDE = frozenset({DType.int64, DType.uint64, DType.float64})


def open_engine(mesh: Mesh, options: JaxOptions) -> JaxEngine:
    """Open the devices of a mesh.

    Raises:
        BackendError: there are too few, or none of the platform.
        OptionError: an option does not fit the devices.
    """
    options.check_mesh(mesh.shape)
    join()
    found = find_devices(mesh.size, options.wanted_platform)
    options.check_devices(found)
    return JaxEngine(mesh, Devices(mesh, arrange(mesh, found)), options)


@dataclass(frozen=True, eq=False)
class JaxEngine(Engine):
    """JAX arrays as handles; see `mithril.spi.Engine`."""

    mesh: Mesh
    opened: Devices
    options: JaxOptions
    is_measuring: bool = False
    is_arranged: bool = False
    name = "jax"

    @property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self.opened.platform

    @property
    def device_kind(self) -> str:
        """What JAX calls the kind of device: `TPU v4`, `NVIDIA H100 80GB HBM3`, `cpu`."""
        return str(self.opened.flat[0].device_kind)

    @property
    def execution(self) -> Execution:
        """XLA fuses, lays memory out, and on accelerators runs collectives beside other work.

        The CPU devices of a process share its threads.
        """
        is_cpu = self.platform == "cpu"
        here = len(self.local_devices) if is_cpu else 1
        return Execution(
            fuses=True,
            overlaps=not is_cpu,
            schedules=True,
            copies_beside=not is_cpu,
            lays_out=True,
            adds_narrow=True,
            devices_per_processor=here,
            largest_part=float(here),
            shares_threads=is_cpu and self.process_count == 1,
            adds_in_product=self.platform == "gpu",
            scores_at_once=attention.count_scores_at_once(self.platform),
            in_arena=ALL_OPS if self.is_arranged else (),
        )

    @property
    def library(self) -> str:
        """`nccl` or `rccl` on GPUs, `gloo` among processes on CPUs, else XLA's own."""
        if self.platform == "gpu":
            return "rccl" if "rocm" in self.opened.flat[0].client.platform_version else "nccl"
        return "gloo" if self.platform == "cpu" and self.process_count > 1 else "xla"

    @property
    def devices(self) -> tuple[str, ...]:
        """A label for each device, as JAX writes it."""
        return tuple(map(str, self.opened.flat))

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices of this process."""
        return self.opened.local

    @property
    def process_count(self) -> int:
        """How many processes the job has; a mesh of one device is each process's own."""
        return 1 if self.mesh.size == 1 and not self.mesh.devices else jax.process_count()

    @property
    def process_index(self) -> int:
        """The number of this process in the job."""
        return 0 if self.process_count == 1 else jax.process_index()

    @cached_property
    def job_store(self) -> JobStore | None:
        """JAX's coordination service; None where one process has all devices."""
        if self.process_count == 1:
            return None
        return open_job_store(self.options.timeout, self.opened.flat)

    @property
    def own_kernels(self) -> Mapping[str, Kernel]:
        """Kernels for the platform, by op name."""
        return kernels_on(self.platform)

    @property
    def dtypes(self) -> frozenset[DType]:
        """All dtypes; those of 64 bits if JAX has them switched on."""
        every = frozenset(DType)
        return every if read_config("jax_enable_x64") else every - _WIDE

    @cached_property
    def interop(self) -> JaxInterop:
        """What users of JAX are offered."""
        return JaxInterop(self.opened, lambda: [part.opened for part in self.parts.values()])

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> jax.Array:
        """Make a distributed array."""
        return self.opened.put(type, sharding, produce)

    def shard(self, shards: jax.Array, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device holds."""
        return self.opened.part(shards, device)

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices, the same one every time."""
        found = self.parts.get(mesh)
        if found is None:
            found = self.parts[mesh] = replace(self, mesh=mesh, opened=self.opened.some(mesh))
        return found

    def lower_transfer(self, transfer: Transfer) -> Callable[[jax.Array], jax.Array]:
        """Return the function that brings a value from some devices to others."""
        return make_transfer(transfer, self.opened)

    @cached_property
    def parts(self) -> dict[Mesh, Self]:
        """The engines of the parts that are in use."""
        return {}

    def lower(self, program: Program, donate: Collection[int] = ()) -> JaxExecutable:
        """Turn a program into a jitted function; `donate` are inputs that are given up."""
        kernels = self.kernel_table
        if self.opened.platform == "cpu":  # elsewhere XLA lays images out by itself
            graph = lay_loop_weights(lay_channels_last(program.graph, kernels))
            program = replace(program, graph=graph)
            kernels = {**kernels, OfImages.name: of_images}
        function = function_of(program, self.opened, kernels)
        kind = MeasuredExecutable if self.is_measuring else JaxExecutable
        return kind(program, function, self.opened, self.options, tuple(donate))

    def lower_plan(self, plan: Plan, donate: Collection[int] = ()) -> Executable:
        """Turn a plan into something that runs.

        Raises:
            BackendError: XLA is to partition the graph by itself, which knows no recomputation.
            OptionError: it is, and the plan copies to the host arena; or it does that with stages.
        """
        copies = any(uses_host(stage.program.graph) for stage in plan.stages)
        if copies and plan.only_stage is None:
            raise OptionError(
                "backend 'jax' keeps nothing in the host arena from one program to the next, as a "
                "model with stages needs it; leave out activation_offload and spill_to_host"
            )
        is_left_to_xla = self.options.pjit_lowering_strategy == "gspmd" and self.mesh.size > 1
        if is_left_to_xla and copies:
            raise OptionError(
                "backend 'jax' has pjit_lowering_strategy='gspmd', by which XLA places copies by "
                "itself and none go to the host arena; leave it out, or what offloads: "
                "activation_offload and spill_to_host"
            )
        if is_left_to_xla and any(row.cause.algorithm for row in plan.collectives()):
            raise OptionError(
                "backend 'jax' has pjit_lowering_strategy='gspmd', by which XLA places collectives "
                "by itself; collective_ops, communication_overlap_strategy='decompose', "
                "pipeline_communication and what stands for all of them have no effect with it; "
                "leave out either"
            )
        if is_left_to_xla and plan.policy is not None:
            raise BackendError(
                f"{plan.policy.asked} changes the programs of the devices, which "
                f"pjit_lowering_strategy='gspmd' does not run; leave one of them out"
            )
        return super().lower_plan(plan, donate)

    def lower_whole(
        self, whole: Whole, program: Program, donate: Collection[int] = ()
    ) -> JaxExecutable:
        """Turn a graph on whole tensors into a jitted function, if that is the strategy."""
        if self.options.pjit_lowering_strategy != "gspmd" or self.mesh.size == 1:
            return self.lower(program, donate)
        # Those of a platform are for what a device has: joined dimensions could not stay split.
        kernels = kernels_for(self.name, KERNELS, self.dtype_name)
        function = whole_function(whole, program, self.opened, kernels)
        kind = MeasuredExecutable if self.is_measuring else JaxExecutable
        return kind(program, function, self.opened, self.options, tuple(donate), flagged=False)

    @property
    def is_in_order(self) -> bool:
        """False: XLA computes while Python goes on."""
        return False

    def in_arena(self, arrange: Arrange) -> Self:
        """Return this engine as one whose plans count on the block that XLA lays results out in.

        XLA gives every result that stays in a program its place in one block before the program
        runs, the largest first; there is nothing to choose. It takes the block at every call.
        """
        return replace(self, is_arranged=True)

    def measuring(self) -> Self:
        """Return this engine with programs that JAX's profiler finds."""
        return replace(self, is_measuring=True)

    def wait_for(self, handles: Sequence[jax.Array]) -> None:
        """Return once arrays are computed.

        Args:
            handles: what programs returned.

        Raises:
            BackendError: another process of the job is gone.
        """
        try:
            last: Any = handles[-1] if handles else None
            if last is not None and not last.is_ready():
                self.opened.ask(last)
            if len(handles) > FEW:
                jax.block_until_ready(list(handles))
            else:
                for handle in handles:
                    if handle is not None:
                        handle.block_until_ready()
        except (RuntimeError, ValueError) as error:
            raise_if_lost(error)
            raise

    def open_profiler(self) -> EngineProfiler:
        """Return JAX's own profiler."""
        return JaxProfiler()
