"""The sides of the benchmark of training on JAX: one device, or eight under GSPMD."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import optax

from benchmarks import jax_by_hand
from benchmarks.jax_sides import MESHES
from benchmarks.sides import INPUTS, Functions
from benchmarks.training_cases import DECAY, RATE, Case, Ours, check

OPTAX, GSPMD = "optax, donated", "GSPMD, optax, donated"


def contestants(case: Case, devices: int) -> Functions:
    """Return both sides: `data=4` × `tensor=2` on eight devices, split after Megatron on both."""
    mesh = MESHES[devices]
    ours = Ours(ml.JaxBackend(mesh), case)
    params = {name: jnp.asarray(x) for name, x in ours.parameters().items()}
    inputs = [jnp.asarray(case.data()[name]) for name in INPUTS]
    optimizer = optax.adamw(RATE, weight_decay=DECAY)
    constrain, kept_as = jax_by_hand.unconstrained, None
    state = optimizer.init(params)
    if devices > 1:
        on = jax_by_hand.mesh(mesh.sizes)
        params = jax_by_hand.place(params, on)
        inputs = [jax_by_hand.place_batch(x, on) for x in inputs]
        constrain = jax_by_hand.constraining(on)
        whole = jax.sharding.NamedSharding(on, jax.sharding.PartitionSpec())
        # Moments lie as their parameters, and all that is kept leaves as it came: it is donated.
        lies = {name: x.sharding for name, x in params.items()}
        kept_as = (lies, optax.tree_utils.tree_map_params(
            optimizer, lambda _, s: s, state, lies, transform_non_params=lambda _: whole
        ))  # fmt: skip
        state = jax.device_put(state, kept_as[1])
    step = jax_by_hand.llama_step if case.key_heads else jax_by_hand.gpt_step
    gradients_of = step(case.sizes.heads, constrain)

    def update(params: Any, state: Any, *inputs: Any) -> tuple[Any, Any, Any]:
        loss, gradients = gradients_of(params, *inputs)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    leaves = None if kept_as is None else (*kept_as, None)
    jitted = jax.jit(update, donate_argnums=(0, 1), out_shardings=leaves)
    kept: list[Any] = [params, state]

    def by_hand() -> Any:
        *kept[:], loss = jitted(*kept, *inputs)
        jax.block_until_ready(kept)
        return loss

    def mithril() -> object:
        metrics = ours.step()
        jax.block_until_ready([x.shards for x in ours.state.params.values()])
        return metrics

    name = OPTAX if devices == 1 else GSPMD
    check(ours.loss, lambda: float(by_hand()), name)
    return {"mithril" if devices == 1 else "mithril, data 4 x tensor 2": mithril, name: by_hand}
