"""A Llama in a pipeline, with ZeRO 3 and tensor parallelism, trained within a memory budget.

Sixteen layers run on two stages of four devices, of which two share the batch and what rests, and two
the heads and hidden units. A step, AdamW included, keeps everything; computes every layer again; or
keeps to a budget, which is what the fullest device holds with every layer computed again, as it is
measured or as the plan predicts it, whichever is more; or a fraction of what it holds with everything
kept. What devices hold within the budget is measured and may not exceed it, as keeping everything
does; and at the peak of every layer computed again a step may take at most 0.9 times as long as that.

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
from collections.abc import Callable

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes
from mithril.units import format_bytes

from benchmarks.harness import BLOCKS_KEPT, Estimate, Limit, interleave, ratio, report, settle
from benchmarks.sides import Times
from benchmarks.training_cases import KEY_HEADS, Case, Ours
from tests.tolerances import TOLERANCE

MESH = ml.Mesh(pipeline=2, data=2, tensor=2)
VOCABULARY = 512
TIME_LIMIT = 0.9
KEEPING, AGAIN, BUDGET = "everything kept", "every layer again", "budget"
PEAK, ALLOWED, EVERY = "peak bytes of ", "bytes allowed", "bytes of every layer again"
"""What the names of counts of memory begin with, among times; the budget; and the usual one."""

Measure = Callable[[Callable[[], Ours]], tuple[Ours, int]]
"""Makes a side, and returns it and the most bytes that a device holds during a step."""


def read_case(given: argparse.Namespace) -> Case:
    """Return the Llama; its hidden layer is three times as wide as the rest."""
    width = given.width
    sizes = Sizes(given.layers, width, 4, 3 * width, given.context, given.batch)
    return Case(sizes, VOCABULARY, KEY_HEADS)


def measure_torch(make: Callable[[], Ours]) -> tuple[Ours, int]:
    """Return a side, and what the fullest rank of a job holds."""
    from benchmarks.training_torch import list_kept, peak_of

    ours = make()
    return ours, peak_of(ours.step, lambda: list_kept(ours))


def measure_jax(make: Callable[[], Ours]) -> tuple[Ours, int]:
    """Return a side, and what the fullest device of this process holds."""
    from benchmarks.prediction_memory import held_on, watch_jax

    before = {device: held_on(device) for device in MESH.flat}
    ours = make()
    ours.step()
    return ours, max(most - before[device] for device, most in watch_jax(ours.step).items())


def compare(
    backend: ml.Backend, given: argparse.Namespace, measure: Measure, end: Callable[[Ours], object]
) -> Times:
    """Return times of a step, peaks, and the budget.

    Args:
        backend: of eight devices.
        given: the model, the budget, and how often a step is timed.
        measure: makes a side, and counts what it holds.
        end: waits until all devices have ended a step.
    """
    case, pipeline = read_case(given), ml.PipelineOptions(microbatch_size=given.microbatch)
    sides: dict[str, Ours] = {}
    peaks: dict[str, int] = {}
    planned: dict[str, int] = {}

    def add(name: str, asked: object) -> None:
        started = time.perf_counter()
        sides[name], peaks[name] = measure(
            lambda: Ours(backend, case, 3, pipeline=pipeline, checkpointing=asked)
        )
        planned[name] = sides[name].run.plan.memory().peak
        if backend.engine.process_index == 0:
            took = time.perf_counter() - started
            print(f"  {name}: {format_bytes(peaks[name])}, predicted {format_bytes(planned[name])}; "
                  f"{took:.0f} s to plan and measure it", flush=True)  # fmt: skip

    add(KEEPING, None)
    add(AGAIN, "all")
    fraction = given.budget
    every = max(peaks[AGAIN], planned[AGAIN])
    allowed = every if fraction is None else int(fraction * peaks[KEEPING])
    add(BUDGET, f"{allowed} B")
    losses = [side.loss() for side in sides.values()]
    np.testing.assert_allclose(losses, losses[0], *TOLERANCE["float32"])

    def ended(side: Ours) -> Callable[[], object]:
        def step() -> None:
            side.step()
            end(side)

        return step

    times = interleave({n: ended(side) for n, side in sides.items()}, given.rounds, warm_up=1)
    counts = {**{PEAK + n: [size] for n, size in peaks.items()}, ALLOWED: [allowed]}
    return {**times, **counts, EVERY: [every]}


def limits(found: Times) -> list[Limit]:
    """Return the limits on what is held within the budget, and on the time that it takes."""
    (allowed,) = found[ALLOWED]
    share = found[PEAK + BUDGET][0] / allowed
    without = allowed / found[PEAK + KEEPING][0]
    made = [
        Limit("measured peak to the budget", Estimate(share, share, share), 1.0),
        Limit("budget to the peak without", Estimate(without, without, without), 1.0),
    ]
    if [allowed] == found[EVERY]:
        made.append(Limit(f"time to {AGAIN}", ratio(found, BUDGET, AGAIN), TIME_LIMIT))
    return made


# ------------------------------------------------------------------ frameworks


def on_torch(given: argparse.Namespace) -> Times:
    """Return what rank 0 of a job of eight finds."""
    from benchmarks.torch_sides import in_job

    return in_job("benchmarks.recompute_llama", MESH.size, sys.argv[1:])


def run_rank(given: argparse.Namespace) -> int:
    """Compare on a rank of a job, and leave what was found."""
    import torch

    from benchmarks.torch_sides import hand_in, together

    backend = ml.TorchBackend(MESH, device="cpu")  # which starts the group of processes
    torch.set_num_threads(1)
    found = compare(backend, given, measure_torch, lambda side: together())
    hand_in(found, given.times)
    return 0


def on_jax(given: argparse.Namespace) -> Times:
    """Return what is found on eight devices of this process."""
    import jax

    def end(side: Ours) -> None:
        jax.block_until_ready([x.shards for x in side.state.params.values()])

    return compare(ml.JaxBackend(MESH), given, measure_jax, end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--budget", type=float, help="fraction of what keeping everything takes")
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
    if given.backend == "jax":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    found = on_torch(given) if given.backend == "torch" else on_jax(given)
    for name, (size,) in ((n, x) for n, x in found.items() if n.startswith(PEAK) or n == ALLOWED):
        print(f"  {name:<40} {size / 2**20:8.1f} MiB")
    times = {name: found[name] for name in (KEEPING, AGAIN, BUDGET)}
    return report("recomputation in a pipeline", times, limits(found))


if __name__ == "__main__":
    sys.exit(main())
