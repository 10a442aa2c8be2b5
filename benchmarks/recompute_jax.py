"""The sides of the benchmark of recomputation on JAX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np
from mithril.cli.gpt import Sizes

from benchmarks import jax_by_hand
from benchmarks.recompute import VOCABULARY, Family, Side, compile_side, found_by
from benchmarks.sides import INPUTS, data_of


def make_ours(sizes: Sizes, asked: object) -> Side:
    """Return Mithril's side."""
    backend = ml.JaxBackend(ml.Mesh())
    compiled, params, inputs = compile_side(sizes, backend, asked)
    one = backend.ones()

    def step() -> Any:
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": one})
        jax.block_until_ready([x.shards for x in (*outputs.values(), *gradients.values())])
        return outputs, gradients

    def peak() -> int:
        step()
        executable = compiled._evaluator.latest.executable
        handles = {name: x.shards for name, x in {**params, **inputs}.items()}
        ports = executable.program.inputs
        return total(executable.memory([handles.get(p.name, one.shards) for p in ports]))

    return Side(step, peak, lambda: found_by(*step()))


def total(analysis: Any) -> int:
    """Return the bytes of a program of XLA."""
    made = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return int(analysis.argument_size_in_bytes + made + analysis.temp_size_in_bytes)


def list_families(sizes: Sizes, params: Mapping[str, np.ndarray]) -> list[Family]:
    """Return the ways of JAX to recompute: the blocks run in `lax.scan`.

    One after another, XLA takes so long for as many blocks that nobody writes them so: its program
    of 24 is 7 times as slow, and what is checkpointed in it is not computed again.

    Args:
        sizes: of the GPT.
        params: its parameters by name.
    """
    placed = {name: jnp.asarray(x) for name, x in jax_by_hand.stacked(params).items()}
    data = data_of(sizes, VOCABULARY)
    given = [jnp.asarray(data[name]) for name in INPUTS]

    def make(count: int, policy: Any) -> Side:
        step = jax.value_and_grad(partial(checkpointed_loss, sizes=sizes, count=count, how=policy))
        compiled = jax.jit(step).lower(placed, *given).compile()

        def run() -> Any:
            return jax.block_until_ready(compiled(placed, *given))

        def found() -> tuple[float, dict[str, np.ndarray]]:
            value, slopes = run()
            return float(value), unstacked(slopes, sizes.layers)

        return Side(run, lambda: total(compiled.memory_analysis()), found)

    policies = jax.checkpoint_policies
    kinds = {
        "nothing saveable": policies.nothing_saveable,
        "dots saveable": policies.dots_saveable,
        "dots without batch": policies.dots_with_no_batch_dims_saveable,
    }
    # Without a checkpoint all ways are one, which is compiled once.
    plain = Family("none", lambda count: make(count, None), 0)
    return [
        Family(
            name,
            lambda count, policy=policy: make(count, policy) if count else plain.side(0),
            sizes.layers,
        )
        for name, policy in kinds.items()
    ]


def checkpointed_loss(
    params: jax_by_hand.Params,
    tokens: jax.Array,
    target: jax.Array,
    *,
    sizes: Sizes,
    count: int,
    how: Any,
) -> jax.Array:
    """Return the loss of a GPT whose first blocks are checkpoints.

    Args:
        params: with those of the blocks stacked.
        tokens: `[batch, context]`.
        target: likewise.
        sizes: of the GPT.
        count: how many blocks are checkpoints.
        how: the policy of `jax.checkpoint`.
    """

    def body(x: jax.Array, block: jax_by_hand.Params) -> tuple[jax.Array, None]:
        same = jax_by_hand.unconstrained
        return jax_by_hand.block(block, "block", x, sizes.heads, same), None

    blocks = {name: x for name, x in params.items() if name.startswith("block.")}
    x = params["embed.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
    again = jax.checkpoint(body, policy=how, prevent_cse=False)  # as JAX advises within a scan
    for one, first, last in ((again, 0, count), (body, count, sizes.layers)):
        if last > first:
            x, _ = jax.lax.scan(one, x, {name: w[first:last] for name, w in blocks.items()})
    return jax_by_hand.head_loss(params, x, target)


def unstacked(params: Mapping[str, jax.Array], layers: int) -> dict[str, np.ndarray]:
    """Return what is stacked by block under the names of each block."""
    found: dict[str, np.ndarray] = {}
    for name, x in params.items():
        parts = list(x) if name.startswith("block.") else []
        named = {name.replace("block.", f"block{i}.", 1): part for i, part in enumerate(parts)}
        found |= {own: np.asarray(part) for own, part in (named or {name: x}).items()}
    return found
