"""Measure rows of the matrix within a time budget, and print them, the worst first.

    python -m benchmarks.matrix --seed 7 --budget 10min
    python -m benchmarks.matrix --seed 7 --budget 5min --backend jax --model llama --list
    python -m benchmarks.matrix --backend torch --model vit --kind step --sizes width=384,layers=6

Every row runs in a process of its own, on PyTorch in a job of as many as it has devices. The seed says
which rows come first, and what sizes they have. Ratios are Mithril's time, peak memory and time of the
first call, planning included, to those of the strongest by hand; a row fails when it is more than 10 %
slower and its 90 % interval begins above 5 %, or takes more than 5 % more memory, or does not run, sides
that differ included. The median over the rows of a backend may be 0.95. Where one of these fails the
exit code is 1.
"""

from __future__ import annotations

import argparse
import ctypes.util
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harness import (
    BLOCKS_KEPT,
    SURROUNDINGS,
    Estimate,
    Limit,
    conditions,
    estimate,
    ratio,
)
from benchmarks.matrix.cases import BACKENDS, FAMILIES, MESHES, Row, list_rows, order_rows
from benchmarks.matrix.contest import FIRST, MITHRIL, PEAK
from benchmarks.sides import Times, times_of_job

MODULE = "benchmarks.matrix.row"
SLOWEST, SURELY, LARGEST, MIDDLE = 1.10, 1.05, 1.05, 0.95
UNITS = {"s": 1, "min": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Found:
    """What a row has shown.

    Args:
        row: which one.
        peer: the strongest by hand.
        time: Mithril's time to the peer's.
        milliseconds: of both.
        peak: Mithril's peak memory to the peer's; None where nobody tells.
        first: seconds of both for planning and the first call.
    """

    row: Row
    peer: str
    time: Estimate
    milliseconds: tuple[float, float]
    peak: float | None
    first: tuple[float, float]

    @property
    def is_met(self) -> bool:
        """Whether the row is within its limits."""
        is_slow = self.time.median > SLOWEST and self.time.low > SURELY
        return not is_slow and (self.peak is None or self.peak <= LARGEST)

    def __str__(self) -> str:
        (ours, theirs), first = self.milliseconds, "{:.2f} s, {:.2f} s".format(*self.first)
        memory = "not told" if self.peak is None else f"{self.peak:.3f}"
        verdict = "" if self.is_met else "  NOT MET"
        return (
            f"{self.time}  {ours:7.1f} ms, {theirs:7.1f} ms  memory {memory}  "
            f"first call {first}  {self.row}; {self.peer}{verdict}"
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that did not run.

    Args:
        row: which one.
        reason: the last that its process said.
    """

    row: Row
    reason: str

    def __str__(self) -> str:
        return f"FAILED  {self.row}: {self.reason}"


def judge(row: Row, times: Times) -> Found:
    """Return what the times of a row say."""
    (peer,) = (n for n in times if n != MITHRIL and not n.startswith((FIRST, PEAK)))
    ours, theirs = (1e3 * statistics.median(times[name]) for name in (MITHRIL, peer))
    is_told = PEAK + peer in times
    peak = times[PEAK + MITHRIL][0] / times[PEAK + peer][0] if is_told else None
    first = (times[FIRST + MITHRIL][0], times[FIRST + peer][0])
    return Found(row, peer, ratio(times, MITHRIL, peer), (ours, theirs), peak, first)


# ------------------------------------------------------------------ processes


def environment_of(row: Row) -> dict[str, str]:
    """Return what the process of a row is told besides; what the environment says stays."""
    wanted = {**SURROUNDINGS, **BLOCKS_KEPT}
    if row.backend == "jax" and row.ranks > 1:
        wanted["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={row.ranks}"
    if row.backend == "mlx" and sys.platform == "linux":
        # The BLAS that MLX brings along takes so long that little else is measured.
        found = ctypes.util.find_library("openblas")
        wanted |= {"LD_PRELOAD": found} if found else {}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def run_row(row: Row, seconds: float) -> Found | Failure:
    """Measure a row in processes of its own."""
    passed, more = [row.dump(), "--seconds", str(seconds)], environment_of(row)
    try:
        if row.backend == "torch" and row.ranks > 1:
            from benchmarks.torch_sides import in_job

            times = in_job(MODULE, row.ranks, passed, environment=more, is_quiet=True)
        else:
            times = times_of_job([sys.executable, "-m", MODULE, *passed], more, is_quiet=True)
    except subprocess.CalledProcessError as error:
        return Failure(row, read_reason(error.stderr or "", error.returncode))
    return judge(row, times)


def read_reason(said: str, code: int) -> str:
    """Return what tells best why a process failed: the first error that it names, else its last line.

    An assertion of NumPy says what differs in the lines below the name of the error.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    error = re.compile(r"\[rank\d+\]: (?!Traceback)[A-Za-z]|[\w.]*(Error|Exception)\b")
    first = next((i for i, line in enumerate(lines) if error.match(line)), len(lines) - 1)
    count = 4 if lines and lines[first].endswith(":") else 1
    return f"{' '.join(lines[first : first + count]) or 'it said nothing'} (exit code {code})"


# ------------------------------------------------------------------ the table


def measure_rows(rows: Iterable[Row], budget: float, seconds: float) -> list[Found | Failure]:
    """Measure rows until the budget of seconds is used up; one begun is finished."""
    ends, found = time.monotonic() + budget, []
    for row in rows:
        found.append(run_row(row, seconds))
        print(found[-1], file=sys.stderr, flush=True)
        if time.monotonic() > ends:
            break
    return found


def worst_first(found: Sequence[Found | Failure]) -> list[Found | Failure]:
    """Return failures, and then rows by their ratios of time."""
    failures = [x for x in found if isinstance(x, Failure)]
    rest = [x for x in found if isinstance(x, Found)]
    return [*failures, *sorted(rest, key=lambda x: -x.time.median)]


def limit_medians(found: Sequence[Found | Failure]) -> list[Limit]:
    """Return what the median ratio of time of each backend that has rows may be."""
    ratios = {
        backend: [x.time.median for x in found if isinstance(x, Found) and x.row.backend == backend]
        for backend in BACKENDS
    }
    return [Limit(f"median of {name}", estimate(x), MIDDLE) for name, x in ratios.items() if x]


def report(found: Sequence[Found | Failure], seed: int) -> int:
    """Print the table; return 0 if every limit is met, else 1."""
    print(f"matrix, seed {seed}, {len(found)} rows; {conditions()}")
    limits = limit_medians(found)
    print(*worst_first(found), *limits, sep="\n")
    is_met = all(isinstance(x, Found) and x.is_met for x in found)
    return int(not (found and is_met and all(limit.is_met for limit in limits)))


# ------------------------------------------------------------------ command line


def read_seconds(text: str) -> float:
    """Return the seconds of a span such as `90s`, `10min` or `1.5h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no span of time; write 90s, 10min or 1h")
    return float(found[1]) * UNITS[found[2]]


def read_sizes(text: str) -> dict[str, int]:
    """Return the sizes in a text such as `width=384,layers=6`."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name and value.isdecimal() and int(value) for name, _, value in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of sizes; write width=384,layers=6")
    return {name: int(value) for name, _, value in pairs}


def read() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.matrix", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, help="of rows and sizes; by default the clock's seconds"
    )
    parser.add_argument("--budget", type=read_seconds, default=600.0, help="10min by default")
    parser.add_argument("--backend", choices=BACKENDS, action="append", help="may be repeated")
    parser.add_argument("--model", choices=FAMILIES, action="append", help="may be repeated")
    parser.add_argument("--parallelism", choices=MESHES, action="append", help="may be repeated")
    parser.add_argument("--kind", choices=("forward", "step"), action="append")
    parser.add_argument(
        "--sizes", type=read_sizes, default={}, help="instead of drawn ones: width=384,layers=6"
    )
    parser.add_argument("--devices", type=int, default=0, help="of rows on more than one")
    parser.add_argument("--seconds", type=float, default=5.0, help="of the timed rounds of a row")
    parser.add_argument("--list", action="store_true", help="print the rows, in order, and end")
    given = parser.parse_args()
    given.seed = int(time.time()) if given.seed is None else given.seed
    return given


def choose(given: argparse.Namespace) -> list[Row]:
    """Return the rows that the command line asks for, in the seed's order."""
    wanted = {"backend": given.backend, "model": given.model,
              "parallelism": given.parallelism, "kind": given.kind}  # fmt: skip
    rows = [
        row for row in list_rows(given.seed)
        if all(names is None or getattr(row, what) in names for what, names in wanted.items())
    ]  # fmt: skip
    ordered = order_rows(rows, given.seed)
    return [row.alter(given.sizes, given.devices if row.ranks > 1 else 0) for row in ordered]


def main() -> int:
    given = read()
    try:
        rows = choose(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if given.list:
        print(*rows, sep="\n")
        return 0
    if not rows:
        print("nothing in the matrix is all of this; --list shows what there is", file=sys.stderr)
        return 2
    return report(measure_rows(rows, given.budget, given.seconds), given.seed)


if __name__ == "__main__":
    sys.exit(main())
