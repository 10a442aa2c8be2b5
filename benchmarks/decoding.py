"""Tokens a second of a Llama that decodes with a cache, written at a position or chosen by `where`.

The model has four layers of width 256 in the order of Llama, with rotated keys. It decodes greedily,
one token a call, from caches of keys and values. One side writes new keys at their position:
`dynamic_update_slice` into memory that is given up. Another one is the same under Mithril, and the
third the same by hand on the framework; both choose between old and new at every position of the
cache, which is how one writes it where nothing can be written at a position: `where` on an iota.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril.models.shapes import require_rank
from mithril.ops import attention, einsum, iota, rope

from benchmarks import decoding_by_hand
from benchmarks.harness import Limit, interleave, ratio, report, settle

LIMIT = round(1 / 1.2, 3)
"""How long a token may take, of the time by `where`: 1.2 times as many tokens a second."""
VOCABULARY, LAYERS, WIDTH, HEADS, GROUPS, HIDDEN = 1024, 4, 256, 4, 4, 688
CONTEXT = 2048


def write(cache: Any, new: Any, position: Any) -> Any:
    """Return the cache with new rows at a position."""
    return mnp.dynamic_update_slice(cache, new, position, axis=1)


def choose(cache: Any, new: Any, position: Any) -> Any:
    """Return the same, chosen row by row."""
    rows = iota(cache, (1, cache.shape[1], 1, 1), 1)
    return mnp.where(mnp.equal(rows, position), new, cache)


STORES: dict[str, Callable[..., Any]] = {"write": write, "where": choose}


@ml.layer(
    parameters=("q.weight", "k.weight", "v.weight", "o.weight"),
    outputs=("output", "next_keys", "next_values"),
)
def CachedAttention(input, keys, values, position, *, store: str):  # noqa: N802
    """Let one new position gather from the cache; input [batch, 1, features]."""
    require_rank(input, ("batch", "sequence", "features"))
    batch, _, features = input.shape
    size = features // HEADS

    def project(name: str, heads: int) -> Any:
        weight = ml.parameter(f"{name}.weight", (heads * size, features), ml.Normal(0.02))
        return einsum("bsd,ed->bse", input, weight).reshape(batch, 1, heads, size)

    q, k, v = (project(name, n) for name, n in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)))
    q, k = (rope(x, position) for x in (q, k))
    keys, values = (STORES[store](x, new, position) for x, new in ((keys, k), (values, v)))
    seen = iota(input, (1, 1, 1, keys.shape[1]), 3) <= position
    mixed = attention(q, keys, values, mask=seen).reshape(batch, 1, features)
    weight = ml.parameter("o.weight", (features, features), ml.Normal(0.02))
    output = einsum("bsd,ed->bse", mixed, weight)
    return {"output": output, "next_keys": keys, "next_values": values}


@ml.layer(outputs=("token", "next_position"))
def Choose(logits, position):  # noqa: N802
    """Return the likeliest token, and the position of it."""
    return {"token": mnp.argmax(logits, 2), "next_position": position + 1}


def llama(store: str) -> ml.Model:
    """Return a model from a token, its position and caches to the next ones."""
    model = ml.Model(name="llama")
    model |= ml.Embedding(VOCABULARY, WIDTH, name="embed")(input="tokens", output="x0")
    for i in range(LAYERS):
        model |= ml.RMSNorm(name=f"norm1_{i}")(input=f"x{i}", output=f"normed1_{i}")
        model |= CachedAttention(store=store, name=f"attention_{i}")(
            input=f"normed1_{i}", keys=f"keys{i}", values=f"values{i}", position="position",
            output=f"seen{i}", next_keys=f"next_keys{i}", next_values=f"next_values{i}",
        )  # fmt: skip
        model |= ml.Add(name=f"add1_{i}")(inputs=[f"x{i}", f"seen{i}"], output=f"middle{i}")
        model |= ml.RMSNorm(name=f"norm2_{i}")(input=f"middle{i}", output=f"normed2_{i}")
        model |= ml.FeedForward(
            hidden_dim=HIDDEN, activation="swiglu", bias=False, name=f"mlp_{i}"
        )(input=f"normed2_{i}", output=f"thought{i}")
        model |= ml.Add(name=f"add2_{i}")(inputs=[f"middle{i}", f"thought{i}"], output=f"x{i + 1}")
    model |= ml.RMSNorm(name="norm")(input=f"x{LAYERS}", output="final")
    model |= ml.Linear(VOCABULARY, bias=False, name="head")(input="final", output="logits")
    model |= Choose(name="choose")(
        logits="logits", position="position", token="token", next_position="next_position"
    )
    return model


@dataclass(eq=False)
class Decoder:
    """One side: what it holds goes from call to call.

    Args:
        backend: where it runs.
        store: how new rows come into the cache.
        context: positions of the cache.
    """

    backend: ml.Backend
    store: str
    context: int
    state: dict[str, ml.Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.compiled = ml.compile(llama(self.store), self.backend, inference=True)
        self.params = self.compiled.randomize_params(0)
        self.caches = [f"{kind}{i}" for i in range(LAYERS) for kind in ("keys", "values")]
        self.start()

    def start(self) -> None:
        """Begin a sequence anew."""
        shape = (1, self.context, GROUPS, WIDTH // HEADS)
        self.state = {name: self.backend.zeros(*shape) for name in self.caches}
        self.state["tokens"] = self.backend.array(np.array([[1]], np.int32))
        self.state["position"] = self.backend.array(np.int32(0))

    def decode(self) -> ml.Array:
        """Return the next token."""
        made = self.compiled.evaluate(self.params, self.state, donate=self.caches)
        self.state = {name: made[f"next_{name}"] for name in (*self.caches, "position")}
        self.state["tokens"] = made["token"]
        return made["token"]

    def decode_several(self, count: int) -> list[int]:
        """Return the next tokens."""
        return [int(token.numpy()[0, 0]) for token in [self.decode() for _ in range(count)]]


@dataclass(eq=False)
class ByHand:
    """The side on the framework alone.

    Args:
        ours: whose weights and first state it takes.
    """

    ours: Decoder

    def __post_init__(self) -> None:
        self.framework = self.ours.backend.name
        make = {"jax": decoding_by_hand.on_jax, "torch": decoding_by_hand.on_torch}[self.framework]
        weights = {k: v.numpy() for k, v in self.ours.params.items()}
        caches = {name: self.ours.state[name].numpy() for name in self.ours.caches}
        self.step = make(weights, caches, HEADS, LAYERS)
        self.start()

    def start(self) -> None:
        """Begin a sequence anew."""
        as_own = jax_array if self.framework == "jax" else torch_tensor
        self.state = {name: as_own(x.numpy()) for name, x in self.ours.state.items()}

    def decode_several(self, count: int) -> list[int]:
        """Return the next tokens."""
        found = []
        for _ in range(count):
            self.state = self.step(self.state)
            found.append(self.state["tokens"])
        return [int(token[0, 0]) for token in found]


def jax_array(x: np.ndarray) -> Any:
    """Return an array of JAX."""
    import jax.numpy as jnp

    return jnp.asarray(x)


def torch_tensor(x: np.ndarray) -> Any:
    """Return a tensor of PyTorch."""
    import torch

    return torch.tensor(x)


def contestants(backend: ml.Backend, context: int) -> dict[str, Decoder | ByHand]:
    """Return all sides, after a check that they decode the same, Mithril's with one plan each."""
    sides = {store: Decoder(backend, store, context) for store in STORES}
    first, second = (side.decode_several(8) for side in sides.values())
    for side in sides.values():
        assert side.compiled.recompiles == 1, "a position has made a plan of its own"
        side.start()
    by_hand = ByHand(sides["write"])  # its weights are there by now
    third = by_hand.decode_several(8)
    assert first == second == third, f"{first}, {second} and {third}"
    by_hand.start()
    return {**sides, "by hand": by_hand}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("jax", "torch"), default="jax")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=16, help="tokens a round and side")
    parser.add_argument("--context", type=int, default=CONTEXT, help="positions of the cache")
    given = parser.parse_args()
    settle("benchmarks.decoding")
    sides = contestants(ml.open_backend(given.backend), given.context)
    functions = {
        store: lambda side=side: side.decode_several(given.tokens) for store, side in sides.items()
    }
    times = interleave(functions, given.rounds)
    times = {store: [t / given.tokens for t in taken] for store, taken in times.items()}
    limits = [
        Limit(f"write to {other}, time of a token", ratio(times, "write", other), LIMIT)
        for other in ("where", "by hand")
    ]
    sizes = f"{LAYERS} layers, width {WIDTH}, {given.context} positions"
    return report(f"Decoding, {sizes}, {given.backend}", times, limits)


if __name__ == "__main__":
    sys.exit(main())
