"""A small Llama: train it, save it, load it on another mesh, and let it write with a cache.

    python examples/llama.py --backend jax --mesh data=2,tensor=2 --other-mesh tensor=2

One block serves both. Trained, it sees the whole sequence at once. Writing, it gets the keys and
values of all positions so far, and puts those of the new positions behind them, into memory that is
given up to it: no copy of the cache a token, and one plan for all of them.
"""

from __future__ import annotations

import tempfile

import mithril as ml
import mithril.numpy as mnp
import numpy as np
from mithril import P
from training import command_line, read_mesh, train

TEXT = "the cat sat on the mat; the rat sat on the cat; the mat sat on the rat; " * 4
LETTERS = sorted(set(TEXT))
IDS = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
LAYERS, WIDTH, HEADS, GROUPS, HIDDEN = 2, 32, 4, 2, 64
LENGTH, BATCH = 32, 8


@ml.layer(outputs=("output", "next_keys", "next_values"))
def Block(x, keys=None, values=None, position=None):
    """Attend to all positions up to one's own, then think; x [batch, new positions, features]."""
    batch, length, width = x.shape
    size = width // HEADS
    normed = ml.RMSNorm(name="norm_1")(x)
    q, k, v = (
        ml.Linear(heads * size, bias=False, name=name)(normed).reshape(batch, length, heads, size)
        for name, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))
    )
    at = mnp.arange(length) if position is None else mnp.arange(length) + position
    q, k = mnp.rope(q, at), mnp.rope(k, at)
    if keys is not None:
        k = mnp.dynamic_update_slice(keys, k, position, axis=1)
        v = mnp.dynamic_update_slice(values, v, position, axis=1)
    seen = mnp.arange(k.shape[1]) <= at.reshape(length, 1)
    mixed = mnp.attention(q, k, v, mask=seen).reshape(batch, length, width)
    x = x + ml.Linear(width, bias=False, name="o")(mixed)
    mlp = ml.FeedForward(HIDDEN, activation="swiglu", bias=False, name="mlp")
    return {"output": x + mlp(ml.RMSNorm(name="norm_2")(x)), "next_keys": k, "next_values": v}


def llama(*, cached: bool) -> ml.Model:
    """Return the model, split over `tensor` by heads; `cached` continues a sequence."""
    caches = ("keys", "values") if cached else ()
    blocks = ml.Repeat(Block(), LAYERS, carry={"x": "output"}, stacked=caches, name="blocks")
    wires = {name: name for name in (*caches, *(["position"] if cached else []))}
    model = ml.Model()
    model |= ml.Embedding(len(LETTERS), WIDTH, name="embed")(input="ids", output="x")
    model |= blocks(x="x", **wires, output="h", next_keys="next_keys", next_values="next_values")
    model |= ml.RMSNorm(name="norm")(input="h", output="normed")
    model |= ml.Linear(len(LETTERS), bias=False, name="head")(input="normed", output="logits")
    if not cached:
        model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    model.tie("head.weight", "embed.weight")
    model.initialize({"embed.weight": ml.Normal(0.1)})
    rows, columns = P(None, "tensor", None), P(None, None, "tensor")
    model.shard({f"blocks.{name}.weight": rows for name in ("q", "k", "v", "mlp.up", "mlp.gate")})
    model.shard({f"blocks.{name}.weight": columns for name in ("o", "mlp.down")})
    return model


def batch(step: int) -> dict[str, np.ndarray]:
    starts = np.random.default_rng(step).integers(0, len(IDS) - LENGTH - 1, BATCH)
    rows = IDS[starts[:, None] + np.arange(LENGTH + 1)]
    return {"ids": rows[:, :-1], "target": rows[:, 1:]}


def write(path: str, backend: ml.Backend, start: str, count: int) -> str:
    """Return a text that goes on from its start, written by the model that a checkpoint holds."""
    shape = (LAYERS, 1, len(start) + count, GROUPS, WIDTH // HEADS)
    ids, number = ml.TensorSpec((1, len(start)), "int32"), ml.TensorSpec((), "int32")
    shapes = {"ids": ids, "position": number, "keys": shape, "values": shape}
    writer = ml.compile(llama(cached=True), backend, shapes=shapes, inference=True)
    params = ml.load(path, compiled=writer, subtree="params")
    state = {"next_keys": backend.zeros(*shape), "next_values": backend.zeros(*shape)}
    text, seen, position = start, start, 0
    for _ in range(count):
        ids = np.array([[LETTERS.index(letter) for letter in seen]], np.int32)
        inputs = {"ids": ids, "position": np.int32(position)}
        inputs |= {"keys": state["next_keys"], "values": state["next_values"]}
        state = writer.evaluate(params, inputs, donate=("keys", "values"))
        position += len(seen)
        seen = LETTERS[int(state["logits"].numpy()[0, -1].argmax())]
        text += seen
    print(f"{writer.recompiles} plans: one for the start, one for each letter behind it")
    return text


def main() -> None:
    parser = command_line(__doc__, steps=40)
    parser.add_argument("--other-mesh", type=read_mesh, default="")
    given = parser.parse_args()
    compiled = ml.compile(
        llama(cached=False), ml.open_backend(given.backend, given.mesh), outputs=["loss"]
    )
    params = train(compiled, compiled.randomize_params(0), batch, range(given.steps), rate=0.01)
    with tempfile.TemporaryDirectory() as path:
        ml.save(path, {"params": params, "step": given.steps})
        other = ml.open_backend(given.backend, given.other_mesh)
        print(write(path, other, "the ", LENGTH - 4))


if __name__ == "__main__":
    main()
