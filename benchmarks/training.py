"""A whole step of training, AdamW included, against the strongest way to write it by hand.

The model is a GPT, or a Llama with grouped key heads. PyTorch on one rank: eager autograd and
`torch.optim.AdamW(fused=True)`, and the same under `torch.compile`. On 2 or 4: the same in
`DistributedDataParallel`; `fully_shard` (FSDP2) against ZeRO's stage 3, in time and in peak memory,
counted as in `prediction_memory`; `ZeroRedundancyOptimizer` with DDP against stage 1. JAX:
`jax.value_and_grad` and `optax.adamw` in one donated `jax.jit`, on one device, or on eight under
GSPMD. MLX: `mlx.optimizers.AdamW` and the gradients under one `mx.compile`. Losses of the first steps
are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import sys

from benchmarks.harness import BLOCKS_KEPT, Estimate, Limit, interleave, ratio, report, settle
from benchmarks.sides import SIZES, Times
from benchmarks.training_cases import LLAMAS, WIDTHS, Case, case_of

LIMITS = {
    ("mithril", "eager, fused AdamW"): 1.0,
    ("mithril", "torch.compile, fused AdamW"): 1.0,
    ("mithril", "optax, donated"): 1.0,
    ("mithril, data 4 x tensor 2", "GSPMD, optax, donated"): 0.95,
    ("mithril", "mlx.optimizers, mx.compile"): 0.95,
    ("mithril, data", "DDP, fused AdamW"): 0.9,
    ("mithril, zero 3", "FSDP2, fused AdamW"): 0.8,
    ("mithril, zero 1", "DDP, ZeroRedundancyOptimizer"): 0.9,
}
PEAK_LIMIT = 1.0
WARM_UP = 5


def limits(times: Times, peaks: Times) -> list[Limit]:
    """Return the limits on the contestants: of times, and of peak bytes."""
    found = [
        Limit(f"{of} to {to}", ratio(times, of, to), limit)
        for (of, to), limit in LIMITS.items()
        if {of, to} <= times.keys()
    ]
    if peaks:
        to, of = peaks
        share = peaks[of][0] / peaks[to][0]
        what = f"{of} ({peaks[of][0]:,.0f}) to {to} ({peaks[to][0]:,.0f})"
        found.append(Limit(what, Estimate(share, share, share), PEAK_LIMIT))
    return found


def read_case(given: argparse.Namespace) -> Case:
    """Return what is trained."""
    devices = max(given.ranks, given.devices)
    return case_of(given.model, given.width, devices, given.seed, given.batch)


def in_job(given: argparse.Namespace) -> Times:
    """Return the times, and peaks, that rank 0 of a job takes."""
    from benchmarks.torch_sides import in_job as run_job

    passed = ["--ranks", given.ranks, "--model", given.model, "--width", given.width]
    passed += ["--rounds", given.rounds, "--seed", given.seed]
    passed += [] if given.batch is None else ["--batch", given.batch]
    return run_job("benchmarks.training", given.ranks, [*map(str, passed)])


def run_rank(given: argparse.Namespace) -> int:
    """Take the times of a rank of a job, and leave them."""
    from benchmarks.torch_sides import hand_in, together
    from benchmarks.training_torch import spread

    case = read_case(given)
    functions, peaks = spread(case, given.ranks)
    times = interleave(functions, given.rounds, WARM_UP, ready=together)
    hand_in({**times, **peaks}, given.times)
    return 0


def take_times(given: argparse.Namespace) -> Times:
    """Return the times of all sides, and peaks."""
    case = read_case(given)
    if given.backend == "jax":
        from benchmarks import training_jax

        functions = training_jax.contestants(case, given.devices)
    elif given.backend == "mlx":
        from benchmarks import training_mlx

        functions = training_mlx.contestants(case)
    elif given.ranks == 1:
        from benchmarks import training_torch

        functions = training_torch.alone(case)
    else:
        return in_job(given)
    return interleave(functions, given.rounds, WARM_UP)


def read() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax", "mlx"), default="torch")
    parser.add_argument("--model", choices=("gpt", "llama"), default="gpt")
    parser.add_argument("--ranks", type=int, choices=(1, 2, 4), default=1, help="of PyTorch")
    parser.add_argument("--devices", type=int, choices=(1, 8), default=1, help="of JAX")
    parser.add_argument("--width", choices=WIDTHS, help="by default 256 for gpt, 384 for llama")
    parser.add_argument("--batch", type=int, help="samples, instead of what the width has")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and data")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    widths = SIZES if given.model == "gpt" else LLAMAS
    given.width = given.width or next(iter(widths))
    if given.width not in widths:
        parser.error(f"--model {given.model} has widths {', '.join(widths)}")
    if given.ranks > 1 and given.backend != "torch":
        parser.error("--ranks is for --backend torch")
    if given.devices > 1 and given.backend != "jax":
        parser.error("--devices is for --backend jax")
    return given


def main() -> int:
    given = read()
    settle("benchmarks.training", BLOCKS_KEPT)
    if given.times:
        return run_rank(given)
    found = take_times(given)
    times = {name: samples for name, samples in found.items() if not name.startswith("peak bytes")}
    peaks = {name: samples for name, samples in found.items() if name not in times}
    case = read_case(given)
    title = f"step of {case}, {given.backend}, {given.ranks} ranks, {given.devices} devices"
    return report(title, times, limits(times, peaks))


if __name__ == "__main__":
    sys.exit(main())
