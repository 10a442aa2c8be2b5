"""A Llama in a pipeline as one writes it by hand in JAX, with every layer computed again.

One `shard_map` over all devices runs the ticks of 1F1B, with `lax.switch` for what a stage does in
a tick: nothing at all, a micro-batch forward, or one backward. The parameters of a layer lie below
each other in a matrix, whose rows are split over `data`: one `all_gather` brings a layer, and its
transpose scatters the gradients. Forward keeps the inputs of layers alone; backward runs each layer
again under `jax.vjp`, as a checkpoint in a `lax.scan` does, but only where its stage's turn is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import mithril as ml
import numpy as np
import optax
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import jax_by_hand
from benchmarks.prediction_memory import held_on, watch_jax
from benchmarks.recompute_llama import HAND, ByHand, Framework
from benchmarks.sides import INPUTS
from benchmarks.training_cases import DECAY, RATE, Case, Ours

STAGES = 2
IDLE, FORWARD, BACKWARD = range(3)
TAKEN_APART = ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up")
"""What is split by rows over `tensor`."""
PUT_TOGETHER = ("attn.o", "mlp.down")
"""What is split by columns, and lies transposed."""
NORMS = ("norm1", "norm2")
SPECS = {"layers": P("pipeline", None, "tensor", "data"), "ends": P("pipeline", "data")}
Params = dict[str, jax.Array]


# ------------------------------------------------------------------ how parameters lie


def pack(params: Mapping[str, np.ndarray], layers: int, parts: int) -> dict[str, np.ndarray]:
    """Return all parameters in two arrays.

    Args:
        params: by name.
        layers: how many there are.
        parts: the length of the axis `tensor`.

    Returns:
        `layers`, `[stage, layer, part, rows, width]`, and `ends`, `[stage, rows, width]`: the
        embedding, and the head with its norm.
    """

    def rows(i: int, part: int) -> np.ndarray:
        split = [params[f"block{i}.{name}.weight"] for name in TAKEN_APART]
        split += [params[f"block{i}.{name}.weight"].T for name in PUT_TOGETHER]
        norms = [params[f"block{i}.{name}.weight"][None] for name in NORMS]
        return np.concatenate([*(np.split(x, parts)[part] for x in split), *norms])

    stacked = np.stack([[rows(i, part) for part in range(parts)] for i in range(layers)])
    embed, head = params["embed.weight"], params["head.weight"]
    last = [params["norm.weight"], 0 * params["norm.weight"]]  # two, which split over `data`
    ends = np.stack([np.concatenate((embed, 0 * np.stack(last))), np.concatenate((head, last))])
    return {"layers": stacked.reshape(STAGES, -1, *stacked.shape[1:]), "ends": ends}


def unpack(rows: jax.Array, case: Case, parts: int) -> Params:
    """Return the parameters of a device's part of a layer by name, as `llama_block` takes them."""
    sizes = case.sizes
    narrow = sizes.width // sizes.heads * case.key_heads
    whole = (sizes.width, narrow, narrow, sizes.hidden, sizes.hidden, sizes.width, sizes.hidden)
    found: Params = {}
    at = 0
    for name, size in zip((*TAKEN_APART, *PUT_TOGETHER), whole, strict=True):
        piece = rows[at : at + size // parts]
        found[f"block.{name}.weight"] = piece.T if name in PUT_TOGETHER else piece
        at += size // parts
    return found | {f"block.{name}.weight": rows[at + i] for i, name in enumerate(NORMS)}


# ------------------------------------------------------------------ what devices do


@jax.custom_vjp
def enter(x: jax.Array) -> jax.Array:
    """Leave activations as they are, and sum their gradients over `tensor`."""
    return x


@jax.custom_vjp
def leave(x: jax.Array) -> jax.Array:
    """Sum activations over `tensor`, and leave their gradients as they are."""
    return lax.psum(x, "tensor")


enter.defvjp(lambda x: (x, None), lambda _, slope: (lax.psum(slope, "tensor"),))
leave.defvjp(lambda x: (lax.psum(x, "tensor"), None), lambda _, slope: (slope,))


def gathered(rows: jax.Array) -> jax.Array:
    """Return all rows of a matrix of which each device of `data` has some."""
    return lax.all_gather(rows, "data", tiled=True)


def make_ticks(microbatches: int) -> dict[str, np.ndarray]:
    """Return the order of 1F1B on two stages: what each stage does in each tick.

    Returns:
        `[tick, stage]` each: the kind of `work`, the micro-batch that it is `on`, and whether the
        stage `takes` what the other one has at the end of the tick.
    """
    shape = (2 * microbatches + 2, STAGES)
    work, on, takes = np.zeros(shape, int), np.zeros(shape, int), np.zeros(shape, bool)
    for m in range(microbatches):
        begins = m if m < STAGES else 2 * m
        for tick, stage, kind in (
            (begins, 0, FORWARD), (2 * m + 1, 1, FORWARD), (2 * m + 2, 1, BACKWARD),
            (2 * m + 3, 0, BACKWARD),
        ):  # fmt: skip
            work[tick, stage], on[tick, stage] = kind, m
        takes[begins, 1] = takes[2 * m + 2, 0] = True
    return {"work": work, "on": on, "takes": takes}


def make_gradients(case: Case, mesh: ml.Mesh, microbatch: int) -> Callable[..., Any]:
    """Return the function of a device's parameters, tokens and targets to gradients and loss."""
    sizes, parts, shards = case.sizes, mesh.sizes["tensor"], mesh.sizes["data"]
    count = sizes.batch // shards // microbatch
    activation = (microbatch, sizes.context, sizes.width)

    def layer(rows: jax.Array, x: jax.Array) -> jax.Array:
        weights = unpack(gathered(rows), case, parts)
        return jax_by_hand.llama_block(
            weights, "block", x, sizes.heads, jax_by_hand.unconstrained, enter, leave
        )

    def embed(ends: jax.Array, tokens: jax.Array) -> jax.Array:
        return gathered(ends)[tokens]

    def finish(ends: jax.Array, x: jax.Array, target: jax.Array) -> jax.Array:
        whole = gathered(ends)
        normed = jax_by_hand.rms_norm({"norm.weight": whole[case.vocabulary]}, "norm", x)
        found = jax_by_hand.cross_entropy(normed @ whole[: case.vocabulary].T, target)
        return found / (count * shards)

    def run_layers(work: jax.Array, slot: jax.Array, layers: jax.Array, carry: Any) -> Any:
        """Return what comes out of the layers of a stage, what is kept, and gradients."""
        number = len(layers)

        def body(carry: Any, step: jax.Array) -> tuple[Any, None]:
            x, kept, slopes = carry
            i = jnp.where(work == BACKWARD, number - 1 - step, step)
            rows, seen, slope = layers[i], kept[slot, i], slopes[i]

            def backward() -> Any:
                _, pull = jax.vjp(layer, rows, seen)
                more, back = pull(x)
                return back, seen, slope + more

            x, seen, slope = lax.switch(
                work,
                (lambda: (x, seen, slope), lambda: (layer(rows, x), x, slope), backward),
            )
            return (x, kept.at[slot, i].set(seen), slopes.at[i].set(slope)), None

        return lax.scan(body, carry, jnp.arange(number))[0]

    def run(params: Params, tokens: jax.Array, target: jax.Array) -> tuple[Params, jax.Array]:
        layers, ends = params["layers"][0, :, 0], params["ends"][0]
        stage = lax.axis_index("pipeline")
        tokens, target = (x.reshape(count, microbatch, -1) for x in (tokens, target))

        def tick(carry: Any, row: Any) -> tuple[Any, None]:
            inbox, top, kept, slopes, end_slopes, loss = carry
            work, on, takes = (row[name][stage] for name in ("work", "on", "takes"))
            is_first = stage == 0
            begins = (work == FORWARD) & is_first
            x = lax.cond(begins, lambda: embed(ends, tokens[on]), lambda: inbox)
            x = jnp.where((work == BACKWARD) & ~is_first, top, x)
            x, kept, slopes = run_layers(work, on % STAGES, layers, (x, kept, slopes))

            def head() -> Any:
                found, (more, back) = jax.value_and_grad(finish, (0, 1))(ends, x, target[on])
                return back, end_slopes + more, loss + found

            def tail() -> Any:
                _, pull = jax.vjp(lambda ends: embed(ends, tokens[on]), ends)
                return top, end_slopes + pull(x)[0], loss

            after = jnp.where(
                work == IDLE, 0, jnp.where(work == FORWARD, 1 - is_first, 2 * is_first)
            )
            top, end_slopes, loss = lax.switch(after, (lambda: (top, end_slopes, loss), head, tail))
            came = lax.ppermute(x, "pipeline", [(0, 1), (1, 0)])
            inbox = jnp.where(takes, came, inbox)
            return (inbox, top, kept, slopes, end_slopes, loss), None

        nothing = jnp.zeros(activation)
        kept = jnp.zeros((STAGES, len(layers), *activation))
        start = (
            nothing,
            nothing,
            kept,
            jnp.zeros_like(layers),
            jnp.zeros_like(ends),
            jnp.zeros(()),
        )
        ticks = {name: jnp.asarray(x) for name, x in make_ticks(count).items()}
        (*_, slopes, end_slopes, loss), _ = lax.scan(tick, start, ticks)
        found = {"layers": slopes[None, :, None], "ends": end_slopes[None]}
        return found, lax.psum(loss, ("pipeline", "data"))

    return run


# ------------------------------------------------------------------ the side


def make_by_hand(
    case: Case, params: Mapping[str, np.ndarray], mesh: ml.Mesh, microbatch: int
) -> ByHand:
    """Return the side, compiled; what it holds is counted as in `prediction_memory`.

    Args:
        case: what is trained.
        params: its parameters by name.
        mesh: of `pipeline`, `data` and `tensor`.
        microbatch: samples of a device in a micro-batch.
    """
    first = mesh.flat[0]
    before = held_on(first)
    over = jax_by_hand.mesh(mesh.sizes)
    optimizer = optax.adamw(RATE, weight_decay=DECAY)
    lies = {name: NamedSharding(over, spec) for name, spec in SPECS.items()}
    packed = pack(params, case.sizes.layers, mesh.sizes["tensor"])
    given = {name: jax.device_put(x, lies[name]) for name, x in packed.items()}
    state = optimizer.init(given)
    whole = NamedSharding(over, P())
    kept_as = optax.tree_utils.tree_map_params(
        optimizer, lambda _, s: s, state, lies, transform_non_params=lambda _: whole
    )
    state = jax.device_put(state, kept_as)
    inputs = [jax_by_hand.place_batch(case.data()[name], over) for name in INPUTS]
    gradients = jax.shard_map(
        make_gradients(case, mesh, microbatch), mesh=over, check_vma=False,
        in_specs=(SPECS, P("data"), P("data")), out_specs=(SPECS, P()),
    )  # fmt: skip

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(lies, kept_as, whole))
    def update(params: Params, state: Any, *inputs: jax.Array) -> Any:
        slopes, loss = gradients(params, *inputs)
        updates, state = optimizer.update(slopes, state, params)
        return optax.apply_updates(params, updates), state, loss

    compiled = update.lower(given, state, *inputs).compile()
    held = held_on(first) - before
    analysis = compiled.memory_analysis()
    made = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    kept = [given, state]

    def step() -> Any:
        *kept[:], loss = compiled(*kept, *inputs)
        return jax.block_until_ready((kept, loss))[1]

    peak = held + made + analysis.temp_size_in_bytes
    return ByHand(step, lambda: float(step()), lambda: peak)


# ------------------------------------------------------------------ for the benchmark


def open_jax(mesh: ml.Mesh) -> Framework:
    """Return how sides run on the devices of this process."""

    def measure(make: Callable[[], Ours]) -> tuple[Ours, int]:
        before = {device: held_on(device) for device in mesh.flat}
        ours = make()
        ours.step()
        return ours, max(most - before[device] for device, most in watch_jax(ours.step).items())

    return Framework(ml.JaxBackend(mesh), measure, list_by_hand, end)


def list_by_hand(*given: Any) -> dict[str, Callable[[], ByHand]]:
    """Return what makes the side by hand; arguments are those of `make_by_hand`."""
    return {HAND: partial(make_by_hand, *given)}


def end(side: Ours | ByHand) -> None:
    """Wait until all devices have ended a step, as one by hand does by itself."""
    if isinstance(side, Ours):
        jax.block_until_ready([x.shards for x in side.state.params.values()])
