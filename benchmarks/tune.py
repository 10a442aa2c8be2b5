"""Tuning for devices that are not here: how long it takes, and in how much memory.

A Llama of 70B parameters (Llama 3, arXiv 2407.21783, Table 3) on 4096 H100: `ml.auto_tune` with the core
alone, for forward and backward, and with AdamW. It may take a minute, and 2 GB.

With `--published NAME` what `ml.auto_tune` finds is held against how a model was split when it was trained
(`benchmarks.published_strategies`), both priced alike: it may take no longer, and what it does otherwise is
printed.

    python -m benchmarks.tune [--published gpt3-175b | llama3-405b]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import mithril as ml
from mithril.runtime.strategy.difference import list_changes

from benchmarks.published_strategies import PUBLISHED

VOCABULARY, WIDTH, HIDDEN, LAYERS = 128256, 8192, 28672, 80
HEADS, KEY_HEADS, HEAD = 64, 8, 128
LENGTH, BATCH = 4096, 2048
MOST_SECONDS, MOST_BYTES = 60.0, 2 * 10**9


def make_llama(layers: int = LAYERS) -> ml.Model:
    """Return a Llama 3 of 70B parameters with its loss, of which nothing is said how it is split.

    Args:
        layers: how many blocks.
    """
    block = ml.Model()
    attention = ml.MultiHeadAttention(
        num_heads=HEADS, num_kv_heads=KEY_HEADS, head_dim=HEAD, causal=True, rope=500000.0,
        bias=False, name="attn",
    )  # fmt: skip
    block |= ml.RMSNorm(name="norm1")(input="x", output="n1")
    block |= attention(input="n1", output="a")
    block |= ml.Add(name="add1")(inputs=["x", "a"], output="m")
    block |= ml.RMSNorm(name="norm2")(input="m", output="n2")
    mlp = ml.FeedForward(HIDDEN, activation="swiglu", bias=False, name="mlp")
    block |= mlp(input="n2", output="f")
    block |= ml.Add(name="add2")(inputs=["m", "f"], output="y")
    model = ml.Model()
    model |= ml.Embedding(VOCABULARY, WIDTH, name="embed")(input="ids", output="x0")
    model |= ml.Repeat(block, layers, name="blocks")(input="x0", output="x1")
    model |= ml.RMSNorm(name="norm")(input="x1", output="final")
    model |= ml.Linear(VOCABULARY, bias=False, name="head")(input="final", output="logits")
    model |= ml.CrossEntropy(name="end")(input="logits", target="target", output="loss")
    return model


def run(devices: int, hardware: str, optimizer: object) -> tuple[ml.Strategy, float]:
    """Return the best strategy, and the seconds that finding it took.

    Args:
        devices: how many.
        hardware: their profile.
        optimizer: of the train step; None for forward and backward.
    """
    ids = ml.TensorSpec((BATCH, LENGTH), "int32")
    start = time.perf_counter()
    found = ml.auto_tune(
        make_llama(), hardware, input_shapes={"ids": ids, "target": ids}, devices=devices,
        optimizer=optimizer, precision=ml.Precision(dtype="bfloat16"),  # type: ignore[arg-type]
    )  # fmt: skip
    return found, time.perf_counter() - start


def compare_with_published(name: str) -> bool:
    """Print what is found for a published run, and say whether it takes no longer.

    Args:
        name: of the run.
    """
    run = PUBLISHED[name]()
    published, cost = run.find_strategy()
    found = run.tune()
    more = cost.seconds / found.findings.seconds - 1
    print(found)
    print(
        f"{name}: {found.findings.seconds:.2f} s a step; as published {cost.seconds:.2f} s, ",
        end="",
    )
    print(f"{100 * more:+.1f} %, {'fits' if cost.fits else 'does not fit'}; otherwise are")
    print("\n".join(map(str, list_changes(published, found))))
    return found.findings.seconds <= cost.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", choices=PUBLISHED, help="a run to compare with")
    parser.add_argument("--devices", type=int, default=4096)
    parser.add_argument("--hardware", default="h100-sxm")
    given = parser.parse_args()
    if given.published:
        sys.exit(not compare_with_published(given.published))
    is_good = True
    for name, optimizer in (("forward and backward", None), ("AdamW", ml.optim.adamw(1e-4))):
        found, seconds = run(given.devices, given.hardware, optimizer)
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(found)
        print(f"{name}: {seconds:.1f} s of {MOST_SECONDS:.0f}, {peak / 1e6:.0f} MB at most\n")
        is_good &= seconds <= MOST_SECONDS and peak <= MOST_BYTES
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
