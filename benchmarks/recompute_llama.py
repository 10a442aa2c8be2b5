"""A Llama in a pipeline, with ZeRO 3 and tensor parallelism, trained within a memory budget.

Sixteen layers run on two stages of four devices, of which two share the batch and what rests, and two
the heads and hidden units. By hand a step, AdamW included, computes every layer again
(`recompute_llama_torch`, `recompute_llama_jax`), and what its fullest device holds is the budget that
Mithril gets: there it may hold no more, and take at most 0.9 times as long. Without a budget it
exceeds it. Where it is measured to hold more than was predicted, and more than it may, it is planned
once more with a budget that is less by the difference, as a user would do. Where the least that Mithril can do is more than the budget, it gets what its own
`checkpointing="all"` holds, and the limit says by how much that is too much. How long Mithril's own
"all" takes is told beside. `--budget` asks for a fraction of what keeping everything takes instead,
without anything by hand.

Memory is counted as in `prediction_memory`: on PyTorch what the allocator of each rank gave, with
what it held before; on JAX the buffers that are alive on a device, and results and temporaries of the
program that it runs. PyTorch runs as a job of eight ranks, JAX on eight devices of one process. The
allocator keeps blocks that are freed: to take those of everything kept from the system anew in each
step, half a million pages, is slower than to compute every layer again.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes
from mithril.units import format_bytes

from benchmarks.harness import BLOCKS_KEPT, Estimate, Limit, interleave, ratio, report, settle
from benchmarks.sides import Functions, Times
from benchmarks.training_cases import CHECKED, KEY_HEADS, Case, Ours
from tests.tolerances import TOLERANCE

MESH = ml.Mesh(pipeline=2, data=2, tensor=2)
VOCABULARY = 512
TIME_LIMIT = 0.9
KEEPING, AGAIN, BUDGET = "everything kept", "every layer again", "budget"
HAND = "by hand"
"""What the names of sides by hand begin with; the rest says which one it is."""
PEAK, ALLOWED = "peak bytes of ", "bytes allowed to "
"""What the names of counts of memory begin with, among times."""


@dataclass(frozen=True, eq=False)
class ByHand:
    """A side by hand.

    Args:
        step: makes a step; on several ranks it ends when this one has ended.
        loss: makes a step, and returns its loss.
        peak: measures the most bytes that a device holds during a step.
    """

    step: Callable[[], object]
    loss: Callable[[], float]
    peak: Callable[[], int]


@dataclass(frozen=True, eq=False)
class Framework:
    """How sides run on a framework.

    Args:
        backend: of eight devices.
        measure: makes Mithril's side, and returns it and the most bytes that a device holds during
            a step.
        list_by_hand: returns by name what makes the sides by hand, from the case, its parameters,
            the mesh, and the samples of a device in a micro-batch.
        end: waits until all devices have ended a step.
    """

    backend: ml.Backend
    measure: Callable[[Callable[[], Ours]], tuple[Ours, int]]
    list_by_hand: Callable[
        [Case, Mapping[str, np.ndarray], ml.Mesh, int], dict[str, Callable[[], ByHand]]
    ]
    end: Callable[[Any], object]


def read_case(given: argparse.Namespace) -> Case:
    """Return the Llama; its hidden layer is three times as wide as the rest."""
    width = given.width
    sizes = Sizes(given.layers, width, 4, 3 * width, given.context, given.batch)
    return Case(sizes, VOCABULARY, KEY_HEADS)


class Contest:
    """The sides, which are made one after another, each with the same first losses.

    Args:
        frame: where they run.
        given: the model, the budget, and how often a step is timed.
    """

    def __init__(self, frame: Framework, given: argparse.Namespace) -> None:
        self.steps: Functions = {}
        self.peaks: dict[str, int] = {}
        self.planned: dict[str, int] = {}
        self.start: dict[str, np.ndarray] = {}
        self._frame, self._given, self._case = frame, given, read_case(given)
        self._losses: list[float] = []

    def add(self, name: str, asked: object) -> None:
        """Plan Mithril's side, and measure it.

        Raises:
            PlanError: what is asked for cannot be kept to.
        """
        started = time.perf_counter()

        def make() -> Ours:
            pipeline = ml.PipelineOptions(microbatch_size=self._given.microbatch)
            ours = Ours(self._frame.backend, self._case, 3, pipeline=pipeline, checkpointing=asked)
            self.start = self.start or ours.parameters()
            self._check(name, ours.loss)
            return ours

        side, self.peaks[name] = self._frame.measure(make)
        self.steps[name] = self._ended(side.step, side)
        self.planned[name] = side.run.plan.memory().peak
        found = f"{format_bytes(self.peaks[name])}, predicted {format_bytes(self.planned[name])}"
        self.tell(f"{name}: {found}", started)

    def ask_for_less(self, name: str, allowed: int) -> None:
        """Plan a budget once more, less by what is measured beyond the prediction, if it is broken.

        What that refuses stays as it was planned first.
        """
        started, more = time.perf_counter(), self.peaks[name] - self.planned[name]
        if more <= 0 or self.peaks[name] <= allowed:
            return
        try:
            self.add(name, f"{allowed - more} B")
        except ml.PlanError as refused:
            self.tell(str(refused), started)

    def add_by_hand(self) -> list[str]:
        """Make the sides by hand that are asked for, measure them, and return their names."""
        case, mesh = self._case, self._frame.backend.mesh
        ways = self._frame.list_by_hand(case, self.start, mesh, self._given.microbatch)
        chosen = {name: make for name, make in ways.items() if self._given.by_hand in name}
        for name, make in chosen.items():
            started, side = time.perf_counter(), make()
            self._check(name, side.loss)
            self.peaks[name] = side.peak()
            self.steps[name] = self._ended(side.step, side)
            self.tell(f"{name}: {format_bytes(self.peaks[name])}", started)
        return [*chosen]

    def _check(self, name: str, loss: Callable[[], float]) -> None:
        """Refuse a side whose first losses are not those of the first one."""
        losses = [loss() for _ in range(CHECKED)]
        self._losses = self._losses or losses
        np.testing.assert_allclose(losses, self._losses, *TOLERANCE["float32"], err_msg=name)

    def _ended(self, step: Callable[[], object], side: object) -> Callable[[], object]:
        def run() -> None:
            step()
            self._frame.end(side)

        return run

    def tell(self, what: str, started: float) -> None:
        """Print what was found, once for all ranks, and since when it took."""
        if self._frame.backend.engine.process_index == 0:
            took = time.perf_counter() - started
            print(f"  {what}; {took:.0f} s to make and measure it", flush=True)


def compare(frame: Framework, given: argparse.Namespace) -> Times:
    """Return times of a step, peaks, and budgets."""
    contest = Contest(frame, given)
    contest.add(KEEPING, None)
    contest.add(AGAIN, "all")
    allowed: dict[str, int] = {}
    if given.budget is None:
        for name in contest.add_by_hand():
            budget, started = budget_beside(name), time.perf_counter()
            allowed[budget] = contest.peaks[name]
            try:
                contest.add(budget, f"{allowed[budget]} B")
            except ml.PlanError as refused:
                contest.tell(str(refused), started)
                allowed[budget] = max(contest.peaks[AGAIN], contest.planned[AGAIN])
                contest.add(budget, f"{allowed[budget]} B")
            contest.ask_for_less(budget, allowed[budget])
    else:
        allowed[BUDGET] = int(given.budget * contest.peaks[KEEPING])
        contest.add(BUDGET, f"{allowed[BUDGET]} B")
    times = interleave(contest.steps, given.rounds, warm_up=1)
    counts: Times = {PEAK + name: [size] for name, size in contest.peaks.items()}
    return times | counts | {ALLOWED + name: [size] for name, size in allowed.items()}


def budget_beside(name: str) -> str:
    """Return what Mithril's side is called that may hold what a side by hand holds."""
    return BUDGET + name.removeprefix(HAND)


def limits(found: Times) -> list[Limit]:
    """Return the limits on what is held within budgets, and on the time that it takes."""

    def exactly(what: str, share: float) -> Limit:
        return Limit(what, Estimate(share, share, share), 1.0)

    made: list[Limit] = []
    for name in (n for n in found if n.startswith(BUDGET)):
        allowed, held = found[ALLOWED + name][0], found[PEAK + name][0]
        without = found[PEAK + KEEPING][0]
        made.append(exactly(f"measured peak to {name}", held / allowed))
        made.append(exactly(f"{name} to the peak without", allowed / without))
        for hand in (n for n in found if n.startswith(HAND) and budget_beside(n) == name):
            made.append(exactly(f"peak of {name} to {hand}", held / found[PEAK + hand][0]))
            made.append(Limit(f"time of {name} to {hand}", ratio(found, name, hand), TIME_LIMIT))
    return made


# ------------------------------------------------------------------ frameworks


def run_rank(given: argparse.Namespace) -> int:
    """Compare on a rank of a job, and leave what was found."""
    import torch

    from benchmarks.recompute_llama_torch import open_torch
    from benchmarks.torch_sides import hand_in

    frame = open_torch(MESH)  # which starts the group of processes
    torch.set_num_threads(1)
    hand_in(compare(frame, given), given.times)
    return 0


def on_torch(given: argparse.Namespace) -> Times:
    """Return what rank 0 of a job of eight finds."""
    from benchmarks.torch_sides import in_job

    return in_job("benchmarks.recompute_llama", MESH.size, sys.argv[1:])


def on_jax(given: argparse.Namespace) -> Times:
    """Return what is found on eight devices of this process."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from benchmarks.recompute_llama_jax import open_jax

    return compare(open_jax(MESH), given)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--budget", type=float, help="fraction of what keeping everything takes")
    parser.add_argument("--by-hand", default="", help="part of the names of sides by hand")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--microbatch", type=int, default=2, help="samples of each data shard")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    settle("benchmarks.recompute_llama", BLOCKS_KEPT)
    if given.times:
        return run_rank(given)
    print(f"{read_case(given)}, zero 3, on {MESH}, {given.backend}")
    found = on_torch(given) if given.backend == "torch" else on_jax(given)
    counts = (PEAK, ALLOWED)
    for name, (size,) in ((n, x) for n, x in found.items() if n.startswith(counts)):
        print(f"  {name:<60} {size / 2**20:8.1f} MiB")
    times = {name: x for name, x in found.items() if not name.startswith(counts)}
    for name in (n for n in times if n != AGAIN):
        print(f"  time of {name} to {AGAIN}: {ratio(times, name, AGAIN)}")
    return report("recomputation in a pipeline", times, limits(found))


if __name__ == "__main__":
    sys.exit(main())
