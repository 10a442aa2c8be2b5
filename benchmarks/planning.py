"""How long the plan of a GPT takes: trace, gradients, candidates, choice, partition, buckets.

GPT-2 small (12 blocks, width 768, 12 heads, vocabulary 50257, 1024 positions) with Megatron's
splits over `tensor`, the vocabulary included, and a batch of 8 sequences per device of `data`; as
an ordinary Python loop over the blocks, and as one block in `Repeat`. Then what is harder: up to 96
blocks in a loop; a Llama (width 512, 8 heads) whose parameters rest split over `data`; the same
with 4 key heads on four axes, of which `tensor` is cut into sub-axes; and 16 layers whose weights
are split in both dimensions over three axes, in ways that conflict from layer to layer. Last, 96
blocks of width 1024 at rest on 4096 devices of three axes, with the memory and the times that
`mithril plan` reads off the plan. Nothing is computed: the backend's devices are simulated, and
planning needs only their number.

Times are the processor's, of this process alone.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import mithril as ml
from mithril.cli.gpt import Sizes, gpt, megatron, transformer_block, with_loss
from mithril.runtime.planned import plan_backend

from benchmarks.harness import Limit, estimate, interleave, ratio, report, settle

VOCABULARY = 50257
WIDTH, HEADS, CONTEXT = 768, 12, 1024
SEQUENCES = 8  # on each device of `data`

SMALL = "12 blocks, data=8 tensor=8"
LARGE = "12 blocks, data=512 tensor=8"
SHALLOW = "4 blocks, data=8 tensor=8"
REPEATED = "12 blocks in Repeat"
DEEP = "96 blocks in Repeat"
BLOCKS = (24, 48, 96)
AT_REST, DEEP_AT_REST = "Llama at rest, 12 blocks", "Llama at rest, 96 blocks"
SUB_AXES = "4 key heads, four axes"
CONFLICTING = "16 layers, (0, 1) and (1, 0)"
CROSSING = "16 layers, (0, 1), (1, 2), (2, 0)"
ON_4096, ON_4096_REPEATED = "96 blocks, 4096 devices", "96 blocks in Repeat, 4096 devices"
SECONDS, SHALLOW_SECONDS, DEEP_SECONDS, HARD_SECONDS = 3.0, 0.3, 4.5, 2.0
ON_4096_SECONDS, ON_4096_REPEATED_SECONDS = 10.0, 2.0
WITH_DEVICES, WITH_DEPTH, UNROLLED = 1.3, 1.2, 8.0

Plan = Callable[[], object]


def blocks(count: int) -> str:
    """Return what the plan of so many blocks in a loop is called."""
    return f"{count} blocks, data=8 tensor=8"


def case(
    layers: int, data: int, tensor: int, vocabulary: int = VOCABULARY, repeat: bool = False
) -> Plan:
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


def llama(layers: int, mesh: ml.Mesh, batch: ml.P, key_heads: int, at_rest: bool = False) -> Plan:
    """Return a function that plans a training step of a Llama; see the module's text."""
    width, heads, vocabulary, context = 512, 8, 32000, 512
    model = ml.Model(name="llama")
    model |= ml.Embedding(vocabulary, width, name="embed")(input="tokens", output="x0")
    for i in range(layers):
        block = ml.Model(name=f"block{i}")
        block |= ml.RMSNorm(name="norm1")(input="x", output="normed1")
        block += ml.MultiHeadAttention(
            heads, num_kv_heads=key_heads, causal=True, rope=True, bias=False, name="attn"
        )(input="normed1", output="seen")
        block += ml.Add()(inputs=["x", "seen"], output="middle")
        block += ml.RMSNorm(name="norm2")(input="middle", output="normed2")
        block += ml.FeedForward(4 * width, "swiglu", bias=False, name="mlp")(
            input="normed2", output="thought"
        )
        block += ml.Add()(inputs=["middle", "thought"], output="y")
        model |= block(x=f"x{i}", y=f"x{i + 1}")
    model += ml.RMSNorm(name="norm")(input=f"x{layers}", output="final")
    model += ml.Linear(vocabulary, bias=False, name="head")(input="final", output="logits")
    model = megatron(with_loss(model))
    split = ml.P("tensor", None)
    model.shard(dict.fromkeys(("*.embed.weight", "*.head.weight", "*.mlp.gate.weight"), split))
    if at_rest:
        model.at_rest({"*": ml.P("data")})
    tokens = ml.TensorSpec((SEQUENCES * mesh.sizes["data"], context), "int32", batch)
    backend = ml.NumpyBackend(mesh)
    return partial(ml.compile, model, backend, shapes={"tokens": tokens, "target": tokens})


def guide(*specs: tuple[int, int], layers: int = 16) -> Plan:
    """Return a function that plans a transformer whose weights are split in both dimensions.

    Args:
        specs: of the weights of queries, keys and values, of what attention puts out, of the
            widening and of the narrowing layer: the axes of the mesh that split both dimensions.
        layers: how many.
    """
    vocabulary, width, heads, context = 50000, 4096, 32, 1024
    mesh = {"device_mesh": (4, 2, 2)}
    model = ml.Model(name="guide")
    model |= ml.Embedding(vocabulary, width, weight_shard_spec=(0, None), name="embed", **mesh)(
        input="tokens", output="embedded"
    )
    model += ml.PositionalEncoding(max_len=context, name="position")(output="x0")
    for i in range(layers):
        block = ml.Model(name=f"layer{i}")
        block |= ml.MultiHeadAttention(
            heads, weight_shard_spec=list(specs[:2]), name="attn", **mesh
        )(input="x", output="seen")
        block += ml.Add()(inputs=["x", "seen"], output="middle")
        block += ml.LayerNorm(name="norm1")(input="middle", output="normed")
        block += ml.FeedForward(4 * width, weight_shard_spec=list(specs[2:]), name="mlp", **mesh)(
            input="normed", output="thought"
        )
        block += ml.Add()(inputs=["normed", "thought"], output="sum")
        block += ml.LayerNorm(name="norm2")(input="sum", output="y")
        model |= block(x=f"x{i}", y=f"x{i + 1}")
    model += ml.Linear(vocabulary, weight_shard_spec=(0, 1), name="head", **mesh)(
        input=f"x{layers}", output="logits"
    )
    tokens = ml.TensorSpec((128, context), "int32", ml.P("data"))
    backend = ml.NumpyBackend(ml.Mesh(data=4, tensor=2, pipeline=2))
    shapes = {"tokens": tokens, "target": tokens}
    return partial(ml.compile, with_loss(model), backend, shapes=shapes)


def predicted(layers: int, repeat: bool) -> Plan:
    """Return a function that plans a GPT at rest, and says what it takes; see the module's text."""
    mesh = ml.Mesh(data=64, context=8, tensor=8)
    sizes = Sizes(layers, 1024, 16, 4096, CONTEXT, 4 * mesh.sizes["data"])
    if repeat:
        model = with_loss(repeated_gpt(VOCABULARY, sizes))
    else:
        model = megatron(with_loss(gpt(VOCABULARY, sizes)))
    backend = plan_backend(mesh, "h100-sxm")
    tokens = ml.TensorSpec((sizes.batch, CONTEXT), "int32", ml.P("data", "context"))
    shapes = {"tokens": tokens, "target": tokens}

    def run() -> object:
        plan = ml.compile(model, backend, shapes=shapes, at_rest=ml.P("data")).plan
        return plan.memory().peak, plan.timeline().seconds

    return run


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
    cases |= {blocks(count): case(count, 8, 8, given.vocabulary) for count in BLOCKS}
    flat, four = ml.Mesh(data=8, tensor=8), ml.Mesh(a=2, b=2, data=2, tensor=8)
    cases |= {
        AT_REST: llama(12, flat, ml.P("data"), key_heads=8, at_rest=True),
        DEEP_AT_REST: llama(96, flat, ml.P("data"), key_heads=8, at_rest=True),
        SUB_AXES: llama(12, four, ml.P(("a", "b", "data")), key_heads=4),
        CONFLICTING: guide((0, 1), (1, 0), (0, 1), (1, 0)),
        CROSSING: guide((0, 1), (1, 2), (2, 0), (0, 1)),
        ON_4096: predicted(96, repeat=False),
        ON_4096_REPEATED: predicted(96, repeat=True),
    }
    times = interleave(cases, given.rounds, warm_up=1, clock=time.process_time)
    limits = [
        Limit(SMALL, estimate(times[SMALL]), SECONDS, "s"),
        Limit("data=512 against data=8", ratio(times, LARGE, SMALL), WITH_DEVICES),
        Limit(SHALLOW, estimate(times[SHALLOW]), SHALLOW_SECONDS, "s"),
        Limit("96 against 12 in Repeat", ratio(times, DEEP, REPEATED), WITH_DEPTH),
        Limit(blocks(96), estimate(times[blocks(96)]), DEEP_SECONDS, "s"),
        Limit("96 against 12 blocks", ratio(times, blocks(96), SMALL), UNROLLED),
        Limit("96 against 12 at rest", ratio(times, DEEP_AT_REST, AT_REST), UNROLLED),
        Limit(SUB_AXES, estimate(times[SUB_AXES]), HARD_SECONDS, "s"),
        Limit(CONFLICTING, estimate(times[CONFLICTING]), HARD_SECONDS, "s"),
        Limit(CROSSING, estimate(times[CROSSING]), HARD_SECONDS, "s"),
        Limit(ON_4096, estimate(times[ON_4096]), ON_4096_SECONDS, "s"),
        Limit(ON_4096_REPEATED, estimate(times[ON_4096_REPEATED]), ON_4096_REPEATED_SECONDS, "s"),
    ]
    return report(f"plan of GPT-2 small, vocabulary {given.vocabulary}", times, limits)


if __name__ == "__main__":
    sys.exit(main())
