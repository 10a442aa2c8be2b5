"""How long the plan of a whole step of training takes: AdamW, ZeRO's stage 3, and a budget of memory.

A GPT of width 1024 with Megatron's splits on 4096 devices of three axes, none of which is there: 96
blocks in `Repeat` and in an ordinary loop, and with a budget 24 in a loop. Budgets are parts of what keeping everything takes,
as of `checkpointing=`. Times are the processor's, of this process alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import mithril as ml
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss
from mithril.runtime.planned import plan_backend

from benchmarks.harness import Limit, estimate, interleave, report, settle
from benchmarks.planning import CONTEXT, VOCABULARY, repeated_gpt

MESH = {"data": 64, "context": 8, "tensor": 8}
BUDGETS = (0.9, 0.7)
REPEATED, UNROLLED = 96, 24
STEP_SECONDS, LOOP_SECONDS, REPEATED_SECONDS, UNROLLED_SECONDS = 4.0, 6.0, 5.0, 10.0


def plan(layers: int, budget: float | None, *, repeat: bool) -> Callable[[], object]:
    """Return a function that plans a step."""
    mesh = ml.Mesh(MESH)
    sizes = Sizes(layers, 1024, 16, 4096, CONTEXT, 4 * mesh.sizes["data"])
    model = repeated_gpt(VOCABULARY, sizes) if repeat else megatron(gpt(VOCABULARY, sizes))
    backend = plan_backend(mesh, "h100-sxm")
    tokens = ml.TensorSpec((sizes.batch, CONTEXT), "int32", ml.P("data", "context"))
    shapes = {"tokens": tokens, "target": tokens}
    kept = {} if budget is None else {"checkpointing": budget}
    made = with_loss(model)

    def run() -> object:
        step = ml.train_step(made, backend, ml.optim.adamw(1e-3), shapes=shapes, zero=3, **kept)
        return step.plan

    return run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    settle("benchmarks.planning_steps")
    repeated, loop = f"{REPEATED} blocks in Repeat", f"{REPEATED} blocks"
    cases = {name: plan(REPEATED, None, repeat=name == repeated) for name in (repeated, loop)}
    limits = {repeated: STEP_SECONDS, loop: LOOP_SECONDS}
    for budget in BUDGETS:
        for layers, repeat in ((REPEATED, True), (UNROLLED, False)):
            name = f"{layers} blocks{' in Repeat' if repeat else ''}, budget {budget}"
            cases[name] = plan(layers, budget, repeat=repeat)
            limits[name] = REPEATED_SECONDS if repeat else UNROLLED_SECONDS
    times = interleave(cases, given.rounds, warm_up=0, clock=time.process_time)
    found = [Limit(name, estimate(times[name]), limit, "s") for name, limit in limits.items()]
    return report("plan of a step, 4096 devices, AdamW, ZeRO 3", times, found)


if __name__ == "__main__":
    sys.exit(main())
