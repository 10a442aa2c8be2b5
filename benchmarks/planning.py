"""How long the plan of a GPT takes: trace, gradients, candidates, choice, partition, buckets.

GPT-2 small (12 blocks, width 768, 12 heads, vocabulary 50257, 1024 positions) with Megatron's
splits over `tensor`, the vocabulary included, and a batch of 8 sequences per device of `data`; as
an ordinary Python loop over the blocks, and as one block in `Repeat`. Nothing is computed: the
backend's devices are simulated, and planning needs only their number.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial

import mithril as ml
from mithril.cli.gpt import Sizes, gpt, megatron, transformer_block, with_loss

from benchmarks.harness import Limit, estimate, interleave, ratio, report, settle

VOCABULARY = 50257
WIDTH, HEADS, CONTEXT = 768, 12, 1024
SEQUENCES = 8  # on each device of `data`

SMALL = "12 blocks, data=8 tensor=8"
LARGE = "12 blocks, data=512 tensor=8"
SHALLOW = "4 blocks, data=8 tensor=8"
REPEATED = "12 blocks in Repeat"
DEEP = "96 blocks in Repeat"
SECONDS, SHALLOW_SECONDS = 3.0, 0.3
WITH_DEVICES, WITH_DEPTH = 1.3, 1.2


def case(
    layers: int, data: int, tensor: int, vocabulary: int = VOCABULARY, repeat: bool = False
) -> Callable[[], ml.CompiledModel]:
    """Return a function that plans a training step, from the model to the plan."""
    sizes = Sizes(layers, WIDTH, HEADS, 4 * WIDTH, CONTEXT, SEQUENCES * data)
    if repeat:
        model = with_loss(repeated_gpt(vocabulary, sizes))
    else:
        model = megatron(with_loss(gpt(vocabulary, sizes)))
    model.shard({"*.embed.weight": ml.P("tensor", None), "*.head.weight": ml.P("tensor", None)})
    backend = ml.NumpyBackend(ml.Mesh(data=data, tensor=tensor))
    tokens = ml.TensorSpec((sizes.batch, CONTEXT), "int32", ml.P("data"))
    return partial(ml.compile, model, backend, shapes={"tokens": tokens, "target": tokens})


def repeated_gpt(vocabulary: int, sizes: Sizes) -> ml.Model:
    """Return the model of `gpt` with its blocks in one `Repeat`."""
    column, row = ml.P("tensor", None), ml.P(None, "tensor")
    block = transformer_block(sizes, "block")
    block.shard({f"attn.{part}.weight": column for part in "qkv"})
    block.shard({"attn.o.weight": row, "mlp.up.weight": column, "mlp.down.weight": row})
    model = ml.Model(name="gpt")
    model |= ml.Embedding(vocabulary, sizes.width, name="embed")(input="tokens", output="embedded")
    model += ml.PositionalEncoding(max_len=sizes.context, learned=True, name="position")
    model += ml.Repeat(block, sizes.layers, name="blocks")
    model += ml.LayerNorm(name="norm")
    model += ml.Linear(vocabulary, name="head")(output="logits")
    return model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    given = parser.parse_args()
    settle("benchmarks.planning")
    cases = {
        SMALL: case(12, 8, 8, given.vocabulary),
        LARGE: case(12, 512, 8, given.vocabulary),
        SHALLOW: case(4, 8, 8, given.vocabulary),
        REPEATED: case(12, 8, 8, given.vocabulary, repeat=True),
        DEEP: case(96, 8, 8, given.vocabulary, repeat=True),
    }
    times = interleave(cases, given.rounds, warm_up=1)
    limits = [
        Limit(SMALL, estimate(times[SMALL]), SECONDS, "s"),
        Limit("data=512 against data=8", ratio(times, LARGE, SMALL), WITH_DEVICES),
        Limit(SHALLOW, estimate(times[SHALLOW]), SHALLOW_SECONDS, "s"),
        Limit("96 against 12 in Repeat", ratio(times, DEEP, REPEATED), WITH_DEPTH),
    ]
    return report(f"plan of GPT-2 small, vocabulary {given.vocabulary}", times, limits)


if __name__ == "__main__":
    sys.exit(main())
