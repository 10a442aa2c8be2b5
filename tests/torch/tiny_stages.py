"""What each rank runs of the benchmark of stages, tiny; started by `test_torch_benchmarks.py`."""

from __future__ import annotations

import sys

import mithril as ml
from mithril.cli.gpt import Sizes

from benchmarks import torch_pipeline
from benchmarks.harness import interleave
from benchmarks.torch_sides import hand_in, together

SIZES = Sizes(layers=4, width=8, heads=2, hidden=12, context=4, batch=8)

if __name__ == "__main__":
    backend = ml.TorchBackend(ml.Mesh(data=4), device="cpu")  # meets the other ranks
    found = interleave(torch_pipeline.pipeline(SIZES, 7), rounds=2, warm_up=0, ready=together)
    placed = torch_pipeline.placement(8, 4, segments=8)
    hand_in(found | interleave(placed, rounds=2, warm_up=0, ready=together), sys.argv[2])
