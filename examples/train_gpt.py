"""Train the small GPT of `mithril demo` on any backend and mesh, in one process or in several.

    python examples/train_gpt.py --backend jax --mesh data=4,tensor=2
    mithril launch -n 2 --backend jax examples/train_gpt.py --backend jax --mesh data=4,tensor=2

Every process runs this same script and holds its share of the devices; the losses do not depend on
how many there are.
"""

from __future__ import annotations

import argparse

import mithril as ml
from mithril.cli.gpt import Sizes, Trainer, help_text


def read_mesh(text: str) -> ml.Mesh:
    axes = (part.split("=") for part in text.split(",") if part)
    return ml.Mesh({name: int(size) for name, size in axes})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--mesh", type=read_mesh, default=ml.Mesh())
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    sizes = Sizes(layers=2, width=32, heads=4, hidden=64, context=16, batch=8)
    trainer = Trainer(help_text(), sizes, ml.open_backend(given.backend, given.mesh))
    for step in range(given.steps):
        print(f"step {step}: loss {trainer.step():.6f}", flush=True)


if __name__ == "__main__":
    main()
