"""A pool of worker processes, one for each device; this process tells them what to do."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mithril.engine import Observer
from mithril.engine.kernels.registry import Kernel
from mithril.engine.protocol import Produce
from mithril.engine.shards import host_shards
from mithril.errors import BackendError, listing
from mithril.ir.repeat import all_nodes
from mithril.mesh import Mesh, Sharding
from mithril.ops.definition import UserOp
from mithril.plan import Plan, Program
from mithril.types import TensorType, as_dtype

from mithril_torch.options import TorchOptions
from mithril_torch.pool.controller import Pool
from mithril_torch.recorded import Row, Seen, carried_out, issued
from mithril_torch.source import Written, write
from mithril_torch.staged import write_plan
from mithril_torch.style import Style

_numbers = itertools.count()
FEW = 16
"""Programs of so few nodes, such as an eager function, wait for the next message."""


class Workers:
    """A handle stands for the tensors that the workers hold.

    Args:
        mesh: the devices, or some of them.
        pool: the workers of all devices.
    """

    def __init__(self, mesh: Mesh, pool: Pool) -> None:
        self._mesh = mesh
        self._pool = pool

    @staticmethod
    def started(mesh: Mesh, options: TorchOptions, device: str) -> Workers:
        """Return a worker for each device of a mesh.

        Args:
            mesh: the devices.
            options: of the backend.
            device: `cpu` or `cuda`.
        """
        library = options.library(device)
        pool = Pool.of(mesh.size, device=device, backend=library, timeout=options.timeout)
        return Workers(mesh, pool)

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

    def part(self, mesh: Mesh) -> Workers:
        """Return some of the devices."""
        return Workers(mesh, self._pool)

    def lower(
        self, program: Program, kernels: Mapping[str, Kernel], style: Style
    ) -> WorkersExecutable:
        """Write a program as text and have every worker load it.

        Raises:
            BackendError: it calls a kernel that a user gave an op; workers get text only.
        """
        written = write(program, kernels, style=style)
        _check_users(written, [program])
        return WorkersExecutable(
            self._pool,
            written,
            len(program.outputs),
            _is_small(program),
            partial(_told, program.mesh.flat),
        )

    def lower_plan(
        self, plan: Plan, kernels: Mapping[str, Kernel], style: Style
    ) -> WorkersExecutable:
        """Write a plan of several stages as text and have every worker load it.

        Raises:
            BackendError: it calls a kernel that a user gave an op.
        """
        written = write_plan(plan, kernels, style)
        _check_users(written, [stage.program for stage in plan.stages])

        def told(seen: Seen) -> Iterator[Row]:
            return carried_out(plan, dict(enumerate(seen)))

        return WorkersExecutable(self._pool, written, len(plan.outputs), False, told)


class WorkersExecutable:
    """A program that all workers have loaded.

    Args:
        pool: the workers.
        written: the program.
        outputs: how many handles it returns.
        can_wait: whether it may wait for the next message.
        told: returns what was carried out, from what each worker saw.
    """

    def __init__(
        self,
        pool: Pool,
        written: Written,
        outputs: int,
        can_wait: bool,
        told: Callable[[Seen], Iterable[Row]],
    ) -> None:
        self.written = written
        self._pool = pool
        self._outputs = outputs
        self._can_wait = can_wait
        self._told = told
        self._name = f"program {next(_numbers)}"
        pool.load(self._name, written.text, Places(written))
        weakref.finalize(self, _forgotten, pool, self._name)

    def __call__(self, inputs: Sequence[Any], observe: Observer | None = None) -> list[Any]:
        """Run once; an observer is told of the collectives that PyTorch carried out."""
        if observe is None:
            run = self._pool.queue if self._can_wait else self._pool.run
            return list(run(self._name, inputs, self._outputs))
        handles, rows = self._pool.run_recorded(self._name, inputs, self._outputs)
        for row in self._told(rows):
            observe(*row)
        return list(handles)


@dataclass(frozen=True)
class Places:
    """Says in the user's words where a program is; see `mithril_torch.pool.faults.Blame`."""

    written: Written

    def step(self, number: int) -> str:
        """Return what a step is."""
        return f"step {number} ({self.written.steps[number]})"

    def line(self, number: int) -> str:
        """Return what a line of the text does."""
        step = self.written.lines.get(number)
        return f"line {number} of the program" if step is None else self.step(step)


def _told(ranks: Sequence[int], seen: Seen) -> Iterator[Row]:
    """Yield what was carried out, from what the workers saw: those that take part all the same."""
    for same in zip(*(seen[rank] for rank in ranks), strict=True):
        yield max(map(issued, same))  # of a permutation not every rank sees the data


def _check_users(written: Written, programs: Sequence[Program]) -> None:
    """Raise if a text calls what workers, which get text only, do not have.

    Raises:
        BackendError: it calls a kernel that a user gave an op.
    """
    if not written.users:
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


def _forgotten(pool: Pool, name: str) -> None:
    if pool.is_alive:
        pool.unload(name)
