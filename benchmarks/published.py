"""Published runs beside what is predicted for them: the share of the peak, and whether they fit.

The ten GPT models of Table 1 of Narayanan et al., "Efficient Large-Scale Language Model Training on
GPU Clusters Using Megatron-LM" (SC 2021, arXiv 2104.04473), from 1.7B parameters on 32 A100 to 1T on
3072, and the three runs of Llama 3 405B in Table 4 of "The Llama 3 Herd of Models" (2024, arXiv
2407.21783) on 8192 and 16384 H100. Each is planned, and its time and memory are read off the plan.
Constants are those of the profiles `a100-80gb` and `h100-sxm`, the same for all rows; nothing is
fitted to a row. Nothing runs.

    python -m benchmarks.published [name ...]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks.published_runs import Prediction, Run, runs

MEDIAN, WORST = 0.10, 0.20
"""What the relative error of utilisation may be at most, in the middle and anywhere."""
HEADER = (
    f"{'run':<20} {'devices':>7} {'predicted':>9} {'published':>9} {'ratio':>6} {'step':>8} "
    f"{'memory':>8} {'fits':>5} {'planned in':>10}"
)


def format_row(run: Run, found: Prediction, seconds: float) -> str:
    """Return a row of the table.

    Args:
        run: that was published.
        found: what is predicted for it.
        seconds: of the processor that this took.
    """
    return (
        f"{run.name:<20} {run.devices:>7} {found.utilization:>9.1%} {run.published:>9.1%} "
        f"{found.utilization / run.published:>6.2f} {found.seconds:>6.2f} s "
        f"{found.memory / 1e9:>5.1f} GB {'yes' if found.fits else 'no':>5} {seconds:>8.1f} s"
    )


def judge(ratios: Sequence[float]) -> int:
    """Print how far predictions are off, and return 1 if they are further than they may be.

    Args:
        ratios: of predicted to published.
    """
    errors = [abs(ratio - 1) for ratio in ratios]
    middle, worst = statistics.median(errors), max(errors)
    print(f"median error {middle:.1%}, limit {MEDIAN:.0%}; largest {worst:.1%}, limit {WORST:.0%}")
    return int(middle > MEDIAN or worst > WORST)


def main() -> int:
    """Print the table, and return 1 if predictions are further off than they may be."""
    known = {run.name: run for run in runs()}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"rows, of {', '.join(known)}; by default all")
    names = parser.parse_args().names or list(known)
    print(HEADER)
    ratios = []
    for name in names:
        start = time.process_time()
        found = known[name].predict()
        print(format_row(known[name], found, time.process_time() - start), flush=True)
        ratios.append(found.utilization / known[name].published)
    return judge(ratios)


if __name__ == "__main__":
    sys.exit(main())
