"""The executor of a pool of worker processes, one for each device, which this process controls."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
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
    all_nodes,
    as_dtype,
    host_shards,
    listing,
)
from mithril.spi.ops import UserOp

from mithril_torch.executors.observed import ObservedRows, match_plan, match_rows, to_plan_row
from mithril_torch.executors.pool.controller import Pool
from mithril_torch.executors.timing import HOW, record
from mithril_torch.options import TorchOptions
from mithril_torch.program.codegen_options import CodegenOptions
from mithril_torch.program.module import ProgramText, write
from mithril_torch.program.source_map import ProgramSourceMap
from mithril_torch.program.staged import write_plan

_numbers = itertools.count()
FEW = 16
"""Programs of so few nodes, such as an eager function, wait for the next message."""


class WorkersExecutor:
    """A handle stands for the tensors that the workers hold.

    Args:
        mesh: the devices, or some of them.
        pool: the workers of all devices.
    """

    def __init__(self, mesh: Mesh, pool: Pool) -> None:
        self._mesh = mesh
        self._pool = pool

    @staticmethod
    def start(mesh: Mesh, options: TorchOptions, device: str) -> WorkersExecutor:
        """Return a worker for each device of a mesh.

        Args:
            mesh: the devices.
            options: of the backend.
            device: `cpu` or `cuda`.
        """
        library = options.library(device)
        pool = Pool.of(mesh.size, device=device, backend=library, timeout=options.timeout)
        return WorkersExecutor(mesh, pool)

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each worker."""
        return tuple(f"worker {rank}" for rank in self._mesh.flat)

    @property
    def local_devices(self) -> tuple[int, ...]:
        """All devices: this process reads what any worker holds."""
        return tuple(range(self._mesh.size))

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Any:
        """Send every worker its part of a distributed array."""
        parts: list[Any] = [None] * self._pool.size
        for rank, part in zip(self._mesh.flat, host_shards(type, sharding, produce), strict=True):
            parts[rank] = part
        return self._pool.put(parts, type.dtype.value)

    def shard(self, shards: Any, sharding: Sharding, device: int) -> np.ndarray:
        """Fetch what a worker holds."""
        return self.parts([(shards, sharding, device)])[0]

    def parts(self, wanted: Sequence[tuple[Any, Sharding, int]]) -> list[np.ndarray]:
        """Fetch what workers hold of several arrays, with as few messages as may be."""
        at = [(handle, sharding.mesh.in_whole(device)) for handle, sharding, device in wanted]
        return [
            part.data.view(as_dtype(part.spec.dtype).numpy).reshape(part.spec.shape)
            for part in self._pool.fetch_all(at)
        ]

    def wait(self, handles: Sequence[Any]) -> None:
        """Return once the workers have computed all that was begun.

        Raises:
            BackendError: a handle is lost, or the pool has ended.
        """
        self._pool.wait(handles)

    def part(self, mesh: Mesh) -> WorkersExecutor:
        """Return some of the devices."""
        return WorkersExecutor(mesh, self._pool)

    def measuring(self) -> WorkersExecutor:
        """Return the same: marks in the text of a program are all that is needed."""
        return self

    def lower(
        self,
        program: Program,
        kernels: Mapping[str, Kernel],
        codegen: CodegenOptions,
        donate: Collection[int] = (),
    ) -> WorkersExecutable:
        """Write a program as text and have every worker load it.

        Raises:
            BackendError: it calls a kernel that a user gave an op; workers get text only.
        """
        generated = write(program, kernels, codegen, donate)
        _check_users(generated, [program])
        return WorkersExecutable(
            self._pool,
            generated,
            len(program.outputs),
            _is_small(program),
            partial(_merge_ranks, program),
            program.issue,
        )

    def lower_plan(
        self, plan: Plan, kernels: Mapping[str, Kernel], codegen: CodegenOptions
    ) -> WorkersExecutable:
        """Write a plan of several stages as text and have every worker load it.

        Raises:
            BackendError: it calls a kernel that a user gave an op.
        """
        generated = write_plan(plan, kernels, codegen)
        _check_users(generated, [stage.program for stage in plan.stages])

        def to_issued(observed: ObservedRows) -> Iterator[Issued]:
            return match_plan(plan, dict(enumerate(observed)))

        return WorkersExecutable(
            self._pool, generated, len(plan.outputs), False, to_issued, plan.issue
        )


class WorkersExecutable:
    """A program that all workers have loaded.

    Args:
        pool: the workers.
        generated: the program.
        outputs: how many handles it returns.
        can_wait: whether it may wait for the next message.
        to_issued: returns what was carried out, from what each worker saw.
        planned: returns what is to be carried out, for a program that cannot be timed.
    """

    def __init__(
        self,
        pool: Pool,
        generated: ProgramText,
        outputs: int,
        can_wait: bool,
        to_issued: Callable[[ObservedRows], Iterable[Issued]],
        planned: Callable[[], Iterable[Issued]],
    ) -> None:
        self._planned = planned
        self.generated = generated
        self._pool = pool
        self._outputs = outputs
        self._can_wait = can_wait
        self._to_issued = to_issued
        self._name = f"program {next(_numbers)}"
        pool.load(self._name, generated.text, ProgramSourceMap(generated))
        weakref.finalize(self, _unload, pool, self._name)

    def __call__(self, inputs: Sequence[Any], observe: Observer | None = None) -> list[Any]:
        """Run once; an observer is told of the collectives that PyTorch carried out."""
        if observe is None:
            run = self._pool.queue if self._can_wait else self._pool.run
            return list(run(self._name, inputs, self._outputs))
        if isinstance(observe, Recorder):
            return self._measure(inputs, observe)
        handles, rows = self._pool.run_recorded(self._name, inputs, self._outputs)
        for issued in self._to_issued(rows):
            observe(issued)
        return list(handles)

    def _measure(self, inputs: Sequence[Any], recorder: Recorder) -> list[Any]:
        """Run once and tell a recorder of times and memory of every worker."""
        handles, found = self._pool.run_measured(
            self._name, inputs, self._outputs, counts_memory=recorder.counts_memory
        )
        stamps = [(rank, measured["stamps"]) for rank, measured in enumerate(found)]
        record(recorder, self.generated.segments, stamps, self._planned)
        for rank, measured in enumerate(found):
            recorder.memory += (MemoryUse((rank,), most, HOW) for most in measured["peak"])
        return list(handles)


def _merge_ranks(program: Program, observed: ObservedRows) -> Iterator[Issued]:
    """Yield what was carried out, from what the workers saw: those that take part all the same."""
    same = zip(*(observed[rank] for rank in program.mesh.flat), strict=True)
    # Of a permutation not every rank sees the data.
    return match_rows(program, (max(map(to_plan_row, rows)) for rows in same))


def _check_users(generated: ProgramText, programs: Sequence[Program]) -> None:
    """Raise if a text calls what workers, which get text only, do not have.

    Raises:
        BackendError: it calls a kernel that a user gave an op.
    """
    if not generated.users:
        return
    nodes = (node for program in programs for node in all_nodes(program.graph))
    names = sorted({node.op.name for node in nodes if isinstance(node.op, UserOp)})
    raise BackendError(
        f"ops {listing(names)} have kernels of their own for 'torch', which worker processes "
        f'cannot call; run the script under torchrun, or with executor="lockstep", or give '
        f"define_op an expand= instead"
    )


def _is_small(program: Program) -> bool:
    nodes = list(all_nodes(program.graph))
    return len(nodes) <= FEW and not any(node.op.is_collective for node in nodes)


def _unload(pool: Pool, name: str) -> None:
    if pool.is_alive:
        pool.unload(name)
