"""The sides of the benchmark of training on JAX: one device, or eight under GSPMD.

On eight Mithril chooses by itself whether each device updates all parameters or its part
(`zero="auto"`), which sends as many bytes. By hand there are both: moments that lie as their
parameters, and moments that are split over the data axis besides, for which GSPMD scatters gradients
and gathers what is updated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


SPLIT = "GSPMD, moments split, optax, donated"
OURS = "mithril, data 4 x tensor 2"


def contestants(case: Case, devices: int) -> Functions:
    """Return all sides: `data=4` × `tensor=2` on eight devices, split after Megatron by all."""
    mesh = MESHES[devices]
    if devices == 1:
        ours = Ours(ml.JaxBackend(mesh), case)
        theirs = by_hand(case, mesh, ours.parameters())
        check(ours.loss, lambda: float(theirs()), OPTAX)
        return {"mithril": until_done(ours), OPTAX: theirs}
    functions: Functions = {}
    for mine, zero, name, is_split in (
        (OURS, "auto", GSPMD, False),
        (f"{OURS}, zero 0", 0, SPLIT, True),
    ):
        ours = Ours(ml.JaxBackend(mesh), case, zero)
        theirs = by_hand(case, mesh, ours.parameters(), is_split)
        check(ours.loss, lambda theirs=theirs: float(theirs()), name)
        functions |= {mine: until_done(ours), name: theirs}
    return functions


def until_done(ours: Ours) -> Callable[[], object]:
    """Return a step that ends when its parameters are there."""

    def step() -> object:
        metrics = ours.step()
        jax.block_until_ready([x.shards for x in ours.state.params.values()])
        return metrics

    return step


def by_hand(
    case: Case, mesh: ml.Mesh, values: Mapping[str, Any], is_split: bool = False
) -> Callable[[], Any]:
    """Return a donated step of `jax.value_and_grad` and optax.

    Args:
        case: what is trained.
        mesh: of one device, or of eight.
        values: of the parameters.
        is_split: whether moments are split over the data axis besides.
    """
    params = {name: jnp.asarray(x) for name, x in values.items()}
    inputs = [jnp.asarray(case.data()[name]) for name in INPUTS]
    optimizer = optax.adamw(RATE, weight_decay=DECAY)
    constrain, leaves = jax_by_hand.unconstrained, None
    state = optimizer.init(params)
    if mesh.size > 1:
        on = jax_by_hand.mesh(mesh.sizes)
        params = jax_by_hand.place(params, on)
        inputs = [jax_by_hand.place_batch(x, on) for x in inputs]
        constrain = jax_by_hand.constraining(on)
        whole = jax.sharding.NamedSharding(on, jax.sharding.PartitionSpec())
        # All that is kept leaves as it came: it is donated.
        lies = {name: x.sharding for name, x in params.items()}
        moments = {n: split_more(x) for n, x in params.items()} if is_split else lies
        kept_as = optax.tree_utils.tree_map_params(
            optimizer, lambda _, s: s, state, moments, transform_non_params=lambda _: whole
        )
        state, leaves = jax.device_put(state, kept_as), (lies, kept_as, None)
    step = jax_by_hand.llama_step if case.key_heads else jax_by_hand.gpt_step
    gradients_of = step(case.sizes.heads, constrain)

    def update(params: Any, state: Any, *inputs: Any) -> tuple[Any, Any, Any]:
        loss, gradients = gradients_of(params, *inputs)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    jitted = jax.jit(update, donate_argnums=(0, 1), out_shardings=leaves)
    kept: list[Any] = [params, state]

    def run() -> Any:
        *kept[:], loss = jitted(*kept, *inputs)
        jax.block_until_ready(kept)
        return loss

    return run


def split_more(x: Any) -> Any:
    """Return how a moment of a parameter lies: its first dimension that divides over data, too."""
    spec = [*x.sharding.spec, *[None] * (x.ndim - len(x.sharding.spec))]
    parts = x.sharding.mesh.shape["data"]
    for i, size in enumerate(x.shape):
        if spec[i] is None and size % parts == 0:
            spec[i] = "data"
            break
    return jax.sharding.NamedSharding(x.sharding.mesh, jax.sharding.PartitionSpec(*spec))
