"""Times what one op takes on all devices of an engine at once.

A program runs an op once, and another many times, each time on the result of the time before; what
is between them is the op, free of what a call costs. The longer one is made so long that this is
more than the clock and the rest of the machine blur. Both are run in turn, so that whatever else
the machine does falls on both. Where it is at work for longer than an op is measured, a reference
that is run in between takes longer than before, and the op is measured again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from mithril.engine import Engine, Executable
from mithril.engine.protocol import Handle
from mithril.ir import Builder, Graph, Repeat, Tensor
from mithril.ir.operand import apply, apply_one
from mithril.mesh import Sharding
from mithril.ops.reduce import Max
from mithril.plan import Port, Program
from mithril.types import DType, TensorType

Step = Callable[[Tensor, Sequence[Tensor]], Tensor]
"""Emits an op on what the time before has made, and on the operands; returns what it makes."""
LONGEST_CHAIN, LONGEST_COMPILED, LONGEST_LOOP = 2048, 64, 16384
"""Compilers take the longer, the longer a chain is; a loop is compiled once."""
LEAST_ROUNDS, MOST_ROUNDS = 4, 200
CHAIN_SECONDS = 0.004
"""What a longer program takes above a shorter one, about: so short that other programs of the
machine leave some calls alone."""
SLOWER = 1.1
"""So many times its least a reference takes where something else is at work."""
FIRST = 50
"""So often a reference runs before anything is measured."""
REPEATS, MOST_REPEATS = 10, 100
"""How often one op, and all together, are measured again at most."""


@dataclass(slots=True)
class Reference:
    """What is run in between to tell whether the machine is slower than it was.

    Args:
        run: runs it once.
        least: seconds that it took at least.
    """

    run: Callable[[], None]
    least: float
    _repeats: int = field(default=MOST_REPEATS)

    @classmethod
    def start(cls, run: Callable[[], None]) -> Reference:
        """Return a reference after it has run often enough to tell its least."""
        return cls(run, min(_time(run) for _ in range(FIRST)))

    def is_slower(self) -> bool:
        """Return whether it takes longer now than it did, and measuring again is worth it."""
        took = min(_time(self.run) for _ in range(3))
        self.least = min(self.least, took)
        self._repeats -= took > SLOWER * self.least
        return took > SLOWER * self.least and self._repeats >= 0


@dataclass(frozen=True, slots=True)
class Timer:
    """Times ops on an engine.

    Args:
        engine: all of whose devices compute at the same time.
        seconds: how long an op is measured.
        reference: tells when to measure again; None where nothing else is at work.
        pick: chooses from what a run took in all rounds: by default the least, as what else the
            machine does only makes it longer.
    """

    engine: Engine
    seconds: float = 0.25
    reference: Reference | None = None
    pick: Callable[[Sequence[float]], float] = min

    def quickly(self, share: float) -> Timer:
        """Return a timer that takes a share of the time."""
        return replace(self, seconds=self.seconds * share)

    def typically(self) -> Timer:
        """Return a timer that tells what an op usually takes, as where devices wait for others."""
        return replace(self, pick=statistics.median)

    def prepare(self, step: Step, types: Sequence[TensorType]) -> Callable[[], None]:
        """Return a function that runs an op three times on all devices, until they are done."""
        return self._prepare(step, types, 3, 0)

    def measure(
        self,
        step: Step,
        types: Sequence[TensorType],
        per_device: bool = True,
        steps: int = 0,
    ) -> float:
        """Return the seconds that an op takes.

        Args:
            step: emits the op.
            types: of its operands on each device; what it makes is of the first one's.
            per_device: whether devices that compute in turn share the time.
            steps: how many stand in a loop, where the engine compiles loops; 0 for no loop, as a
                compiler may take slower kernels of a library there.
        """
        steps = steps if self.engine.execution.lays_out else 0
        once, often, count = self._find_count(step, types, steps)
        short, long = self._time_in_turn(once, often)
        share = self.engine.mesh.size if per_device and self.engine.execution.in_turn else 1
        return max(long - short, 1e-10) / count / share

    def _find_count(
        self, step: Step, types: Sequence[TensorType], steps: int
    ) -> tuple[Callable[[], None], Callable[[], None], int]:
        """Return a short program, a longer one, and how many ops lie between them."""
        longest = LONGEST_COMPILED if self.engine.execution.fuses else LONGEST_CHAIN
        longest = LONGEST_LOOP // steps if steps else longest
        once, count = self._prepare(step, types, 1, steps), 1
        short = min(_time(once) for _ in range(3))
        while True:
            often = self._prepare(step, types, 1 + count, steps)
            took = min(_time(often) for _ in range(3)) - short
            if took >= 0.8 * CHAIN_SECONDS or count >= longest:
                return once, often, count * max(steps, 1)
            growth = min(max(CHAIN_SECONDS / max(took, 1e-9), 2), 32)
            count = min(math.ceil(count * growth), longest)

    def measure_call(self) -> float:
        """Return the seconds of a call that computes all but nothing, until its result is there."""
        run = self._prepare(lambda x, operands: x, [make_type(1)], 1, 0)
        (seconds,) = self._time_in_turn(run)
        return seconds

    def _time_in_turn(self, *runs: Callable[[], None]) -> list[float]:
        """Return the time of each run, of rounds in which the machine was as fast as ever."""
        times = self._time_rounds(runs)
        for _ in range(REPEATS):
            if self.reference is None or not self.reference.is_slower():
                break
            times = self._time_rounds(runs)
        return times

    def _time_rounds(self, runs: Sequence[Callable[[], None]]) -> list[float]:
        rounds: list[list[float]] = []
        started = perf_counter()
        while len(rounds) < LEAST_ROUNDS or (
            perf_counter() - started < self.seconds and len(rounds) < MOST_ROUNDS
        ):
            rounds.append([_time(run) for run in runs])
        return [self.pick(times) for times in zip(*rounds, strict=True)]

    def _prepare(
        self, step: Step, types: Sequence[TensorType], count: int, steps: int
    ) -> Callable[[], None]:
        """Return a function that runs a chain or a loop and waits until all devices are done."""
        builder = Builder()
        operands = [builder.input(type, f"x{n}") for n, type in enumerate(types)]
        if steps:
            loop = Repeat(_make_body(step, types, steps), count, carried=1, stacked=0)
            (last,) = apply(loop, *operands)
        else:
            last = _emit(step, operands, count)
        # A scalar is fetched from each device; it needs all of the chain. Of a product a sum would
        # not: compilers make it a product with sums.
        done = apply_one(Max(tuple(range(last.ndim)), keepdims=False), last)
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


def _make_body(step: Step, types: Sequence[TensorType], steps: int) -> Graph:
    """Return one iteration: the result of the one before, and the other operands."""
    builder = Builder()
    operands = [builder.input(type, f"x{n}") for n, type in enumerate(types)]
    built = builder.build({"x": _emit(step, operands, steps)})
    return Graph(tuple(operand.value for operand in operands), built.nodes, built.outputs)


def _emit(step: Step, operands: Sequence[Tensor], count: int) -> Tensor:
    last = operands[0]
    for _ in range(count):
        last = step(last, operands)
    return last


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


def subtract(seconds: float, overhead: float) -> float:
    """Return the seconds without an overhead; noise leaves a quarter of them at least."""
    return max(seconds - overhead, seconds / 4)
