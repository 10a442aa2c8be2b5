"""Time several functions interleaved in one run, and hold ratios of their times against limits.

Every round runs every function once, in random order, so that whatever else the machine does falls
on all of them alike; the ratio of two functions is taken within each round. Reported is the median
of these ratios with its 90 % interval by order statistics: the ranks between which the median lies
with that probability follow from the binomial distribution, whatever the distribution of times.
The garbage collector is off while functions are timed, and works between rounds.

A limit is met when the median is at most 5 % above it and the interval reaches it.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version

CONFIDENCE = 0.9
SLACK = 1.05
THREADS = "OPENBLAS_NUM_THREADS"
KEPT_BYTES = str(1 << 30)
# Read by BLAS and by glibc when they are loaded. An allocator that gives freed memory back to the
# system at once makes whoever allocates next wait for it, which need not be the side that freed it.
SURROUNDINGS = {
    THREADS: "1", "OMP_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": KEPT_BYTES, "MALLOC_TOP_PAD_": "67108864",
}  # fmt: skip

# glibc takes large blocks from the system every time: of more than 128 KiB once the above is set, of
# more than 32 MiB whatever it is told, such as XLA's temporary memory, and other threads' heaps end
# at 64 MiB. Not so if it maps no blocks and has one heap.
BLOCKS_KEPT = {"MALLOC_MMAP_MAX_": "0", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median and the interval it lies in with a probability of 90 %."""

    median: float
    low: float
    high: float

    def meets(self, limit: float) -> bool:
        """Whether the median is at most 5 % above the limit and the interval reaches it."""
        return self.median <= SLACK * limit and self.low <= limit

    def __str__(self) -> str:
        return f"{self.median:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that may not exceed another one.

    Args:
        what: what is measured.
        estimate: how large it is.
        limit: how large it may be.
        unit: of both.
        is_strict: whether the median may not exceed it at all, as it has its tolerance in it.
    """

    what: str
    estimate: Estimate
    limit: float
    unit: str = "x"
    is_strict: bool = False

    @property
    def is_met(self) -> bool:
        within = self.estimate.median <= self.limit
        return within if self.is_strict else self.estimate.meets(self.limit)

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "NOT MET"
        return (
            f"{self.what}: {self.estimate} {self.unit}, limit {self.limit} {self.unit}: {verdict}"
        )


# ------------------------------------------------------------------ statistics


def estimate(samples: Sequence[float]) -> Estimate:
    """Return the median of samples with its 90 % interval.

    With fewer than five samples no interval of order statistics reaches 90 %; it is then the range.
    """
    ordered = sorted(samples)
    cut = _ranks_outside(len(ordered))
    return Estimate(statistics.median(ordered), ordered[cut], ordered[-1 - cut])


def _ranks_outside(count: int) -> int:
    """Return how many samples at each end lie outside the interval of the median."""
    tail, allowed = 0.0, (1 - CONFIDENCE) / 2
    for rank in range(count):
        tail += math.comb(count, rank) / 2**count
        if tail > allowed:
            return max(rank - 1, 0)
    return 0


def ratio(times: Mapping[str, Sequence[float]], of: str, to: str) -> Estimate:
    """Return how much longer one function takes than another, from ratios within rounds."""
    return estimate([a / b for a, b in zip(times[of], times[to], strict=True)])


# ------------------------------------------------------------------ timing


def interleave(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    warm_up: int = 3,
    calls: int = 1,
    seed: int = 0,
    clock: Callable[[], float] = time.perf_counter,
    ready: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds of a call of each function, one number per round.

    Args:
        functions: what is timed, by name.
        rounds: how often everything is timed.
        warm_up: rounds before, which do not count.
        calls: how often a function is called in a row and timed as one.
        seed: of the order within the rounds.
        clock: tells seconds.
        ready: called before each function, which is not timed.
    """
    order, names = random.Random(seed), list(functions)
    times: dict[str, list[float]] = {name: [] for name in names}
    with collector_off():
        for number in range(warm_up + rounds):
            order.shuffle(names)
            for name in names:
                function = functions[name]
                ready()
                started = clock()
                for _ in range(calls):
                    function()
                took = clock() - started
                if number >= warm_up:
                    times[name].append(took / calls)
            gc.collect(0)
    return times


@contextmanager
def collector_off() -> Iterable[None]:
    """Keep the garbage collector from running by itself."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


# ------------------------------------------------------------------ running and reporting


def settle(
    module: str,
    further: Mapping[str, str] | None = None,
    surroundings: Mapping[str, str] = SURROUNDINGS,
) -> None:
    """Start a benchmark anew on one BLAS thread and with an allocator that keeps freed memory.

    What the environment says already stays as it is.

    Args:
        module: the benchmark.
        further: variables to set besides.
        surroundings: what is set otherwise.
    """
    wanted = {**surroundings, **(further or {})}
    if not wanted.keys() <= os.environ.keys():
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, {**wanted, **os.environ})


def conditions() -> str:
    """Return machine, versions and date in one line."""
    threads = os.environ.get(THREADS, "as many as BLAS wants")
    return (
        f"{date.today()} · {platform.machine()}, {os.cpu_count()} cores, BLAS threads: {threads} · "
        f"Python {platform.python_version()}, NumPy {version('numpy')}"
    )


def report(title: str, times: Mapping[str, Sequence[float]], limits: Sequence[Limit]) -> int:
    """Print times and verdicts; return 0 if every limit is met, else 1."""
    print(f"{title}\n{conditions()}")
    for name, samples in times.items():
        in_ms = estimate([1e3 * sample for sample in samples])
        print(f"  {name:<28} {in_ms} ms, best {1e3 * min(samples):.3f} ms, {len(samples)} rounds")
    for limit in limits:
        print(f"  {limit}")
    return int(not all(limit.is_met for limit in limits))
