"""Peak memory and time of a deep GPT under memory budgets, beside checkpoints placed by hand.

Mithril keeps everything, recomputes every layer (`all`), what costs next to nothing (`selective`),
or keeps to a fraction of what keeping everything takes. By hand, some of the blocks are checkpoints:
the first ones, whose activations would be held the longest. On PyTorch that is
`torch.utils.checkpoint`, which computes the whole block again, or saves products and attention
(`create_selective_checkpoint_contexts`); on JAX `jax.checkpoint` with one of its policies. So many
blocks are checkpoints that the peak comes nearest to Mithril's from above and from below; between
the two, time goes with the peak. At Mithril's peak it may not be more than 3 % slower than that, and
at its time not take more than 3 % more memory.

On PyTorch memory is what its allocator gave at most while a step ran, and what was held before; on
JAX arguments, results and temporaries of `memory_analysis()`. All sides run interleaved, after a
check that they give the same numbers. A budget that no choice keeps to is named and left out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, with_loss
from mithril.errors import PlanError

from benchmarks.harness import Estimate, Limit, estimate, interleave, report, settle
from benchmarks.sides import Times, data_of

POLICIES = {"none": None, "all": "all", "selective": "selective",
            "0.8": 0.8, "0.6": 0.6, "0.4": 0.4, "0.3": 0.3}  # fmt: skip
SLACK = 1.03
VOCABULARY = 512
OURS = "mithril"


@dataclass(frozen=True, eq=False)
class Side:
    """A way to run a step.

    Args:
        step: runs it, and waits.
        peak: returns the most bytes that are held while it runs.
        found: returns loss and gradients by name.
    """

    step: Callable[[], object]
    peak: Callable[[], int]
    found: Callable[[], tuple[float, dict[str, np.ndarray]]]


@dataclass(frozen=True, eq=False)
class Family:
    """A way to recompute by hand.

    Args:
        name: what it is called.
        make: returns the side that computes so many of the blocks again.
        blocks: how many there are.
    """

    name: str
    make: Callable[[int], Side]
    blocks: int
    _sides: dict[int, Side] = field(default_factory=dict)
    _peaks: dict[int, int] = field(default_factory=dict)

    def side(self, count: int) -> Side:
        """Return the side that computes so many blocks again."""
        if count not in self._sides:
            self._sides[count] = self.make(count)
        return self._sides[count]

    def peak(self, count: int) -> int:
        """Return the most bytes that are held where so many blocks are computed again."""
        if count not in self._peaks:
            self._peaks[count] = self.side(count).peak()
        return self._peaks[count]

    def surround(self, size: int) -> tuple[int, int]:
        """Return the most blocks with which it holds more than that, and the fewest with less.

        If no number of blocks does, both are the nearest.
        """
        few, many = 0, self.blocks
        if self.peak(few) <= size:
            return few, few
        if self.peak(many) > size:
            return many, many
        while many - few > 1:
            share = (self.peak(few) - size) / (self.peak(few) - self.peak(many))
            guess = min(max(few + round(share * (many - few)), few + 1), many - 1)
            if self.peak(guess) > size:
                few = guess
            else:
                many = guess
        return few, many

    def title(self, count: int) -> str:
        """Return what a side is called."""
        return f"{self.name}, {count} of {self.blocks}"


# ------------------------------------------------------------------ Mithril


def compile_side(sizes: Sizes, backend: ml.Backend, asked: object) -> Any:
    """Return a model compiled with what is asked of its memory, parameters and inputs."""
    inputs = {name: backend.array(x) for name, x in data_of(sizes, VOCABULARY).items()}
    model = with_loss(gpt(VOCABULARY, sizes))
    compiled = ml.compile(model, backend, shapes=inputs, checkpointing=asked)
    return compiled, compiled.randomize_params(0), inputs


def found_by(outputs: Any, gradients: Any) -> tuple[float, dict[str, np.ndarray]]:
    """Return loss and gradients as the other sides name them."""
    named = {name.removeprefix("gpt."): x.numpy() for name, x in gradients.items()}
    return float(outputs["loss"].numpy()), named


# ------------------------------------------------------------------ comparing


def check_same(sides: Mapping[str, Side]) -> None:
    """Refuse sides that give different numbers."""
    (loss, slopes), *others = (side.found() for side in sides.values())
    for name, (other, found) in zip(list(sides)[1:], others, strict=True):
        np.testing.assert_allclose(other, loss, rtol=1e-5, err_msg=name)
        assert found.keys() == slopes.keys(), name
        for key, slope in slopes.items():
            np.testing.assert_allclose(found[key], slope, rtol=2e-4, atol=2e-5, err_msg=key)


def compare(ours: Side, families: Sequence[Family], rounds: int) -> tuple[Times, list[Limit]]:
    """Print peaks; return times of all sides and the limits on Mithril's.

    Args:
        ours: Mithril's side.
        families: the ways by hand.
        rounds: how often a step is timed.
    """
    size = ours.peak()
    sides = {OURS: ours}
    near = {family.name: family.surround(size) for family in families}
    for family in families:
        for count in sorted({0, *near[family.name], family.blocks}):
            sides[family.title(count)] = family.side(count)
    check_same(sides)
    print(f"  {OURS:<46} {size / 2**20:9.1f} MiB")
    for family in families:
        for count in sorted({0, *near[family.name], family.blocks}):
            print(f"  {family.title(count):<46} {family.peak(count) / 2**20:9.1f} MiB")
    times = interleave({name: side.step for name, side in sides.items()}, rounds, warm_up=1)
    limits = []
    for family in families:
        limits += _limit(family, near[family.name], size, times)
    return times, limits


def _limit(family: Family, near: tuple[int, int], size: int, times: Times) -> list[Limit]:
    """Return the limits that a way by hand sets."""
    few, many = near
    limits = []
    if family.peak(many) <= size:
        least, most = family.peak(many), family.peak(few)
        share = (size - least) / (most - least) if most > least else 0.0
        slow, fast = times[family.title(many)], times[family.title(few)]
        expected = [share * a + (1 - share) * b for a, b in zip(fast, slow, strict=True)]
        ratios = [a / b for a, b in zip(times[OURS], expected, strict=True)]
        limits.append(Limit(f"time at the peak of {family.name}", estimate(ratios), SLACK))
    else:
        print(f"  {family.name} cannot keep to {size / 2**20:.1f} MiB")
    counts = sorted({0, few, many, family.blocks})
    medians = [statistics.median(times[family.title(count)]) for count in counts]
    taken = np.maximum.accumulate(medians)  # more blocks take no less time, but for noise
    at = np.interp(statistics.median(times[OURS]), taken, [family.peak(n) for n in counts])
    part = float(size / at)
    limits.append(Limit(f"peak at the time of {family.name}", Estimate(part, part, part), SLACK))
    return limits


def run_policy(given: argparse.Namespace, name: str, sizes: Sizes, sides: Any) -> int:
    """Compare one policy; return 0 if its limits are met."""
    print(f"{OURS}, {name}", flush=True)
    try:
        ours = sides.make_ours(sizes, POLICIES[name])
    except PlanError as error:
        print(f"  {error}")
        return 0
    _, params, _ = compile_side(sizes, ml.NumpyBackend(), None)
    plain = {name.removeprefix("gpt."): x.numpy() for name, x in params.items()}
    return report(name, *compare(ours, sides.list_families(sizes, plain), given.rounds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax"), default="torch")
    parser.add_argument("--policy", choices=POLICIES, nargs="*", default=list(POLICIES))
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    settle("benchmarks.recompute")
    heads = max(given.width // 64, 1)
    sizes = Sizes(given.layers, given.width, heads, 4 * given.width, given.context, given.batch)
    if given.backend == "torch":
        from benchmarks import recompute_torch as sides
    else:
        from benchmarks import recompute_jax as sides
    print(f"GPT {sizes}, vocabulary {VOCABULARY}, forward and backward on {given.backend}")
    return max(run_policy(given, name, sizes, sides) for name in given.policy)


if __name__ == "__main__":
    sys.exit(main())
