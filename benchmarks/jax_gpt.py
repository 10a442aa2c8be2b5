"""One step of a GPT on JAX: outputs and gradients, against `jax.jit(jax.value_and_grad(…))` by hand.

On one device, or on eight as data=4 × tensor=2, split after Megatron on both sides. By hand the
activations are constrained, and XLA's GSPMD puts in the collectives.
"""

from __future__ import annotations

import argparse
import sys

import jax
import mithril as ml
from mithril.cli.gpt import Sizes, gpt, megatron, with_loss

from benchmarks import jax_by_hand
from benchmarks.harness import report, settle
from benchmarks.jax_sides import (
    MESHES,
    STEP_LIMITS,
    VERSION,
    ByHand,
    Ours,
    check_sides,
    compare,
    plain,
)
from benchmarks.sides import INPUTS, SIZES, VOCABULARIES, data_of, planned


def contestants(sizes: Sizes, vocabulary: int, mesh: ml.Mesh) -> tuple[Ours, ByHand]:
    """Return both sides, after a check that they give the same numbers."""
    data = data_of(sizes, vocabulary)
    backend = ml.JaxBackend(mesh)
    model, is_split = with_loss(gpt(vocabulary, sizes)), mesh.size > 1
    if is_split:
        megatron(model)
    split = ml.P("data") if is_split else ml.P()
    inputs = {name: backend.array(x, sharding=split) for name, x in data.items()}
    mithril = planned(Ours, model, backend, inputs)
    params = plain(mithril.params, "gpt.")
    given = [jax.numpy.asarray(data[name]) for name in INPUTS]
    constrain = jax_by_hand.unconstrained
    if is_split:
        devices = jax_by_hand.mesh(mesh.sizes)
        params = jax_by_hand.place(params, devices)
        given = [jax_by_hand.place_batch(x, devices) for x in given]
        constrain = jax_by_hand.constraining(devices)
    by_hand = ByHand(jax_by_hand.gpt_step(sizes.heads, constrain), (params, *given))
    check_sides(mithril, by_hand, "gpt.")
    return mithril, by_hand


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, choices=MESHES, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--compiles", type=int, default=5, help="how often both are compiled")
    given = parser.parse_args()
    settle("benchmarks.jax_gpt")
    mesh = MESHES[given.devices]
    sizes, vocabulary = SIZES["256"], VOCABULARIES["256"]
    sides = contestants(sizes, vocabulary, mesh)
    times, limits = compare("GPT", *sides, STEP_LIMITS[given.devices], given.rounds, given.compiles)
    title = f"GPT {sizes}, vocabulary {vocabulary}, {mesh!r}, {VERSION}, forward and backward"
    return report(title, times, limits)


if __name__ == "__main__":
    sys.exit(main())
