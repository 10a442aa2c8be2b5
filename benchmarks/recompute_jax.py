"""The sides of the benchmark of recomputation on JAX."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Return the ways of JAX to recompute.

    Args:
        sizes: of the GPT.
        params: its parameters by name.
    """
    placed = {name: jnp.asarray(x) for name, x in params.items()}
    data = data_of(sizes, VOCABULARY)
    given = [jnp.asarray(data[name]) for name in INPUTS]

    def make(count: int, policy: Any) -> Side:
        def block(params: Any, x: Any, name: str) -> Any:
            return jax_by_hand.block(params, name, x, sizes.heads, jax_by_hand.unconstrained)

        again = jax.checkpoint(block, policy=policy, static_argnums=2)

        def loss(params: Any, tokens: Any, target: Any) -> Any:
            x = params["embed.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
            for i in range(sizes.layers):
                x = (again if i < count else block)(params, x, f"block{i}")
            return jax_by_hand.head_loss(params, x, target)

        compiled = jax.jit(jax.value_and_grad(loss)).lower(placed, *given).compile()

        def step() -> Any:
            return jax.block_until_ready(compiled(placed, *given))

        def found() -> tuple[float, dict[str, np.ndarray]]:
            value, slopes = step()
            return float(value), {name: np.asarray(x) for name, x in slopes.items()}

        return Side(step, lambda: total(compiled.memory_analysis()), found)

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
