"""A GPT of 48 layers on JAX: an ordinary Python loop and `ml.Repeat`, against `lax.scan` by hand.

XLA by itself takes minutes to compile so many layers one after the other, and the program is slow;
Mithril keeps them apart. Time to compile counts from the model to the first gradients: planning,
tracing, lowering, XLA, one step.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes, gpt, transformer_block, with_loss

from benchmarks import jax_by_hand
from benchmarks.harness import Limit, estimate, interleave, ratio, report, settle
from benchmarks.jax_sides import (
    MEMORY_LIMIT,
    VERSION,
    ByHand,
    Ours,
    check_sides,
    compile_times,
    exactly,
    plain,
)
from benchmarks.sides import planned
from tests.tolerances import TOLERANCE

SIZES = Sizes(layers=48, width=64, heads=4, hidden=256, context=32, batch=8)
VOCABULARY = 256
START_LIMIT = 12.0  # s
LOOP_LIMIT, REPEAT_LIMIT = 1.15, 1.0


@dataclass(frozen=True, eq=False)
class Contestants:
    """The same GPT three times."""

    loop: Ours
    repeat: Ours
    by_hand: ByHand


def with_repeat(vocabulary: int, sizes: Sizes) -> ml.Model:
    """Return `mithril.cli.gpt.gpt` with its blocks in `ml.Repeat`."""
    model = ml.Model(name="gpt")
    model |= ml.Embedding(vocabulary, sizes.width, name="embed")(input="tokens", output="embedded")
    model += ml.PositionalEncoding(max_len=sizes.context, learned=True, name="position")(
        input="embedded", output="start"
    )
    blocks = ml.Repeat(transformer_block(sizes, "block"), sizes.layers, name="blocks")
    model |= blocks(input="start", output="end")
    model += ml.LayerNorm(name="norm")(input="end", output="final")
    model += ml.Linear(vocabulary, name="head")(input="final", output="logits")
    return model


def contestants(sizes: Sizes, vocabulary: int) -> Contestants:
    """Return all three, after a check that they give the same numbers from the same parameters."""
    rng = np.random.default_rng(0)
    shape = (sizes.batch, sizes.context)
    tokens, target = (rng.integers(0, vocabulary, shape).astype(np.int32) for _ in range(2))
    backend = ml.JaxBackend()
    inputs = {"tokens": backend.array(tokens), "target": backend.array(target)}
    loop = planned(Ours, with_loss(gpt(vocabulary, sizes)), backend, inputs)
    params = jax_by_hand.stacked(plain(loop.params, "gpt."))
    given = (jnp.asarray(tokens), jnp.asarray(target))
    by_hand = ByHand(jax_by_hand.scanned_step(sizes.heads), (params, *given))
    check_loop(loop, by_hand)
    drawn = planned(Ours, with_loss(with_repeat(vocabulary, sizes)), backend, inputs)
    same = {_repeated(name): backend.array(x) for name, x in params.items()}
    repeat = replace(drawn, params={name: same[name] for name in drawn.params})
    renamed = ByHand(lambda *given: _renamed(by_hand.function(*given)), by_hand.arguments)
    check_sides(repeat, renamed)
    return Contestants(loop, repeat, by_hand)


def check_loop(loop: Ours, by_hand: ByHand) -> None:
    """Refuse a loop whose numbers, stacked, are not those by hand."""
    outputs, gradients = loop.step()
    found = jax_by_hand.stacked(plain(gradients, "gpt."))
    loss, slopes = by_hand.step()
    rtol, atol = TOLERANCE["float32"]
    np.testing.assert_allclose(outputs["loss"].numpy(), loss, rtol, atol)
    assert found.keys() == slopes.keys()
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name], slope, rtol, atol, err_msg=name)


def _repeated(name: str) -> str:
    """Return how `with_repeat` calls a parameter of `jax_by_hand.stacked`."""
    return f"gpt.{name.replace('block.', 'blocks.', 1)}"


def _renamed(found: tuple[jax.Array, Mapping[str, jax.Array]]) -> tuple[jax.Array, dict[str, Any]]:
    loss, slopes = found
    return loss, {_repeated(name): slope for name, slope in slopes.items()}


def first_gradients(sizes: Sizes, vocabulary: int, rounds: int) -> list[float]:
    """Return the seconds from a model written as a loop to its first gradients."""
    backend, shape = ml.JaxBackend(), (sizes.batch, sizes.context)
    tokens = backend.array(np.zeros(shape, np.int32))
    inputs = {"tokens": tokens, "target": tokens}

    def start() -> None:
        planned(Ours, with_loss(gpt(vocabulary, sizes)), backend, inputs)

    (seconds,) = compile_times({"loop": start}, rounds).values()
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--compiles", type=int, default=5, help="how often the loop is compiled")
    given = parser.parse_args()
    settle("benchmarks.jax_depth")
    sides = contestants(SIZES, VOCABULARY)
    functions = {
        "Python loop": sides.loop.step, "Repeat": sides.repeat.step, "by hand": sides.by_hand.step,
    }  # fmt: skip
    times = interleave(functions, given.rounds)
    first = first_gradients(SIZES, VOCABULARY, given.compiles)
    memory = sides.by_hand.temporary_bytes()
    limits = [
        Limit("loop, from model to first gradients", estimate(first), START_LIMIT, "s"),
        Limit("step of the loop", ratio(times, "Python loop", "by hand"), LOOP_LIMIT),
        Limit("step of Repeat", ratio(times, "Repeat", "by hand"), REPEAT_LIMIT),
        *(
            Limit(f"temporary memory of {name}", exactly(size / memory), MEMORY_LIMIT)
            for name, size in (
                ("the loop", sides.loop.temporary_bytes()),
                ("Repeat", sides.repeat.temporary_bytes()),
            )
        ),
    ]
    title = f"GPT {SIZES}, vocabulary {VOCABULARY}, one device, {VERSION}, forward and backward"
    return report(title, {**times, "loop, from the start": first}, limits)


if __name__ == "__main__":
    sys.exit(main())
