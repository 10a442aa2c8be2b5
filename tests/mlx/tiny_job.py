"""What each rank runs of the benchmark in a job, tiny; started by `test_mlx_benchmarks.py`."""

from __future__ import annotations

import sys

import mlx.core as mx
from mithril.cli.gpt import Sizes

from benchmarks import mlx_gpt
from benchmarks.harness import interleave
from benchmarks.mlx_sides import hand_in, together

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=4)

if __name__ == "__main__":
    functions = mlx_gpt.spread(SIZES, 7, ranks=2)
    assert mx.distributed.init().size() == 2
    hand_in(interleave(functions, rounds=2, warm_up=0, ready=together), sys.argv[2])
