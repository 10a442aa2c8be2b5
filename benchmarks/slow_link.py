"""A step of training behind a link of limited speed, against PyTorch's ways to spread it over ranks.

The model is a GPT, trained with AdamW on 2 or 4 ranks whose loopback passes a token bucket
(`network.py`). `DistributedDataParallel` with its own size of buckets and with 1, 2, 5 and 25 MiB;
with `fp16_compress_hook`, and with `powerSGD_hook`; FSDP2 with blocks gathered ahead. Mithril has the
profile of the machine with the speed of the link, and chooses by itself (`zero="auto"`), whether one
sum of gradients or parts that are scattered and gathered, which are as many bytes; the same with
stages, sizes of buckets and orders of its own, for what is chosen to be held against; what each of
them is predicted to gain stands beside what it gains.

Losses of the first steps are compared before anything is timed. What is hidden of communication is
the time of a step without communication, and of the collectives by themselves, less that of the
step. More than the collectives cannot be, nor more than what is computed from the first that is sent
to the last gradient, so it is held against the lesser of the two.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from statistics import median

from benchmarks.harness import (
    BLOCKS_KEPT,
    Estimate,
    Limit,
    estimate,
    interleave,
    ratio,
    report,
    settle,
)
from benchmarks.network import limit
from benchmarks.sides import SIZES, Times
from benchmarks.training_cases import Case, case_of

OURS = "mithril"
OWN = f"{OURS}, "
"""What the names of Mithril's other strategies begin with."""
DDP = "DDP"
LIMITS = {
    ("mithril, zero 3", "FSDP2"): 0.95,
    ("mithril, zero 3, direct", "FSDP2"): 0.95,
    ("mithril, fp16", "DDP, fp16 hook"): 0.95,
    ("mithril, powersgd", "DDP, powerSGD hook"): 1.0,
}
OF_DDP, OF_BEST, HIDDEN, OF_GAINS = 0.95, 1.05, 0.7, 0.25
PREDICTED = "predicted "
"""What the names of predictions begin with, among times."""
BESIDE = "share of computing"
"""From what is sent first to the last gradient."""
APART = ("computing alone", "collectives alone")
"""What a step is made of."""
OTHERS = ("zero 3", "zero 3, direct", "fp16", "powersgd")
WARM_UP = 2


def limits(times: Times, rate: str | None, beside: float = 1.0) -> list[Limit]:
    """Return the limits on ratios of times, and on what is hidden of communication.

    Args:
        times: of all sides.
        rate: of the link.
        beside: the share of computing that communication can go on beside.
    """
    peers = [name for name in times if name.startswith(DDP) and "hook" not in name]
    found = [Limit(f"{OURS} to {peer}", ratio(times, OURS, peer), OF_DDP) for peer in peers]
    for (of, to), most in LIMITS.items():
        if {of, to} <= times.keys():
            found.append(Limit(f"{of} to {to}", ratio(times, of, to), most))
    own = [n for n in times if n.startswith(OWN) and n.removeprefix(OWN) not in OTHERS]
    if own:
        best = min(own, key=lambda name: median(times[name]))
        to_best = ratio(times, OURS, best)
        found.append(
            Limit(f"{OURS} to the best of its own, {best}", to_best, OF_BEST, is_strict=True)
        )
    if rate is not None and set(APART) <= times.keys():
        shown = measure_shown(times, beside)
        found.append(Limit("communication that could be hidden and is not", shown, 1 - HIDDEN))
    return found


def measure_shown(times: Times, beside: float) -> Estimate:
    """Return the part that is not hidden of the communication that computing could hide."""
    samples = zip(times[OURS], *(times[name] for name in APART), strict=True)
    return estimate(
        [
            1 - (computing + sending - step) / min(beside * computing, sending)
            for step, computing, sending in samples
        ]
    )


def limit_gains(times: Times, predicted: Mapping[str, float]) -> list[Limit]:
    """Return the limit on how far predicted gains are off, and print them beside the measured."""
    errors = []
    for name in (name for name in predicted if name != OURS):
        gain = median(times[name]) / median(times[OURS])
        said = predicted[name] / predicted[OURS]
        errors.append(abs(said / gain - 1))
        print(f"  {name}: {gain:.3f} of {OURS}'s time, predicted {said:.3f}")
    if not errors:
        return []
    return [Limit("errors of predicted gains (median)", estimate(errors), OF_GAINS)]


def read_case(given: argparse.Namespace) -> Case:
    """Return what is trained."""
    return case_of("gpt", given.width, given.ranks, given.seed, given.batch)


def run_rank(given: argparse.Namespace) -> int:
    """Take the times of a rank of a job, and leave them."""
    from benchmarks.slow_link_torch import contestants
    from benchmarks.torch_sides import hand_in, together

    functions, predicted = contestants(
        read_case(given), given.ranks, given.rate, given.sides, given.hardware
    )
    times = interleave(functions, given.rounds, WARM_UP, ready=together)
    hand_in({**times, **predicted}, given.times)
    return 0


def in_job(given: argparse.Namespace) -> Times:
    """Return the times that rank 0 of a job behind a link takes."""
    from benchmarks.torch_sides import in_job as run_job

    passed = ["--ranks", given.ranks, "--width", given.width, "--rounds", given.rounds]
    passed += ["--seed", given.seed, "--sides", *given.sides]
    passed += [] if given.batch is None else ["--batch", given.batch]
    passed += [] if given.hardware is None else ["--hardware", given.hardware]
    passed += [] if given.rate is None else ["--rate", given.rate]
    with limit(given.rate) as inside:
        return run_job("benchmarks.slow_link", given.ranks, [*map(str, passed)], inside)


SIDES = ("ddp", "own", "fp16", "powersgd", "fsdp", "hidden")


def read() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", help="of the link, such as 200mbit or 1gbit; none without")
    parser.add_argument("--hardware", help="a profile of `mithril calibrate --out`, for all ranks")
    parser.add_argument("--ranks", type=int, choices=(2, 4), default=2)
    parser.add_argument("--width", choices=SIZES, default="256")
    parser.add_argument("--batch", type=int, help="samples, instead of what the width has")
    parser.add_argument("--seed", type=int, default=0, help="of parameters and data")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="by default all that run")
    parser.add_argument("--times", help=argparse.SUPPRESS)  # where a rank of a job leaves them
    given = parser.parse_args()
    # On four ranks the hook fails over Gloo: its callbacks issue sums in an order of each rank.
    runs = SIDES if given.ranks == 2 else tuple(side for side in SIDES if side != "powersgd")
    given.sides = given.sides or runs
    return given


def main() -> int:
    given = read()
    settle("benchmarks.slow_link", BLOCKS_KEPT)
    if given.times:
        return run_rank(given)
    found = in_job(given)
    times = {name: samples for name, samples in found.items() if not name.startswith(PREDICTED)}
    predicted = {
        name.removeprefix(PREDICTED): seconds
        for name, (seconds, *_) in found.items()
        if name not in times
    }
    beside = predicted.pop(BESIDE, 1.0)
    title = f"step of {read_case(given)}, {given.ranks} ranks, link {given.rate or 'not limited'}"
    return report(
        title, times, [*limits(times, given.rate, beside), *limit_gains(times, predicted)]
    )


if __name__ == "__main__":
    sys.exit(main())
