"""Train a character model of two LSTM layers on any backend and mesh, then let it write.

    python examples/lstm_text.py --backend jax --mesh data=2,tensor=2

Losses and text do not depend on the mesh. Writing, each step gets one character and the states that
the step before ended in.
"""

from __future__ import annotations

from collections.abc import Mapping

import mithril as ml
import numpy as np
from mithril import P
from training import command_line, train

TEXT = "the cat sat on the mat; the rat sat on the cat; the mat sat on the rat; " * 4
LETTERS = sorted(set(TEXT))
IDS = np.array([LETTERS.index(letter) for letter in TEXT], np.int32)
WIDTH, LENGTH, BATCH = 32, 24, 8


def reader(*, continued: bool) -> ml.Model:
    """Return the model, split over `tensor` by features; `continued` it is given its states."""
    states = {"hidden": "hidden", "cell": "cell"} if continued else {}
    model = ml.Model()
    model |= ml.Embedding(len(LETTERS), WIDTH, name="table")(input="ids", output="x")
    model |= ml.LSTM(WIDTH, num_layers=2, name="lstm")(
        input="x", **states, output="read", last_hidden="last_hidden", last_cell="last_cell"
    )
    model |= ml.Linear(len(LETTERS), name="head")(input="read", output="logits")
    if not continued:
        model |= ml.CrossEntropy()(input="logits", target="target", output="loss")
    model.shard({"lstm.*.weight": P(None, "tensor")})
    return model


def batch(step: int) -> dict[str, np.ndarray]:
    starts = np.random.default_rng(step).integers(0, len(IDS) - LENGTH - 1, BATCH)
    rows = IDS[starts[:, None] + np.arange(LENGTH + 1)]
    return {"ids": rows[:, :-1], "target": rows[:, 1:]}


def write(params: Mapping[str, ml.Array], backend: ml.Backend, start: str, count: int) -> str:
    """Return a text that goes on from its start."""
    writer = ml.compile(reader(continued=True), backend, inference=True)
    hidden = cell = np.zeros((2, 1, WIDTH), np.float32)
    text = seen = start
    for _ in range(count):
        ids = np.array([[LETTERS.index(letter) for letter in seen]], np.int32)
        made = writer.evaluate(params, {"ids": ids, "hidden": hidden, "cell": cell})
        hidden, cell = made["last_hidden"], made["last_cell"]
        seen = LETTERS[int(made["logits"].numpy()[0, -1].argmax())]
        text += seen
    return text


def main() -> None:
    given = command_line(__doc__, steps=60).parse_args()
    backend = ml.open_backend(given.backend, given.mesh)
    compiled = ml.compile(reader(continued=False), backend, outputs=["loss"])
    params = train(compiled, compiled.randomize_params(0), batch, range(given.steps), rate=0.02)
    print(write(params, backend, "the r", 30))


if __name__ == "__main__":
    main()
