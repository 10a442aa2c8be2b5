"""The base class of engines: what a backend plugin gives, and what it has of itself.

An engine is a mesh of opened devices. It knows arrays, kernels and collectives; it knows nothing
about models, gradients or shardings beyond the box of a tensor that each device holds. A plugin
derives from `Engine` and implements what is abstract; everything else has a default, which it
overrides where its framework has something better. Nothing is looked for by name: what is not
declared here, the core does not call.

A plan comes in by `lower_plan`. By default one program goes to `lower`, and a plan of several
stages is gone through step by step, each stage on the engine of its `part` of the mesh.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import numpy as np

from mithril.engine.arena import Arrange
from mithril.engine.checks import KernelChecks, check_executable
from mithril.engine.interop import Interop
from mithril.engine.job_store import JobStore
from mithril.engine.kernels.custom import kernels_for, name_dtype
from mithril.engine.protocol import Executable, Handle, Produce
from mithril.engine.recording import EngineProfiler
from mithril.engine.staged import StagedExecutable
from mithril.engine.transport import Transport
from mithril.errors import BackendError, OptionError
from mithril.mesh import Mesh, Sharding, coarse
from mithril.ops.collective import collectives
from mithril.plan import Execution, Plan, Program, Whole
from mithril.plan.timetable import Index, Timetable, Transfer
from mithril.types import DType, TensorType

# Asked for at every array that is made.
_CAPABILITIES = frozenset(collectives())
_DTYPES = frozenset(DType)
_NO_INTEROP = Interop()


class Engine(ABC):
    """Devices opened as a mesh; see the module's text.

    Attributes:
        name: the backend's name, the same for every engine of it: `numpy`.
        mesh: the devices that the engine was opened on; `mesh.grid` has the flat index of each by
            its coordinates. Of the engine of a part, `mesh.devices` are their flat indices in the
            whole mesh; of the whole one it is empty.
    """

    __slots__ = ()

    name: str
    mesh: Mesh

    # ------------------------------------------------------------------ what it says of itself

    @property
    @abstractmethod
    def platform(self) -> str:
        """The kind of device, by which costs are looked up: `simulated`, `cpu`, `gpu`, …."""

    @property
    @abstractmethod
    def devices(self) -> tuple[str, ...]:
        """A label for each device of the mesh, in flat order: `cpu 0`."""

    @property
    def own_kernels(self) -> Mapping[str, Callable[..., Any]]:
        """Factories of the engine's kernels, by op name; ops without one are expanded.

        Raises:
            BackendError: the engine, written for API 2.1 or before, gives `kernels` alone.
        """
        raise BackendError(
            f"engine of backend '{self.name}' has no table of kernels; give it own_kernels, a "
            f"mapping from names of ops to factories"
        )

    @property
    def kernel_table(self) -> Mapping[str, Callable[..., Any]]:
        """What programs are lowered with: the engine's kernels, and those of users for it."""
        return kernels_for(self.name, self.own_kernels, self.dtype_name)

    @property
    def kernels(self) -> frozenset[str]:
        """Names of the ops the engine has a kernel for: those of its table."""
        return frozenset(self.kernel_table)

    @property
    def kernel_checks(self) -> KernelChecks:
        """What looks at the results of its kernels, and says whose they are."""
        return KernelChecks(self.name, self.dtype_name)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """Flat indices of the devices whose parts this process can read; by default all of them."""
        return tuple(range(self.mesh.size))

    @property
    def process_count(self) -> int:
        """How many processes share the devices of the whole mesh; by default this one has all."""
        return 1

    @property
    def process_index(self) -> int:
        """The number of this process among them, from 0."""
        return 0

    @property
    def job_store(self) -> JobStore | None:
        """Where these processes leave each other texts beside their collectives; by default None.

        With it they compare plans in bounded time, also those of a part of the mesh.
        """
        return None

    @property
    def capabilities(self) -> frozenset[str]:
        """The kinds of collectives the engine offers; by default every one of the core's."""
        return _CAPABILITIES

    @property
    def dtypes(self) -> frozenset[DType]:
        """Element types the engine can hold; by default every one."""
        return _DTYPES

    def dtype_remedy(self, dtype: DType) -> str:
        """Return the end of the message that refuses a dtype: what to do instead.

        By default it names the usual dtype of the kind among `dtypes`: float32, or int32.

        Args:
            dtype: one that is not of `dtypes`.
        """
        usual = (DType.int32, DType.float32) if dtype.is_integer else (DType.float32, DType.int32)
        held = [other for other in usual if other in self.dtypes and other != dtype]
        return f"use dtype='{held[0]}'" if held else "use another backend"

    def dtype_name(self, dtype: Any) -> str:
        """Return what Mithril calls a dtype of the framework, by which kernels' results are judged.

        By default the last part of how it prints, `float32` for `torch.float32`. An engine whose
        framework has other names says here which of Mithril's each is.

        Args:
            dtype: the `dtype` of one of its arrays.

        Returns:
            The name, such as `float32`; any other text for a dtype that Mithril does not have.
        """
        return name_dtype(dtype)

    @property
    def device_kind(self) -> str:
        """What a device calls itself, by which its profile is found: `NVIDIA H100 80GB HBM3`.

        By default the platform.
        """
        return self.platform

    @property
    def execution(self) -> Execution:
        """How programs run, as far as their time and memory depend on it."""
        return Execution()

    @property
    def transport(self) -> Transport | None:
        """What carries data between processes and lacks some collectives; by default None.

        Plans are priced with what the transport really sends.
        """
        return None

    @property
    def library(self) -> str:
        """What carries data between devices: `nccl`, `gloo`, `mpi`; empty, by default, for nothing.

        Users name it in `collective_ops`.
        """
        return ""

    @property
    def keeps_on_host(self) -> bool:
        """Whether arrays may lie in the host arena between programs; by default they may not."""
        return False

    @property
    def facts(self) -> Mapping[str, str]:
        """What else `mithril backends info` shows, by label; by default nothing."""
        return {}

    @property
    def interop(self) -> Interop:
        """What users of the engine's framework are offered; by default nothing."""
        return _NO_INTEROP

    # ------------------------------------------------------------------ arrays

    @abstractmethod
    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make a distributed array.

        Args:
            type: global shape and dtype.
            sharding: which box each device holds; every device holds `sharding.local_shape`, zeros
                behind the box where it is smaller (`host_shards` does all of that).
            produce: returns the host data of a box; called once per distinct box.
        """

    @abstractmethod
    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what a device of this process holds, on the host.

        Args:
            shards: a distributed array.
            sharding: how it lies.
            device: flat index of one of `local_devices`.

        Returns:
            An array of shape `sharding.local_shape`, padding included, that cannot be written to.
        """

    # ------------------------------------------------------------------ parts of the mesh

    def part(self, mesh: Mesh) -> Self:
        """Return the engine of some of the devices, or of all of them in another order of axes.

        Args:
            mesh: a part of this engine's mesh: `mesh.devices` are flat indices of its devices; or
                the same mesh with another `order`.

        Raises:
            BackendError: the engine knows no parts, and no other order, which is the default.
        """
        if not mesh.devices:
            raise BackendError(
                f"backend '{self.name}' has its devices in one order of mesh axes; open it on "
                f"{mesh!r}, or leave out network_topology_aware"
            )
        raise BackendError(
            f"backend '{self.name}' runs one program on all of its devices, and this model has "
            f"layers or stages on some of them; remove device_id and stages, or use another backend"
        )

    def on(self, mesh: Mesh) -> Self:
        """Return the engine of the devices of a mesh: itself for all of them, else of a part.

        Args:
            mesh: the engine's mesh, a part of it, along any axes, or either in another order.

        Raises:
            BackendError: it is a part, and the engine knows none.
        """
        is_own = not mesh.devices and mesh.numbering[1] == self.mesh.numbering[1]
        return self if is_own else self.part(coarse(mesh))

    def lower_transfer(self, transfer: Transfer) -> Callable[[Handle], Handle]:
        """Return the function that brings a value from the devices of one part to those of another.

        It takes the value where it is made, a handle of the engine of that part, and returns it as
        it is needed, a handle of the engine of the other part. An engine that has parts has this.

        Args:
            transfer: what goes where.

        Raises:
            BackendError: the engine knows no parts, which is the default.
        """
        raise BackendError(
            f"backend '{self.name}' moves nothing between parts of its mesh; reshard arrays over "
            f"all of it, or use another backend"
        )

    def move(self, shards: Handle, transfer: Transfer) -> Handle:
        """Bring a value from the devices of one part to those of another, once.

        Args:
            shards: the value where it is made.
            transfer: what goes where.
        """
        return self.lower_transfer(transfer)(shards)

    # ------------------------------------------------------------------ programs

    @abstractmethod
    def lower(self, program: Program, donate: Collection[int] = ()) -> Executable:
        """Turn a program of all devices into something that runs.

        Args:
            program: what runs.
            donate: positions of inputs that are given up: outputs may take their memory.
        """

    def lower_plan(self, plan: Plan, donate: Collection[int] = ()) -> Executable:
        """Turn a plan into something that runs: the one way in.

        One program goes to `lower`, or to `lower_whole` where the plan knows the graph it came
        from; several go to `lower_stages`. Engines override these.

        Args:
            plan: what runs.
            donate: positions of the plan's inputs that are given up.
        """
        stage = plan.only_stage
        if stage is None:
            return self.lower_stages(plan, donate)
        if plan.whole is not None:
            return self.lower_whole(plan.whole, stage.program, donate)
        return self.lower(stage.program, donate)

    def lower_whole(
        self, whole: Whole, program: Program, donate: Collection[int] = ()
    ) -> Executable:
        """Turn a program into something that runs, given the graph on whole tensors it came from.

        An engine whose compiler places collectives itself may lower the graph and leave the program
        aside; by default it is the other way round.

        Args:
            whole: the graph on whole tensors, and how its values lie.
            program: the same as the program of a device.
            donate: positions of inputs that are given up.
        """
        return self.lower(program, donate)

    def lower_stages(self, plan: Plan, donate: Collection[int] = ()) -> Executable:
        """Turn a plan of several stages into something that runs.

        By default this process goes through the timetable step by step.

        Args:
            plan: stages and their timetable.
            donate: positions of the plan's inputs that may be given up; by default they are kept.
        """
        table = plan.timetable
        here = set(self.local_devices)
        return StagedExecutable(
            table,
            programs=[
                check_executable(
                    self.name,
                    "lower",
                    self.on(stage.program.mesh).lower(
                        stage.program, _find_reusable(plan, table, number)
                    ),
                )
                for number, stage in enumerate(plan.stages)
            ],
            transfers=[
                check_executable(self.name, "lower_transfer", self.lower_transfer(transfer))
                for transfer in table.transfers
            ],
            observed=[not here.isdisjoint(transfer.devices) for transfer in table.transfers],
            indices=[_number(self, index) for index in table.indices],
            is_timed=self.is_in_order,
        )

    # ------------------------------------------------------------------ measuring

    @property
    def is_in_order(self) -> bool:
        """Whether what a measured program makes is computed when it returns; by default it is."""
        return True

    def measuring(self) -> Self:
        """Return this engine with programs that say how long their segments take.

        They are called with a `Recorder` (`mithril.engine.recording`), which they tell of every
        collective, and of what they find out about times and memory. By default the engine itself:
        a profile then times its programs as a whole.
        """
        return self

    def wait_for(self, handles: Sequence[Handle]) -> None:
        """Return once arrays are computed; by default they are as soon as they are returned.

        Profiles, calibrations and tuned plans are timed by it, and it is what `block_until_ready`
        of an array does: an engine whose library computes when somebody reads, or beside this
        thread, has it compute here.

        Args:
            handles: what programs returned.
        """
        del handles

    def open_profiler(self) -> EngineProfiler:
        """Return what is open while a profile is; by default that does nothing."""
        return EngineProfiler()

    def with_ranges(self) -> Self:
        """Return this engine with programs whose layers stand in ranges of a profiler.

        Raises:
            OptionError: its programs have no such ranges, which is the default.
        """
        raise OptionError(
            f"partition_hooks=True is not available on backend '{self.name}'; its "
            f"programs have no ranges for a profiler; leave it out"
        )

    def in_arena(self, arrange: Arrange) -> Self:
        """Return this engine with programs that keep their values at fixed places in one block.

        The block of a device is made once for each lowered plan, and used again at every call. What
        leaves a program is not in it. The `execution` of the engine says whose results are.

        Args:
            arrange: chooses the places.

        Raises:
            OptionError: its programs take memory as they run, which is the default.
        """
        raise OptionError(
            f"memory_planning='greedy' is not available on backend '{self.name}'; its programs "
            f"take memory as they run; leave it out"
        )


def _find_reusable(plan: Plan, table: Timetable, number: int) -> list[int]:
    """Return the inputs of a stage whose memory an output of the same type may take."""
    graph = plan.stages[number].program.graph
    free = Counter(value.type for value in graph.outputs.values())
    found = []
    for position in table.find_donatable(number):
        type = graph.inputs[position].type
        if free[type]:
            free[type] -= 1
            found.append(position)
    return found


def _number(engine: Engine, index: Index) -> Handle:
    """Return the number of a micro-batch on the devices of a part."""
    part = engine.on(index.mesh)
    host = np.asarray(index.value, np.int32)
    return part.put(
        TensorType((), DType.int32), Sharding.replicated(part.mesh, 0), lambda box: host
    )
