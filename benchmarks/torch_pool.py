"""What a step costs around the work of the workers, where a script has a pool of four.

`evaluate` of the GPT's forward and backward program, with its 69 parameters and their gradients; but
the workers have been given, in its place, a program that returns arrays of the same shapes at once.
What is left is what the controller and the workers' reading of messages take.

The limit is on the controller: the processor time of the thread that calls `evaluate`. The time on
the clock, which four workers that share the processors with other programs make longer, is shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import mithril as ml
import numpy as np
from mithril.cli.gpt import gpt, with_loss

from benchmarks.harness import BLOCKS_KEPT, Limit, estimate, interleave, report, settle
from benchmarks.sides import SIZES, VOCABULARIES, data_of, planned
from benchmarks.torch_sides import VERSION, Ours

WORKERS = 4
STEP_LIMIT = 250.0  # µs


def idle(mithril: Ours) -> None:
    """Give the workers a program that does nothing in place of the one that `evaluate` runs."""
    bound = mithril.compiled._evaluator.latest
    assert bound is not None
    executable: Any = bound.executable
    made = [
        f"    torch.full({list(port.sharding.local_shape(port.type.shape))}, 0.5),\n"
        for port in bound.plan.outputs
    ]
    text = f"MADE = [\n{''.join(made)}]\n\n\ndef run(inputs):\n    return list(MADE)\n"
    executable._pool.unload(executable._name)
    executable._pool.load(executable._name, text, None)


def contestant(workers: int) -> Ours:
    """Return Mithril on a pool whose workers do nothing."""
    sizes, vocabulary = SIZES["64"], VOCABULARIES["64"]
    backend = ml.TorchBackend(ml.Mesh(data=workers), device="cpu")
    data = data_of(sizes, vocabulary)
    inputs = {name: backend.array(x, sharding=ml.P("data")) for name, x in data.items()}
    mithril = planned(Ours, with_loss(gpt(vocabulary, sizes)), backend, inputs)
    idle(mithril)
    outputs, gradients = mithril.step()
    for x in (outputs["loss"], *gradients.values()):
        np.testing.assert_array_equal(x.numpy(), 0.5)
    return mithril


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    given = parser.parse_args()
    settle("benchmarks.torch_pool", BLOCKS_KEPT)
    mithril = contestant(WORKERS)
    clock = interleave({"evaluate, on the clock": mithril.step}, given.rounds, warm_up=50)
    thread = interleave({"controller": mithril.step}, given.rounds, clock=time.thread_time)
    times = {**clock, **thread}
    cost = estimate([1e6 * seconds for seconds in thread["controller"]])
    limit = Limit("controller, a step", cost, STEP_LIMIT, "µs")
    arrays = len(mithril.inputs) + 2 * len(mithril.params)
    return report(f"{WORKERS} workers, {arrays} arrays a step, {VERSION}", times, [limit])


if __name__ == "__main__":
    sys.exit(main())
