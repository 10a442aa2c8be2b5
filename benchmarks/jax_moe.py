"""A training step of a mixture of experts on JAX, against GShard's einsums by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import mithril as ml

from benchmarks.harness import Limit, interleave, ratio, report, settle
from benchmarks.jax_sides import VERSION, ByHand, Ours, check_sides, plain
from benchmarks.moe import BALANCE, MoeSizes, Z, asked, data_of, model
from benchmarks.sides import Functions, planned

LIMIT = 1.0


def loss(
    params: Mapping[str, jax.Array], x: jax.Array, target: jax.Array, sizes: MoeSizes
) -> jax.Array:
    """Return the loss of router, one-hot dispatch, experts and combination."""
    logits = x @ params["router.weight"].T
    odds = jax.nn.softmax(logits)
    gates, chosen = jax.lax.top_k(odds, sizes.top_k)
    gates = gates / gates.sum(-1, keepdims=True) if sizes.top_k > 1 else gates
    combine = combined(gates, chosen, sizes)
    rows = jnp.einsum("gnec,gnd->egcd", (combine > 0).astype(x.dtype), x)
    hidden = jnp.einsum("egcd,ehd->egch", rows, params["experts.in.weight"])
    hidden = jax.nn.relu(hidden + params["experts.in.bias"][:, None, None])
    made = jnp.einsum("egch,edh->egcd", hidden, params["experts.out.weight"])
    made = made + params["experts.out.bias"][:, None, None]
    y = jnp.einsum("gnec,egcd->gnd", combine, made)
    share = jax.nn.one_hot(chosen, sizes.experts).mean((0, 1, 2))
    balance = sizes.experts * (share * odds.mean((0, 1))).sum()
    z = jnp.square(jax.nn.logsumexp(logits, -1)).mean()
    return jnp.square(y - target).mean() + BALANCE * balance + Z * z


def combined(gates: jax.Array, chosen: jax.Array, sizes: MoeSizes) -> jax.Array:
    """Return the weight of every token in every place, [groups, tokens, experts, places]."""
    groups, tokens, choices = chosen.shape
    flat = (groups, choices * tokens)
    by_round = jax.nn.one_hot(chosen.swapaxes(1, 2).reshape(flat), sizes.experts, dtype=jnp.int32)
    position = ((by_round.cumsum(1) - 1) * by_round).sum(-1)
    place = jax.nn.one_hot(position, sizes.capacity)  # zeros beyond the capacity
    weight = gates.swapaxes(1, 2).reshape(flat)
    pairs = (weight[..., None] * by_round)[..., None] * place[:, :, None]
    return pairs.reshape(groups, choices, tokens, *pairs.shape[2:]).sum(1)


def contestants(sizes: MoeSizes) -> tuple[Ours, ByHand]:
    """Return both sides, after a check that they give the same numbers."""
    backend, data = ml.JaxBackend(), data_of(sizes)
    inputs = {name: backend.array(x) for name, x in data.items()}
    mithril = planned(Ours, model(sizes), backend, inputs)
    given = [jnp.asarray(x) for x in data.values()]
    function = jax.jit(jax.value_and_grad(partial(loss, sizes=sizes)))
    by_hand = ByHand(function, (plain(mithril.params, "moe."), *given))
    check_sides(mithril, by_hand, "moe.")
    return mithril, by_hand


def main() -> int:
    sizes, rounds = asked(__doc__)
    settle("benchmarks.jax_moe")
    mithril, by_hand = contestants(sizes)
    sides: Functions = {"mithril": mithril.step, "by hand": by_hand.step}
    times = interleave(sides, rounds)
    limits = [Limit("mithril to by hand", ratio(times, "mithril", "by hand"), LIMIT)]
    return report(f"{sizes}, {VERSION}, forward and backward", times, limits)


if __name__ == "__main__":
    sys.exit(main())
