"""Train a character model of two LSTM layers on any backend and mesh, then let it write.

    python examples/lstm_text.py --backend jax --mesh data=2,tensor=2

Losses and text do not depend on the mesh. Writing, each step gets one character and the states that
the step before ended in.
"""

from __future__ import annotations

import argparse

import mithril as ml
import numpy as np
from mithril import P

TEXT = "the cat sat on the mat; the rat sat on the cat; the mat sat on the rat; " * 4
LETTERS = sorted(set(TEXT))
IDS = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
WIDTH, LENGTH, BATCH = 32, 24, 8


def writer() -> ml.Model:
    """Return the model; split over `tensor` by features."""
    model = ml.Model()
    model |= ml.Embedding(len(LETTERS), WIDTH, name="table")(input="ids", output="x")
    model |= ml.LSTM(WIDTH, num_layers=2, name="lstm")(
        input="x", hidden="h", cell="c", output="states", last_hidden="next_h", last_cell="next_c"
    )
    model |= ml.Linear(len(LETTERS), name="head")(input="states", output="logits")
    return model


def learner(mesh: ml.Mesh) -> ml.Model:
    """Return the model with its loss."""
    model = ml.Model()
    model |= writer()(ids="ids", h="h", c="c", logits="logits")
    model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    if "tensor" in mesh.names:
        model.shard({"*.lstm.*.weight": P(None, "tensor")})
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--mesh", default="", help="such as data=2,tensor=2")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    axes = (part.split("=") for part in given.mesh.split(",") if part)
    mesh = ml.Mesh({name: int(size) for name, size in axes})
    backend = ml.open_backend(given.backend, mesh)
    spec = P("data") if "data" in mesh.names else P()
    zeros = np.zeros((2, BATCH, WIDTH), np.float32)
    shapes = {"ids": ml.TensorSpec((BATCH, LENGTH), "int32"), "h": zeros, "c": zeros}
    compiled = ml.compile(learner(mesh), backend, shapes={**shapes, "target": shapes["ids"]})
    params = compiled.randomize_params(0)

    @ml.jit
    def update(params, gradients):
        return {name: params[name] - 2.0 * gradients[name] for name in params}

    rng = np.random.default_rng(0)
    for step in range(given.steps):
        starts = rng.integers(0, len(IDS) - LENGTH - 1, BATCH)[:, None] + np.arange(LENGTH)
        batch = {"ids": IDS[starts], "target": IDS[starts + 1]}
        inputs = {name: backend.array(x, sharding=spec) for name, x in batch.items()}
        inputs |= {"h": zeros, "c": zeros}
        outputs, gradients = compiled.evaluate(params, inputs, {"loss": np.float32(1)})
        params = update(params, gradients)
        if step % 20 == 19:
            print(f"step {step}: loss {outputs['loss'].item():.4f}")

    write = ml.compile(writer(), backend)
    weights = {name.removeprefix("model_0."): value for name, value in params.items()}
    made = {"next_h": zeros[:, :1], "next_c": zeros[:, :1]}
    seen = text = "the"
    for _ in range(40):
        ids = np.array([[LETTERS.index(letter) for letter in seen]], np.int32)
        made = write.evaluate(weights, {"ids": ids, "h": made["next_h"], "c": made["next_c"]})
        seen = LETTERS[int(made["logits"].numpy()[0, -1].argmax())]
        text += seen
    print(text)


if __name__ == "__main__":
    main()
