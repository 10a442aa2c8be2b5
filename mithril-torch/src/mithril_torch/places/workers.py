"""A pool of worker processes, one for each device; this process tells them what to do."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mithril.engine import Observer
from mithril.engine.kernels.registry import Kernel
from mithril.engine.protocol import Produce
from mithril.engine.shards import host_shards
from mithril.errors import BackendError, listing
from mithril.ir import Program
from mithril.ir.repeat import all_nodes
from mithril.mesh import Mesh, Sharding
from mithril.ops.definition import UserOp
from mithril.types import TensorType, as_dtype

from mithril_torch.options import TorchOptions
from mithril_torch.pool.controller import Pool
from mithril_torch.recorded import issued
from mithril_torch.source import Written, write
from mithril_torch.style import Style

_numbers = itertools.count()
FEW = 16
"""Programs of so few nodes, such as an eager function, wait for the next message."""


class Workers:
    """A handle stands for the tensors that the workers hold.

    Args:
        mesh: the devices.
        options: of the backend.
        device: `cpu` or `cuda`.
    """

    def __init__(self, mesh: Mesh, options: TorchOptions, device: str) -> None:
        self._mesh = mesh
        self._pool = Pool.of(
            mesh.size, device=device, backend=options.library(device), timeout=options.timeout
        )

    @property
    def labels(self) -> tuple[str, ...]:
        """One for each worker."""
        return tuple(f"worker {rank}" for rank in range(self._mesh.size))

    @property
    def local_devices(self) -> tuple[int, ...]:
        """All devices: this process reads what any worker holds."""
        return tuple(range(self._mesh.size))

    def put(self, type: TensorType, sharding: Sharding, produce: Produce) -> Any:
        """Send every worker its part of a distributed array."""
        return self._pool.put(host_shards(type, sharding, produce), type.dtype.value)

    def shard(self, shards: Any, sharding: Sharding, device: int) -> np.ndarray:
        """Fetch what a worker holds."""
        return self.parts([(shards, device)])[0]

    def parts(self, wanted: Sequence[tuple[Any, int]]) -> list[np.ndarray]:
        """Fetch what workers hold of several arrays, with as few messages as may be."""
        return [
            part.data.view(as_dtype(part.spec.dtype).numpy).reshape(part.spec.shape)
            for part in self._pool.fetch_all(wanted)
        ]

    def lower(
        self, program: Program, kernels: Mapping[str, Kernel], style: Style
    ) -> WorkersExecutable:
        """Write a program as text and have every worker load it.

        Raises:
            BackendError: it calls a kernel that a user gave an op; workers get text only.
        """
        written = write(program, kernels, style=style)
        if written.users:
            names = sorted(
                {n.op.name for n in all_nodes(program.graph) if isinstance(n.op, UserOp)}
            )
            raise BackendError(
                f"ops {listing(names)} have kernels of their own for 'torch', which worker "
                f"processes cannot call; run the script under torchrun, or with "
                f'executor="lockstep", or give define_op an expand= instead'
            )
        return WorkersExecutable(self._pool, written, program)


class WorkersExecutable:
    """A program that all workers have loaded.

    Args:
        pool: the workers.
        written: the program.
        program: what it is.
    """

    def __init__(self, pool: Pool, written: Written, program: Program) -> None:
        self.written = written
        self._pool = pool
        self._outputs = len(program.outputs)
        self._can_wait = _is_small(program)
        self._name = f"program {next(_numbers)}"
        pool.load(self._name, written.text, Places(written))
        weakref.finalize(self, _forgotten, pool, self._name)

    def __call__(self, inputs: Sequence[Any], observe: Observer | None = None) -> list[Any]:
        """Run once; an observer is told of the collectives that PyTorch carried out."""
        if observe is None:
            run = self._pool.queue if self._can_wait else self._pool.run
            return list(run(self._name, inputs, self._outputs))
        handles, rows = self._pool.run_recorded(self._name, inputs, self._outputs)
        for same in zip(*rows, strict=True):  # of a permutation not every rank sees the data
            observe(*max(map(issued, same)))
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


def _is_small(program: Program) -> bool:
    nodes = list(all_nodes(program.graph))
    return len(nodes) <= FEW and not any(node.op.is_collective for node in nodes)


def _forgotten(pool: Pool, name: str) -> None:
    if pool.is_alive:
        pool.unload(name)
