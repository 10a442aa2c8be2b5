"""The executor of this process's own device: a generated program is a function that is called here.

It also serves each rank of a job; `launch.distributed` has then made the process group that the
collectives use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock
from time import perf_counter
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mithril.spi import (
    BackendError,
    Issued,
    Kernel,
    MemoryUse,
    Mesh,
    Observer,
    Plan,
    Produce,
    Program,
    Recorder,
    Sharding,
    TensorType,
    host_shards,
)
from torch._C import _InferenceMode

from mithril_torch.executors.captured import (
    CapturedRun,
    capture_cuda_graph,
    is_worth_capturing,
)
from mithril_torch.executors.observed import match_plan, match_program
from mithril_torch.executors.pool.allocations import count_allocations
from mithril_torch.executors.pool.faults import is_secondary_failure
from mithril_torch.executors.pool.marks import make_mark
from mithril_torch.executors.pool.recorder import record_collectives
from mithril_torch.executors.timing import HOW, check_counting, record
from mithril_torch.program import runtime_library
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.program.module import ProgramText, write
from mithril_torch.program.source_map import ProgramSourceMap
from mithril_torch.program.staged import write_plan
from mithril_torch.tensors import disable_autocast, to_numpy, to_tensor

Handle = torch.Tensor | None
"""What this process's device holds of an array; None where the array lies on other devices."""


class LocalExecutor:
    """A handle is the tensor that this process's device holds.

    Args:
        mesh: the devices of all processes, or some of them.
        device: where this process's tensors lie.
        rank: which device of all that is.
        captures: whether programs that are worth it are replayed as CUDA graphs.
    """

    def __init__(self, mesh: Mesh, device: str, rank: int = 0, *, captures: bool = False) -> None:
        self._mesh = mesh
        self._device = device
        self._rank = rank
        self._captures = captures

    @property
    def device(self) -> str:
        """Where this process's tensors lie."""
        return self._device

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each device."""
        if self._mesh.size == 1 and not self._mesh.devices:
            return (self._device,)
        return tuple(f"rank {rank}" for rank in self._mesh.flat)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """The one device of this process, if it is among those of the mesh."""
        flat = self._mesh.flat
        return (flat.index(self._rank),) if self._rank in flat else ()

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Handle:
        """Make this process's part of a distributed array."""
        parts = host_shards(type, sharding, produce, self.local_devices)
        return to_tensor(parts[0], self._device) if parts else None

    def shard(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        """Return what this process's device holds.

        Raises:
            BackendError: another process has the device.
        """
        return self._read(shards, sharding, device)

    def _read(self, shards: Handle, sharding: Sharding, device: int) -> np.ndarray:
        rank = sharding.mesh.in_whole(device)
        if shards is None or rank != self._rank:
            raise BackendError(
                f"device {rank} belongs to rank {rank}, not to this one ({self._rank}); its "
                f"part cannot be read here; reshard the array to P() first"
            )
        return to_numpy(shards)

    def parts(self, wanted: Sequence[tuple[Handle, Sharding, int]]) -> list[np.ndarray]:
        """Return what this process's device holds of several arrays.

        Raises:
            BackendError: another process has a device.
        """
        return [self._read(*one) for one in wanted]

    def wait(self, handles: Sequence[Handle]) -> None:
        """Return once the device has computed all that was begun; a CPU has."""
        if self._device.startswith("cuda"):
            torch.cuda.synchronize(self._device)

    def part(self, mesh: Mesh) -> LocalExecutor:
        """Return some of the devices; this process need not have one of them."""
        return LocalExecutor(mesh, self._device, self._rank, captures=self._captures)

    def measuring(self) -> LocalExecutor:
        """Return the same: marks in the text of a program are all that is needed."""
        return self

    def lower(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        codegen: CodegenOptions,
        donate: Collection[int] = (),
    ) -> LocalExecutable:
        """Write a program as text and load it."""
        generated = write(program, kernels, replace(codegen, tracks_steps=False), donate)
        is_worth = is_worth_capturing(program, [program.graph])
        return LocalExecutable(
            generated,
            self._device,
            self._rank,
            partial(match_program, program),
            program.issue,
            captures=self._captures and not codegen.timed and is_worth,
        )

    def lower_plan(
        self, plan: Plan, kernels: Mapping[str, Kernel], codegen: CodegenOptions
    ) -> LocalExecutable:
        """Write this process's part of a plan of several stages as text and load it."""
        generated = write_plan(plan, kernels, replace(codegen, tracks_steps=False), self._rank)

        def to_issued(observed: Sequence[Mapping[str, Any]]) -> Iterator[Issued]:
            return match_plan(plan, {self._rank: observed})

        is_worth = is_worth_capturing(plan, [stage.program.graph for stage in plan.stages])
        return LocalExecutable(
            generated,
            self._device,
            self._rank,
            to_issued,
            partial(plan.issue, self._rank),
            captures=self._captures and not codegen.timed and is_worth,
        )


class LocalExecutable:
    """A written program as a function of this process.

    Args:
        generated: the program.
        device: where its constants are made.
        rank: of this process.
        to_issued: returns what was carried out, from what was seen.
        planned: returns what this process takes part in, for a program that cannot be timed.
        captures: whether it is captured as a CUDA graph, and replayed.
    """

    def __init__(
        self,
        generated: ProgramText,
        device: str,
        rank: int,
        to_issued: Callable[[Sequence[Mapping[str, Any]]], Iterable[Issued]],
        planned: Callable[[], Iterable[Issued]],
        *,
        captures: bool = False,
    ) -> None:
        self.generated = generated
        self._planned = planned
        self._to_issued = to_issued
        self.names: dict[str, Any] = {
            **vars(runtime_library), **generated.users, "device": device, "rank": rank,
            "step": [0],
        }  # fmt: skip
        self._stamps: list[float] = []
        self.names["mark"] = make_mark(self._stamps, device)
        self._file = f"<mithril program {id(self)}>"
        exec(compile(generated.text, self._file, "exec"), self.names)
        self._run = self.names["run"]
        self._arena: torch.Tensor | None = self.names.get("arena")
        captured = CapturedRun(self._run, capture_cuda_graph) if captures else None
        self._replayed: Callable[[Any], Any] = captured or self._run
        # Two calls at once would write into the same memory.
        self._lock = Lock() if captures or self._arena is not None else None
        self._device, self._kind = device, device.partition(":")[0]
        self._rank = rank

    def __call__(self, inputs: Sequence[Handle], observe: Observer | None = None) -> list[Handle]:
        """Run once; an observer is told of the collectives that PyTorch carried out.

        Raises:
            BackendError: another process of the job is gone.
        """
        try:
            return self._call(inputs, observe)
        except RuntimeError as error:
            line = self._find_line(error)
            if not (dist.is_initialized() and is_secondary_failure(str(error))):
                raise
            if self._calls_user(line):  # who may have connections of his own
                raise
            where = ProgramSourceMap(self.generated).line(line) if line else "the program"
            raise BackendError(
                f"rank {self._rank} has lost another process of the job in {where}, "
                f"while they exchanged data: {error}; see what that one says, and start the job "
                f"again"
            ) from error

    def _find_line(self, error: BaseException) -> int | None:
        """Return the number of the line of the program that an error comes from."""
        frames = walk_tb(error.__traceback__)
        found = [line for frame, line in frames if frame.f_code.co_filename == self._file]
        return found[-1] if found else None

    def _calls_user(self, line: int | None) -> bool:
        """Whether a line of the program calls a function of a user."""
        text = self.generated.text.splitlines()[line - 1] if line else ""
        return any(f"{name}(" in text for name in self.generated.users)

    def _call(self, inputs: Sequence[Handle], observe: Observer | None) -> list[Handle]:
        if isinstance(observe, Recorder):
            return self._measure(inputs, observe)
        with self._guard():
            if observe is None:
                results: list[Handle] = self._replayed(inputs)
                return results
            with record_collectives(memoryview(bytearray(1))) as rows:
                results = self._run(inputs)
        for issued in self._to_issued(rows):
            observe(issued)
        return results

    def _guard(self) -> AbstractContextManager[Any]:
        """Return what a run takes place in: without autograd, in the dtypes of the program."""
        if self._lock is None and not torch.is_autocast_enabled(self._kind):
            return _InferenceMode(
                True
            )  # what `torch.inference_mode()` enters, without its own steps
        return self._guard_alone()

    @contextmanager
    def _guard_alone(self) -> Iterator[None]:
        with self._lock or nullcontext(), torch.inference_mode(), disable_autocast(self._device):
            yield

    def _measure(self, inputs: Sequence[Handle], recorder: Recorder) -> list[Handle]:
        """Run once and tell a recorder of times and memory."""
        self._stamps.clear()
        check_counting(self._device, recorder)
        counting = (
            count_allocations(self._device, [*inputs, self._arena])
            if recorder.counts_memory
            else _no_count()
        )
        with self._guard(), counting as peak:
            results: list[Handle] = self._run(inputs)
            if self._device.startswith("cuda"):
                torch.cuda.synchronize()
            self._stamps += (0, perf_counter())
        stamps = [(self._rank, tuple(self._stamps))]
        record(recorder, self.generated.segments, stamps, self._planned)
        recorder.memory += (MemoryUse((self._rank,), most, HOW) for most in peak)
        return results


@contextmanager
def _no_count() -> Iterator[list[int]]:
    yield []
