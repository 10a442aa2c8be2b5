"""What each rank runs of the benchmark behind a link, tiny; started by `test_slow_link.py`."""

from __future__ import annotations

import sys

from mithril.cli.gpt import Sizes

from benchmarks.harness import interleave
from benchmarks.slow_link_torch import contestants
from benchmarks.torch_sides import hand_in, together
from benchmarks.training_cases import Case

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=4)

if __name__ == "__main__":
    sides = ("ddp", "own", "fp16", "fsdp", "hidden")
    functions, predicted = contestants(Case(SIZES, 7), 2, "200mbit", sides)
    times = interleave(functions, rounds=2, warm_up=0, ready=together)
    hand_in({**times, **predicted}, sys.argv[2])
