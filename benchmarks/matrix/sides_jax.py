"""The sides of a row on JAX: `jax.jit` on one device, GSPMD and `shard_map` on several.

Memory is what XLA says of the largest program that a first call has compiled: arguments, results and
temporary memory, what is donated counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import jax_by_hand
from benchmarks.matrix.by_hand_jax import Loss, make_losses
from benchmarks.matrix.cases import DATA, FSDP, NEED_WHOLE_BATCH, ONE, STEP, Row
from benchmarks.matrix.contest import (
    MITHRIL,
    Arrays,
    Gradients,
    Ours,
    Side,
    check_gradients,
    check_losses,
    take_time,
)
from benchmarks.matrix.models import by_hand_name, make_data, split_layers
from benchmarks.training_cases import DECAY, RATE

Params = dict[str, Any]
Specs = Mapping[str, P]


def contest(row: Row) -> dict[str, Side]:
    """Return the sides of a row, after a check that they give the same numbers."""
    ours = Ours(row, ml.JaxBackend(ml.Mesh(**row.mesh)), jax.block_until_ready)
    check_gradients(ours.differentiate(), partial(differentiate, row), ours.start)
    sides = {MITHRIL: call_first(ours.run, ours.loss, ours.planning)}
    params = {by_hand_name(name): x for name, x in ours.start.items()}
    make = alone if row.parallelism == ONE else spread
    for name, (run, loss) in make(row, params).items():
        sides[name] = call_first(run, loss)
    check_losses(sides)
    return sides


def differentiate(row: Row, params: Arrays) -> Gradients:
    """Return the loss by hand on one device, and gradients by Mithril's names."""
    names = {by_hand_name(name): name for name in params}
    loss = next(iter(make_losses(replace(row, kind=STEP)).values()))
    given = {by_hand_name(name): jnp.asarray(x) for name, x in params.items()}
    found, slopes = jax.jit(jax.value_and_grad(loss))(given, *read_inputs(row))
    return float(found), {names[name]: np.asarray(x) for name, x in slopes.items()}


def read_inputs(row: Row) -> list[jax.Array]:
    """Return inputs and targets as JAX's arrays on its first device."""
    return [jnp.asarray(x) for x in make_data(row).values()]


def call_first(run: Callable[[], object], loss: Callable[[], float], planning: float = 0.0) -> Side:
    """Return a side, called once; its memory is told from what that has compiled."""
    client = jax.devices()[0].client
    known = client.live_executables()
    first = planning + take_time(run)
    most = max(count_bytes(x) for x in client.live_executables() if x not in known)
    return Side(run, loss, lambda: most, first)


def count_bytes(program: Any) -> int:
    """Return the bytes on each device that a program needs."""
    stats = program.get_compiled_memory_stats()
    results = stats.output_size_in_bytes - stats.alias_size_in_bytes
    found: int = stats.argument_size_in_bytes + results + stats.temp_size_in_bytes
    return found


# ------------------------------------------------------------------ by hand

Ways = dict[str, tuple[Callable[[], object], Callable[[], float]]]


def alone(row: Row, params: Mapping[str, np.ndarray]) -> Ways:
    """Return the ways to write a row for one device."""
    inputs, found = read_inputs(row), {}
    for name, loss in make_losses(row).items():
        given = {n: jnp.asarray(x) for n, x in params.items()}
        if row.kind == STEP:
            state = optimizer().init(given)
            update = jax.jit(make_update(loss), donate_argnums=(0, 1))
            found[f"{name}, optax, donated"] = keep(update, given, state, inputs)
        else:
            found[name] = forward(jax.jit(loss), given, inputs)
    return found


def optimizer() -> optax.GradientTransformation:
    """Return AdamW as all sides have it."""
    return optax.adamw(RATE, weight_decay=DECAY)


def make_update(loss: Loss) -> Callable[..., Any]:
    """Return the function of a step: loss, gradients, and AdamW."""

    def update(params: Params, state: Any, *inputs: jax.Array) -> Any:
        found, slopes = jax.value_and_grad(loss)(params, *inputs)
        updates, state = optimizer().update(slopes, state, params)
        return optax.apply_updates(params, updates), state, found

    return update


def keep(
    update: Callable[..., Any], params: Params, state: Any, inputs: list[jax.Array]
) -> tuple[Callable[[], Any], Callable[[], float]]:
    """Return a step that keeps parameters and state, and the same with its loss."""
    kept = [params, state]

    def run() -> Any:
        *kept[:], loss = update(*kept, *inputs)
        jax.block_until_ready(kept)
        return loss

    return run, lambda: float(run())


def forward(
    function: Callable[..., Any], params: Params, inputs: list[jax.Array]
) -> tuple[Callable[[], Any], Callable[[], float]]:
    """Return the forward alone."""

    def run() -> Any:
        return jax.block_until_ready(function(params, *inputs))

    return run, lambda: float(run())


# ------------------------------------------------------------------ by hand, on several devices


def spread(row: Row, params: Mapping[str, np.ndarray]) -> Ways:
    """Return the ways to write a step for several devices."""
    mesh = jax_by_hand.mesh({"data": 1, "tensor": 1, **row.mesh})
    inputs = [jax_by_hand.place_batch(x, mesh) for x in read_inputs(row)]
    specs = {name: spec_of(row, name, x) for name, x in params.items()}
    found = {}
    for name, loss in make_losses(row, jax_by_hand.constraining(mesh)).items():
        updates = {"GSPMD": make_update(loss)}
        if row.parallelism in (DATA, FSDP) and row.model not in NEED_WHOLE_BATCH:
            (plain,) = [f for n, f in make_losses(row).items() if n == name]
            updates["shard_map"] = map_update(plain, mesh, specs, len(inputs), params)
        for way, update in updates.items():
            given, state, lies = place(params, specs, mesh)
            jitted = jax.jit(update, donate_argnums=(0, 1), out_shardings=(*lies, None))
            found[f"{way}, {name}, optax, donated"] = keep(jitted, given, state, inputs)
    return found


def spec_of(row: Row, name: str, x: np.ndarray) -> P:
    """Return how a parameter is split: over `data` by FSDP, over `tensor` after Megatron."""
    if row.parallelism == FSDP:
        axis = next((i for i, size in enumerate(x.shape) if size % row.ranks == 0), None)
        return P() if axis is None else P(*[None] * axis, "data")
    if row.parallelism == DATA:
        return P()
    if row.model != "mlp":
        return jax_by_hand.spec_of(name)
    number, kind = name.removeprefix("layer").split(".")
    if int(number) >= split_layers(row.sizes):
        return P()
    if int(number) % 2:
        return P(None, "tensor") if kind == "weight" else P()
    return P("tensor", None) if kind == "weight" else P("tensor")


def place(
    params: Mapping[str, np.ndarray], specs: Specs, mesh: jax.sharding.Mesh
) -> tuple[Params, Any, tuple[Any, Any]]:
    """Return parameters and optimiser's state on a mesh, and how both lie."""
    lies = {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    given = {name: jax.device_put(x, lies[name]) for name, x in params.items()}
    state = optimizer().init(given)
    whole = NamedSharding(mesh, P())
    kept_as = optax.tree_utils.tree_map_params(
        optimizer(), lambda _, s: s, state, lies, transform_non_params=lambda _: whole
    )
    return given, jax.device_put(state, kept_as), (lies, kept_as)


def map_update(
    loss: Loss, mesh: jax.sharding.Mesh, specs: Specs, inputs: int, params: Mapping[str, np.ndarray]
) -> Callable[..., Any]:
    """Return a step in which each device works on its part of the batch and of the parameters.

    Parameters that are split are gathered, by which their gradients are scattered.
    """
    size = mesh.shape["data"]
    state_specs = optax.tree_utils.tree_map_params(
        optimizer(), lambda _, s: s, jax.eval_shape(optimizer().init, dict(params)), dict(specs),
        transform_non_params=lambda _: P(),
    )  # fmt: skip

    def gathered(parts: Params) -> Params:
        return {
            n: x if specs[n] == P()
            else jax.lax.all_gather(x, "data", axis=len(specs[n]) - 1, tiled=True)
            for n, x in parts.items()
        }  # fmt: skip

    def mean_part(parts: Params, *given: jax.Array) -> jax.Array:
        return loss(gathered(parts), *given) / size

    def update(parts: Params, state: Any, *given: jax.Array) -> Any:
        found, slopes = jax.value_and_grad(mean_part)(parts, *given)
        slopes = {n: jax.lax.psum(g, "data") if specs[n] == P() else g for n, g in slopes.items()}
        updates, state = optimizer().update(slopes, state, parts)
        return optax.apply_updates(parts, updates), state, jax.lax.psum(found, "data")

    split = (dict(specs), state_specs)
    return jax.shard_map(
        update, mesh=mesh, in_specs=(*split, *[P("data")] * inputs), out_specs=(*split, P()),
        check_vma=False,
    )  # fmt: skip
