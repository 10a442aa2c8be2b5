"""Times what one op takes on all devices of an engine at once.

A program runs an op once, and another many times in a chain; what is between them is the op, free
of what a call costs. Both are run in turn, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from mithril.engine import Engine, Executable
from mithril.engine.protocol import Handle
from mithril.ir import Builder, Tensor
from mithril.ir.operand import apply_one
from mithril.mesh import Sharding
from mithril.ops.reduce import Sum
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

Chain = Callable[[Sequence[Tensor], int], Tensor]
"""Emits an op so many times on some operands, each time on the result of the time before."""
LONGEST_CHAIN = 64
LEAST_ROUNDS, MOST_ROUNDS = 4, 200
CHAIN_SECONDS = 0.004
"""A chain is made so long that a call takes about that time: so short that other programs of the
machine leave some calls alone."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Times ops on an engine.

    Args:
        engine: all of whose devices compute at the same time.
        seconds: how long an op is measured.
    """

    engine: Engine
    seconds: float = 0.25

    def quickly(self, share: float) -> Timer:
        """Return a timer that takes a share of the time."""
        return replace(self, seconds=self.seconds * share)

    def measure(self, chain: Chain, types: Sequence[TensorType], per_device: bool = True) -> float:
        """Return the seconds that an op takes.

        Args:
            chain: emits the op.
            types: of its operands on each device.
            per_device: whether devices that compute in turn share the time.
        """
        once = self._prepare(chain, types, 1)
        first = min(_time(once) for _ in range(3))
        count = round(min(max(CHAIN_SECONDS / max(first, 1e-9), 1), LONGEST_CHAIN))
        often = self._prepare(chain, types, 1 + count)
        _time(often)
        short, long = self._time_in_turn(once, often)
        share = self.engine.mesh.size if per_device and self.engine.execution.in_turn else 1
        return max(long - short, 1e-10) / count / share

    def measure_call(self) -> float:
        """Return the seconds of a call that computes all but nothing, until its result is there."""
        run = self._prepare(lambda operands, count: operands[0], [make_type(1)], 1)
        return min(self._time_in_turn(run))

    def _time_in_turn(self, *runs: Callable[[], None]) -> list[float]:
        """Return the least time of each run: what else the machine does only makes it longer."""
        rounds: list[list[float]] = []
        started = perf_counter()
        while len(rounds) < LEAST_ROUNDS or (
            perf_counter() - started < self.seconds and len(rounds) < MOST_ROUNDS
        ):
            rounds.append([_time(run) for run in runs])
        return [min(times) for times in zip(*rounds, strict=True)]

    def _prepare(self, chain: Chain, types: Sequence[TensorType], count: int) -> Callable[[], None]:
        """Return a function that runs a chain and waits until all devices are done."""
        builder = Builder()
        operands = [builder.input(type, f"x{n}") for n, type in enumerate(types)]
        last = chain(operands, count)
        # A scalar is fetched from each device; it needs all of the chain.
        done = apply_one(Sum(tuple(range(last.ndim)), keepdims=False), last)
        graph = builder.build({"done": done})
        mesh = self.engine.mesh
        ports = [Port(v.name, v.type, Sharding.replicated(mesh, v.type.rank)) for v in graph.inputs]
        out = Port("done", done.type, Sharding.replicated(mesh, 0))
        run = self.engine.lower(Program(mesh, graph, tuple(ports), (out,)))
        handles = [self._put(port) for port in ports]
        return lambda: self._run(run, handles, out)

    def _put(self, port: Port) -> Handle:
        values = _draw(port.type)
        return self.engine.put(port.type, port.sharding, lambda box: values[box])

    def _run(self, run: Executable, handles: Sequence[Handle], out: Port) -> None:
        (made,) = run(handles)
        for device in self.engine.local_devices:
            self.engine.shard(made, out.sharding, device)


def _draw(type: TensorType) -> np.ndarray:
    """Return values of about 1 over the root of the last size: products keep their size."""
    drawn = np.random.default_rng(0).standard_normal(type.shape, np.float32)
    return np.asarray(drawn / np.sqrt(type.shape[-1]), type.dtype.numpy)


def _time(run: Callable[[], None]) -> float:
    started = perf_counter()
    run()
    return perf_counter() - started


def make_type(*shape: int, dtype: DType = DType.float32) -> TensorType:
    """Return a tensor type."""
    return TensorType(shape, dtype)
