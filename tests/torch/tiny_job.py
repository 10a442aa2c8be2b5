"""What each rank runs of the benchmark in a job, tiny; started by `test_torch_benchmarks.py`."""

from __future__ import annotations

import sys

import torch.distributed as dist
from mithril.cli.gpt import Sizes

from benchmarks import torch_gpt
from benchmarks.harness import interleave
from benchmarks.torch_sides import hand_in, together

SIZES = Sizes(layers=2, width=8, heads=2, hidden=12, context=4, batch=4)

if __name__ == "__main__":
    functions = torch_gpt.spread(SIZES, 7, ranks=2)
    assert dist.get_world_size() == 2
    hand_in(interleave(functions, rounds=2, warm_up=0, ready=together), sys.argv[2])
