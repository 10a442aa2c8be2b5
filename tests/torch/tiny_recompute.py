"""What each rank runs of a Llama within a budget, tiny; started by `test_torch_benchmarks.py`."""

from __future__ import annotations

import sys
from argparse import Namespace

from benchmarks.recompute_llama import MESH, compare
from benchmarks.recompute_llama_torch import open_torch
from benchmarks.torch_sides import hand_in

if __name__ == "__main__":
    given = Namespace(
        layers=4, width=16, context=8, batch=8, microbatch=2, rounds=1, budget=None, by_hand=""
    )
    hand_in(compare(open_torch(MESH), given), sys.argv[2])
