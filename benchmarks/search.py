"""How long a search over all shardings takes: `auto_partition` of a GPT without any annotations.

24 blocks of width 1024 in a Python loop on meshes of one to three axes of 8, and one block in `Repeat`
96 times. Printed are seconds from the model to the plan, of which the search, what it found, what
nothing can be below, and the gap. Nothing is computed: devices are of the profile h100-sxm. Times are the
processor's, of this process alone.

    python -m benchmarks.search [--only TEXT]
"""

from __future__ import annotations

import argparse
import time

import mithril as ml
from mithril.cli.gpt import Sizes, gpt, transformer_block, with_loss
from mithril.plan import Plan
from mithril.runtime.planned import plan_backend

WIDTH, HEADS, CONTEXT, VOCABULARY = 1024, 16, 512, 32000
SEQUENCES = 512
ONE, TWO, THREE = ml.Mesh(a=8), ml.Mesh(a=8, b=8), ml.Mesh(a=8, b=8, c=8)


def plan_loop(blocks: int, mesh: ml.Mesh) -> Plan:
    """Return the plan of a training step of blocks in a Python loop."""
    sizes = Sizes(blocks, WIDTH, HEADS, 4 * WIDTH, CONTEXT, SEQUENCES)
    return search(with_loss(gpt(VOCABULARY, sizes)), mesh, ("tokens", "target"))


def plan_repeat(blocks: int, mesh: ml.Mesh) -> Plan:
    """Return the plan of a training step of one block that is repeated."""
    sizes = Sizes(blocks, WIDTH, HEADS, 4 * WIDTH, CONTEXT, SEQUENCES)
    model = ml.Model(name="gpt")
    model |= ml.Embedding(VOCABULARY, WIDTH, name="embed")(input="tokens", output="embedded")
    model += ml.Repeat(transformer_block(sizes, "block"), blocks, name="blocks")
    model += ml.Linear(VOCABULARY, name="head")(output="logits")
    return search(with_loss(model), mesh, ("tokens", "target"))


def search(model: ml.Model, mesh: ml.Mesh, inputs: tuple[str, ...]) -> Plan:
    """Return the plan that is searched for."""
    tokens = ml.TensorSpec((SEQUENCES, CONTEXT), "int32")
    backend = plan_backend(mesh, "h100-sxm")
    shapes = dict.fromkeys(inputs, tokens)
    return ml.compile(model, backend, auto_partition=True, shapes=shapes).plan


CASES = {
    "24 blocks in a loop, one axis of 8": lambda: plan_loop(24, ONE),
    "24 blocks in a loop, two axes of 8": lambda: plan_loop(24, TWO),
    "96 blocks in Repeat, one axis of 8": lambda: plan_repeat(96, ONE),
    "96 blocks in Repeat, two axes of 8": lambda: plan_repeat(96, TWO),
    "1 block, three axes of 8": lambda: plan_loop(1, THREE),
    "24 blocks in a loop, three axes of 8": lambda: plan_loop(24, THREE),
    "96 blocks in Repeat, three axes of 8": lambda: plan_repeat(96, THREE),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    only = parser.parse_args().only
    for name, case in CASES.items():
        if only in name:
            start = time.process_time()
            found = case().search
            seconds = time.process_time() - start
            print(f"{name}: {seconds:.1f} s, of which the search {found.wall:.1f} s")
            print("\n".join(f"  {line}" for line in found.lines()), flush=True)


if __name__ == "__main__":
    main()
